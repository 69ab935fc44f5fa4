"""The configuration as the doctor reads it, and what is left of one that cannot be used."""

from __future__ import annotations

from pathlib import Path

from agent.config import ConfigWatch
from agent.config.known_labels import NOWHERE
from agent.daemon.vendor_config import check_config
from agent.doctor.configuration_reading import read_configuration
from agent.doctor.doctor_arguments import DoctorArguments
from agent.doctor.surroundings import Surroundings
from agent.doctor.vendor_libraries import libraries


def test_a_vendor_that_nobody_brings_is_left_out_here_as_in_the_agent_that_runs(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("vendors: {nvidai: {enabled: true}}")
    running = ConfigWatch(config, "n", check=check_config).cell.value

    found = read_configuration(DoctorArguments("n", {"config": str(config)}), NOWHERE)

    assert (found.config, found.error) == (running.config, "")
    told = libraries(Surroundings("n", "1", configuration=found))
    (left_out,) = (it.what for it in told if it.kind == "vendor-left-out")
    assert left_out.startswith("nvidai: no vendor of this name is installed; there are: ")


def test_where_things_are_is_taken_from_a_file_that_can_not_be_used_as_a_whole(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "agent: {stateDir: /s, kubeletDir: /k}\nvendors: {metax: {enabled: true, configDir: /nowhere}}\n"
    )
    given = {"config": str(config), "kubelet-dir": "/flag"}

    found = read_configuration(DoctorArguments("n", given), NOWHERE)

    assert "/nowhere: cannot be read" in found.error
    assert (found.config.agent.state_dir, found.config.agent.kubelet_dir) == (Path("/s"), Path("/flag"))
    assert found.plugins == ()

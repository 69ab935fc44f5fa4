"""What the doctor looks for on a node with Enflame's cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.doctor.library_files import defects
from agent.vendor_api.agent import HostPart
from agent.vendors.enflame.agent.host_parts import host_parts
from agent.vendors.enflame.agent.options import Options
from agent.vendors.enflame.shared.library_places import searched


def part(options: Options, name: str, *, sliced: bool = True) -> HostPart:
    [found] = [it for it in host_parts(options, sliced=sliced) if name in it.name]
    return found


def test_the_driver_is_the_module_in_the_sysfs_of_the_settings_also_of_who_sells_the_cards() -> None:
    its = part(Options(sysfs="/host/sys"), "driver")

    assert its.paths == ("/host/sys/module/enflame", "/host/sys/module/zixiao")
    assert its.needed


@pytest.mark.parametrize(("nodes", "needed"), [(True, False), (False, True)])
def test_the_container_runtime_is_needed_where_containers_get_no_device_nodes(
    nodes: bool, needed: bool
) -> None:
    its = part(Options(device_nodes=nodes), "runtime")

    assert its.needed is needed
    assert its.on_host
    assert "/etc/enflame-container-runtime/config.toml" in its.paths


def test_efsmi_is_looked_for_where_it_is_run_from_and_only_where_slices_are_offered() -> None:
    its = part(Options(container_driver_root="/driver-root"), "efsmi")

    assert its.paths == (
        "efsmi",
        "/usr/bin/efsmi",
        "/usr/local/bin/efsmi",
        "/driver-root/usr/bin/efsmi",
        "/driver-root/usr/local/bin/efsmi",
    )
    assert its.consequence == "no card offers enflame.com/drs-gcu"
    assert part(Options(efsmi="/opt/efsmi"), "efsmi").paths == ("/opt/efsmi",)
    assert not [it for it in host_parts(Options(), sliced=False) if "efsmi" in it.name]


def test_a_link_of_the_library_that_leads_nowhere_is_named_with_its_target(tmp_path: Path) -> None:
    """As a container has /usr/lib of the host and not /usr/local/efsmi."""
    target = "/usr/local/efsmi/efsmi-1.14.0/lib/libefml.so.1.0.0"
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/libefml.so").symlink_to(target)

    [found] = defects(it for it in searched({"containerDriverRoot": str(tmp_path)}) if str(tmp_path) in it)

    assert (found.kind, found.detail) == ("dangling", target)

"""How each plugin is started, and where nothing may be started."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.subjects import GPU, Ours, Refused, Rival, Setup, Spike


class Library:
    """A stub library that is only named."""

    library = Path("/stub/libnvidia-ml.so.1")
    environment = {"XPU_NVML_STUB": "/stub/control"}  # noqa: RUF012


STUB: Any = Library()


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "nvidia-device-plugin"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_our_config_shares_each_card_by_as_many_replicas_as_are_asked_for(tmp_path: Path) -> None:
    Ours().launch(tmp_path, STUB, Setup(replicas=4))

    nvidia = json.loads((tmp_path / "config.yaml").read_text())["vendors"]["nvidia"]
    assert nvidia["resources"] == [{"name": GPU, "sharing": {"kind": "replicas", "replicas": 4}}]


@pytest.mark.parametrize("api", [True, False])
def test_our_agent_follows_the_api_server_unless_it_is_measured_alone(api: bool, tmp_path: Path) -> None:
    assert ("--kubeconfig" in Ours().launch(tmp_path, STUB, Setup(api=api)).command) is api


def test_the_spike_has_as_many_devices_as_our_agent(tmp_path: Path) -> None:
    command = Spike().launch(tmp_path, STUB, Setup(replicas=300)).command

    assert [command[0], *command[2:]] == [sys.executable, tmp_path / "device-plugins", "8", "300"]
    assert Spike().launch(tmp_path, STUB, Setup()).command[-2:] == ["8", "1"]


def test_another_plugin_gets_replicas_by_a_config_file_of_nvidia_s_plugin(
    binary: Path, tmp_path: Path
) -> None:
    launch = Rival(binary, ["--a"]).launch(tmp_path, STUB, Setup(replicas=4))

    assert [*launch.command] == [binary, "--a"]
    assert json.loads(Path(launch.environment["CONFIG_FILE"]).read_text()) == {
        "version": "v1",
        "sharing": {"timeSlicing": {"resources": [{"name": GPU, "replicas": 4}]}},
    }
    assert "CONFIG_FILE" not in Rival(binary, []).launch(tmp_path, STUB, Setup()).environment


@pytest.mark.parametrize(
    "setup", [Setup(watched=True), Setup(vendors={"nvidia": {}}), Setup(environment={"A": "b"})]
)
def test_what_only_our_agent_knows_is_refused_of_others(setup: Setup, binary: Path, tmp_path: Path) -> None:
    for subject in (Spike(), Rival(binary, [])):
        with pytest.raises(Refused):
            subject.launch(tmp_path, STUB, setup)


@pytest.mark.parametrize("trace", ["kubelet.sock", "kubelet_internal_checkpoint"])
def test_nothing_is_started_where_a_kubelet_lives_or_did(trace: str, binary: Path, tmp_path: Path) -> None:
    (tmp_path / trace).touch()

    with pytest.raises(Refused, match=trace):
        Rival(binary, [], tmp_path).prepare(tmp_path / "place")

    assert (tmp_path / trace).exists()


def test_the_measuring_kubelet_s_checkpoint_is_removed_once_the_kubelet_is_gone(
    binary: Path, tmp_path: Path
) -> None:
    kubelet, checkpoint = tmp_path / "kubelet.sock", tmp_path / "kubelet_internal_checkpoint"
    rival = Rival(binary, [], tmp_path)
    kubelet.touch()
    checkpoint.touch()

    rival.tidy()
    assert checkpoint.exists()

    kubelet.unlink()
    rival.tidy()
    assert not checkpoint.exists()


def test_a_binary_that_cannot_be_executed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be executed"):
        Rival(tmp_path / "none", [])

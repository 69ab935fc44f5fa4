"""Rules of the device nodes that no card owns: where they are looked for, and what counts as one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.vendors.nvidia.child import device_nodes
from agent.vendors.nvidia.child.backend import NvmlBackend

pytest_plugins = ["nvml_fixtures"]

CHANNELS = "dev/nvidia-caps-imex-channels"


def node(root: Path, path: str) -> None:
    """Make what counts as a device node and takes no privileges."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(root / path)


def channel(root: Path, number: int) -> None:
    """Make a name that leads to a character device."""
    (root / CHANNELS).mkdir(parents=True, exist_ok=True)
    (root / CHANNELS / f"channel{number}").symlink_to("/dev/null")


def test_control_nodes_are_told_in_nvidias_order_with_every_card(
    backend: NvmlBackend, tmp_path: Path
) -> None:
    for name in ("nvidia-modeset", "nvidia-uvm", "nvidiactl", "nvidia0"):
        node(tmp_path, f"driver/dev/{name}")

    told = {device.attributes["control-nodes"] for device in backend.discover()}

    assert told == {"/dev/nvidiactl,/dev/nvidia-uvm,/dev/nvidia-modeset"}


def test_a_file_that_is_no_device_node_is_not_told(backend: NvmlBackend, tmp_path: Path) -> None:
    (tmp_path / "driver/dev/nvidiactl").write_text("")

    assert "control-nodes" not in backend.discover()[0].attributes


@pytest.mark.parametrize(
    ("there", "seen"),
    [
        ({"mounted", "host", "device"}, "mounted"),
        ({"host", "device"}, "device"),
        ({"host"}, "host"),
        (set(), "ours"),
    ],
)
def test_the_dev_root_is_where_the_drivers_root_is_mounted_or_itself_or_our_own(
    tmp_path: Path, there: set[str], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_nodes, "OWN_ROOT", str(tmp_path / "ours"))
    for name in there:
        (tmp_path / name / "dev").mkdir(parents=True)
    settings = {
        "containerDriverRoot": str(tmp_path / "mounted"),
        "driverRoot": str(tmp_path / "host"),
        **({"devRoot": str(tmp_path / "device")} if "device" in there else {}),
    }

    assert device_nodes.dev_root(settings).seen == str(tmp_path / seen)


@pytest.mark.parametrize(
    ("below", "dev_root", "expected"),
    [
        ((), None, ("ours", "/")),
        (("nvidia0",), None, ("root", "root")),
        ((), "root", ("root", "root")),
    ],
)
def test_a_dev_of_the_drivers_root_without_the_drivers_nodes_is_not_the_hosts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    below: tuple[str, ...],
    dev_root: str | None,
    expected: tuple[str, str],
) -> None:
    monkeypatch.setattr(device_nodes, "OWN_ROOT", str(tmp_path / "ours"))
    for name in ("nvidiactl", "nvidia0"):
        node(tmp_path, f"ours/dev/{name}")
    (tmp_path / "root/dev").mkdir(parents=True)
    for name in below:
        node(tmp_path, f"root/dev/{name}")
    root = str(tmp_path / "root")
    settings = {"driverRoot": root, **({"devRoot": root} if dev_root else {})}

    found = device_nodes.dev_root(settings)

    places = {"ours": str(tmp_path / "ours"), "root": root, "/": "/"}
    assert (found.seen, found.host) == tuple(places[it] for it in expected)
    told = device_nodes.attributes(settings)
    assert told.get("dev-root") == ("/" if expected[1] == "/" else None)
    assert told.get("control-nodes") == ("/dev/nvidiactl" if expected[0] == "ours" else None)


def told(settings: Mapping[str, Any], *numbers: int) -> str | None:
    return device_nodes.attributes({**settings, "imexChannelIDs": list(numbers)}).get("imex-channels")


def test_imex_channels_are_those_of_the_settings_that_exist(
    settings: Mapping[str, Any], tmp_path: Path
) -> None:
    channel(tmp_path / "driver", 0)
    channel(tmp_path / "driver", 2)
    (tmp_path / "driver" / CHANNELS / "channel3").write_text("no device")

    assert told(settings, 0, 1, 2, 3) == "0,2"
    assert told(settings, 1, 3) is None
    assert told(settings) is None


def test_an_imex_channel_may_have_been_put_into_our_own_dev(
    settings: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel(tmp_path / "ours", 0)
    monkeypatch.setattr(device_nodes, "OWN_ROOT", str(tmp_path / "ours"))

    assert told(settings, 0) == "0"

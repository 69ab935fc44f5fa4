"""What the process tells and what the agent makes of it are one: the real backend under the real rules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from nvidia_node import given
from nvml_stub import NvmlStub
from support.driver_tree import lay_nodes

from agent.vendor_api.agent import Device
from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.plugin import register_backend

pytest_plugins = ["nvml_fixtures"]

CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm")
#: Setting, what it makes containers ask for, and the device nodes behind it.
EXTRAS = {
    "gdrcopyEnabled": ("gdrcopy=all", ("/dev/gdrdrv",)),
    "gdsEnabled": ("gds=all", ("/dev/nvidia-fs0",)),
    "mofedEnabled": ("mofed=all", ("/dev/infiniband/uverbs0",)),
}
IMEX = "imex-channel=0"


@pytest.fixture
def node(stub: NvmlStub, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a node with two cards, of which the second has three MIG devices."""
    stub.cards(2)
    stub.mig(1)
    stub.write_minors(Path(settings["procfs"]))
    lay_nodes(Path(settings["containerDriverRoot"]), *CONTROL)
    return settings


def lay_everything(root: Path) -> None:
    for _, paths in EXTRAS.values():
        lay_nodes(root, *paths)
    channels = root / "dev/nvidia-caps-imex-channels"
    channels.mkdir()
    (channels / "channel0").symlink_to("/dev/null")  # a character device that takes no privileges


def seen(settings: Mapping[str, Any]) -> tuple[Sequence[Device], set[str]]:
    """The devices that the process lists, and all qualified names of its specs."""
    backend = NvmlBackend(register_backend(settings).settings.for_backend)
    backend.open()
    devices, specs = backend.discover(), [json.loads(text) for text in backend.cdi().values()]
    backend.close()
    return devices, {f"{spec['kind']}={device['name']}" for spec in specs for device in spec["devices"]}


def asked(settings: Mapping[str, Any], devices: Sequence[Device]) -> Iterator[list[str]]:
    """The names that containers ask for: with each device alone, and with the MIG devices together."""
    for those in (*([it] for it in devices), [it for it in devices if it.parent]):
        yield [name.partition("/")[2] for name in given(settings, those).cdi_devices]


@pytest.mark.parametrize("there", [False, True], ids=["no such nodes", "nodes"])
@pytest.mark.parametrize("strategy", ["uuid", "index"])
@pytest.mark.parametrize("enabled", [*([it] for it in EXTRAS), [*EXTRAS]], ids="+".join)
def test_every_cdi_name_that_a_container_asks_for_stands_in_a_spec(
    node: Mapping[str, Any], enabled: list[str], strategy: str, there: bool
) -> None:
    wanted = {
        **node,
        **dict.fromkeys(enabled, True),
        "imexChannelIDs": [0],
        "deviceListStrategy": "cdi-cri",
        "deviceIDStrategy": strategy,
        "migStrategy": "mixed",
    }
    if there:
        lay_everything(Path(node["containerDriverRoot"]))

    devices, known = seen(wanted)

    beside = [IMEX, *(EXTRAS[setting][0] for setting in enabled)] if there else []
    assert len(devices) == 5
    for names in asked(wanted, devices):
        assert {f"k8s.device-plugin.nvidia.com/{name}" for name in names} <= known
        assert [name for name in names if not name.startswith("gpu=")] == beside


def test_what_comes_and_goes_on_the_node_is_followed_for_mig_devices_too(
    stub: NvmlStub, node: Mapping[str, Any]
) -> None:
    wanted = {**node, "gdsEnabled": True, "deviceListStrategy": ["cdi-cri"], "migStrategy": "mixed"}
    backend = NvmlBackend(register_backend(wanted).settings.for_backend)
    backend.open()
    assert {len(names) for names in asked(wanted, backend.discover()[:3])} == {1}
    root = Path(node["containerDriverRoot"])

    lay_nodes(root, "/dev/nvidia-fs0")
    assert {names[-1] for names in asked(wanted, backend.discover())} == {"gds=all"}

    (root / "dev/nvidia-fs0").unlink()
    assert not any("gds=all" in names for names in asked(wanted, backend.discover()))
    backend.close()


def test_what_is_the_nodes_is_told_of_a_lost_card_too(stub: NvmlStub, node: Mapping[str, Any]) -> None:
    backend = NvmlBackend(node)
    backend.open()
    backend.discover()
    stub.lose(0)
    (Path(node["containerDriverRoot"]) / "dev/nvidia-uvm").unlink()

    told = {device.attributes["control-nodes"] for device in backend.discover()}

    backend.close()
    assert told == {"/dev/nvidiactl"}

"""MetaX's cards of a scenario, played by the compiled stub of their library, and what is asked of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.waiting import eventually

from agent.testing.node_kubelet import Pod
from agent.vendors.metax.agent.names import SGPU
from agent.vendors.metax.shared.qos_policy import ANNOTATION as POLICY
from agent.vendors.metax.shared.qos_policy import SCHED_CLASSES

from .koordination import Koordinator
from .node import PATIENCE, Got, gets

sys.path.append(str(Path(__file__).parents[1] / "vendors" / "metax"))

from mxsml_stub import MxsmlStub, Slice

__all__ = ["DOCUMENT_001", "POLICY", "SGPU", "Got", "MetaX", "gets", "plays_document_001"]

#: What the pod of Koordinator's manual for MetaX asks for, as its author writes it.
DOCUMENT_001 = {
    "koordinator.sh/gpu.shared": "1",
    "koordinator.sh/gpu-memory": "1Gi",
    "koordinator.sh/gpu-core": "10",
    "metax-tech.com/sgpu": "1",
}
#: The numbers below /dev/dri that there are: of cards from 128, of slices as the stub gives them.
RENDERS = range(128, 320)
UNCORRECTED = 1


class MetaX:
    """`mode` and `more` are settings; slots are indices, and minors, too."""

    vendor = "metax"
    #: The variable of the setting visibleDevices.
    visible = "MACA_VISIBLE_DEVICES"
    #: Bytes of a card.
    memory = 64 << 30

    def __init__(self, directory: Path, count: int) -> None:
        self.stub = MxsmlStub(directory, count)
        self.mode = "native"
        self.more: Mapping[str, Any] = {}
        self._count = count
        self._root = directory / "host"
        self._sysfs = directory / "sys"
        self._make_nodes()
        for slot in range(count):
            self._make_sysfs(slot)

    def _make_nodes(self) -> None:
        dri = self._root / "dev/dri"
        dri.mkdir(parents=True)
        names = [
            "mxcd",
            *(f"dri/card{it}" for it in range(self._count)),
            *(f"dri/renderD{n}" for n in RENDERS),
        ]
        for name in names:
            (self._root / "dev" / name).symlink_to("/dev/null")  # a character device that nobody has to make

    def _make_sysfs(self, slot: int) -> None:
        bdf = self.stub.bdf(slot)
        drm = self._sysfs / "module/metax/drivers/pci:METAX" / bdf / "drm"
        device = self._sysfs / "bus/pci/devices" / bdf
        for path in (drm / f"card{slot}", drm / f"renderD{128 + slot}", device):
            path.mkdir(parents=True)
        (device / "numa_node").write_text(f"{slot % 2}\n")

    # As every hardware of the scenarios

    @property
    def settings(self) -> Mapping[str, Any]:
        own = {
            "mode": self.mode,
            "sysfs": str(self._sysfs),
            "containerDriverRoot": str(self._root),
            "visibleDevices": self.visible,
        }
        return {**self.stub.settings, "settings": {**own, **self.more}}

    @property
    def environment(self) -> Mapping[str, str]:
        return self.stub.environment

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(self.stub.uuid(slot) for slot in range(self._count))

    @property
    def watched(self) -> bool:
        return True

    def named(self, told: str) -> str:
        return told

    def fail(self, index: int) -> None:
        """Count an error that only a fresh start ends."""
        self.stub.ecc(index, dram=UNCORRECTED)

    def reset(self, index: int) -> None:
        self.stub.ecc(index)

    def unload(self) -> None:
        self.stub.driver_gone()
        (self._sysfs / "module").rename(self._sysfs / "unloaded")

    def load(self) -> None:
        """Load the driver anew: what it kept in mind is gone, slices too."""
        (self._sysfs / "unloaded").rename(self._sysfs / "module")
        self.stub.driver_reload()

    def segfault(self) -> None:
        self.stub.segv("GetDeviceCount")

    def hang(self) -> None:
        self.stub.hang("GetDeviceCount")

    def behave(self) -> None:
        self.stub.clear()

    # Slices

    @property
    def slices(self) -> list[Slice]:
        return self.stub.slices()

    def marked(self, allocation: str) -> list[Slice]:
        """Those of an allocation."""
        return [it for it in self.slices if it.alias == f"xpu-{allocation}"]

    def lose(self) -> None:
        """Take every slice away, also from under programs."""
        for it in self.slices:
            self.stub.vanish(it.slot, it.id)

    def policy(self, index: int) -> str:
        number = self.stub.hardware().classes.get(index, 0)
        return next(str(policy) for policy, its in SCHED_CLASSES.items() if its == number)

    def be(self, index: int, policy: str) -> None:
        """Let the card have been left with this policy."""
        self.stub.sched_class(index, next(its for name, its in SCHED_CLASSES.items() if name == policy))


async def plays_document_001(koordinator: Koordinator, metax: MetaX) -> None:
    """Its pod, from the Device to the slice, and until nothing of it is left."""
    node = koordinator.node
    device = await koordinator.api.device()
    assert device is not None
    labels = device["metadata"]["labels"]
    assert labels["node.koordinator.sh/gpu-vendor"] == "metax"
    assert labels["node.koordinator.sh/gpu-model"] == "C500"
    assert {it["resources"]["koordinator.sh/gpu-memory"] for it in device["spec"]["devices"]} == {"64Gi"}

    pod = await koordinator.binds("test-metax", DOCUMENT_001, annotations={POLICY: "fixed-share"})
    await eventually(lambda: _hears(koordinator, pod), PATIENCE)
    await node.admit_pod(pod)

    [promised] = koordinator.promised(pod)
    [made] = metax.slices
    assert metax.uuids[made.slot] == promised
    assert (made.vram, made.compute, metax.policy(made.slot)) == (1024, 10, "fixed-share")
    got = await gets(node, pod, "a")
    assert got.nodes == {"/dev/mxcd", f"/dev/dri/renderD{made.minor}"}
    assert got.env[metax.visible] == made.uuid
    await eventually(lambda: _told(koordinator, promised), PATIENCE)
    await koordinator.is_one_with_the_agent()
    await koordinator.ends(pod)
    await eventually(lambda: _empty(metax), PATIENCE)
    await eventually(lambda: _told(koordinator, promised, left=100), PATIENCE)


async def _hears(koordinator: Koordinator, pod: Pod) -> bool:
    """Whether the lock is written, without which nobody could free it."""
    return "hami.io/mutex.lock" in await koordinator.api.annotations()


async def _told(koordinator: Koordinator, uuid: str, left: int = 90) -> bool:
    """Whether the Node says so much compute is left of the card, and nobody's lock is there."""
    annotations = await koordinator.api.annotations()
    cards = json.loads(annotations.get("metax-tech.com/node-gpu-devices", "[]"))
    compute = {it["uuid"]: it.get("availableCompute", 0) for it in cards}
    return compute.get(uuid) == left and "hami.io/mutex.lock" not in annotations


async def _empty(metax: MetaX) -> bool:
    return not metax.slices

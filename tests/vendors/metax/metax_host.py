"""The host's files around MetaX's cards, and backends on the scripted library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxsml_stub import MINORS, MxsmlStub
from support import backend_process

from agent.vendor_api.agent import Device, Partition, Request
from agent.vendors.metax.agent.names import SGPU
from agent.vendors.metax.child.backend import MetaxBackend

MIB = 1 << 20
#: Allocations as the agent calls them.
OURS, OTHER, THIRD = "0123456789abcdef", "fedcba9876543210", "00112233aabbccdd"
PLACES = ("bus/pci/devices", "module/metax/drivers/pci:METAX")


class Host:
    """sysfs, /dev and a directory of the backend's own, for the first eight slots of the stub."""

    def __init__(self, directory: Path, stub: MxsmlStub) -> None:
        self.stub = stub
        self.sysfs, self.root = directory / "sys", directory / "host"
        self.directory = directory / "own"
        self.directory.mkdir()
        self._backends: list[MetaxBackend] = []
        self.make("/dev/mxcd")
        for slot in range(8):
            self.add(slot)
        for minor in range(MINORS, MINORS + 32):
            self.make(f"/dev/dri/renderD{minor}")

    def settings(self, **more: Any) -> dict[str, Any]:
        files = {"sysfs": str(self.sysfs), "containerDriverRoot": str(self.root)}
        return {**self.stub.settings, **files, **more}

    def backend(self, **more: Any) -> MetaxBackend:
        """One that does not wait long for nodes of slices, and is not open yet."""
        return self._made(self.settings(**more))

    def _made(self, settings: Mapping[str, Any]) -> MetaxBackend:
        backend = MetaxBackend(settings)
        backend.directory = self.directory
        backend.node_patience = 0.0
        self._backends.append(backend)
        return backend

    def close(self) -> None:
        for backend in self._backends:
            backend.close()

    def reopened(self, before: MetaxBackend) -> MetaxBackend:
        """What another process would have in place of this one; it has read its cards."""
        backend = self._made(before.settings)
        backend.open()
        backend.discover()
        return backend

    def add(self, slot: int) -> None:
        """Put a card in: card1 and renderD128 for slot 0, slots 0 to 3 on NUMA node 0."""
        bdf, numa = self.stub.bdf(slot), slot // 4
        device = self.sysfs / f"devices/pci0000:{numa}a/0000:{numa}a:00.0" / bdf
        (device / "drm" / f"card{slot + 1}").mkdir(parents=True)
        (device / "drm" / f"renderD{128 + slot}").mkdir()
        (device / "numa_node").write_text(f"{numa}\n")
        self._link(slot)
        self.make(f"/dev/dri/card{slot + 1}")
        self.make(f"/dev/dri/renderD{128 + slot}")

    def add_back(self, slot: int) -> None:
        self._link(slot)

    def remove(self, slot: int) -> None:
        for place in PLACES:
            (self.sysfs / place / self.stub.bdf(slot)).unlink()

    def _link(self, slot: int) -> None:
        bdf = self.stub.bdf(slot)
        [device] = self.sysfs.glob(f"devices/*/*/{bdf}")
        for place in PLACES:
            (self.sysfs / place).mkdir(parents=True, exist_ok=True)
            (self.sysfs / place / bdf).symlink_to(device)

    def no_driver(self) -> None:
        shutil.rmtree(self.sysfs / "module")

    def unload(self) -> None:
        """Unload the driver, which the library says, and sysfs shows."""
        self.stub.driver_gone()
        self.no_driver()

    def load(self) -> None:
        """Load it anew."""
        self.stub.driver_reload()
        folder = self.sysfs / PLACES[1]
        folder.mkdir(parents=True)
        for device in self.sysfs.glob("devices/*/*/*"):
            (folder / device.name).symlink_to(device)

    def make(self, node: str) -> None:
        """Make a device node: a link to one that every machine has, since not everybody may make some."""
        path = self.root / node.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.devnull)

    def unmake(self, node: str) -> None:
        (self.root / node.lstrip("/")).unlink()

    @property
    def journal(self) -> list[str]:
        """The names of the files in which something is begun."""
        return sorted(path.name for path in self.directory.glob("create-*"))


def in_a_process(host: Host, call: str, *arguments: Any, **settings: Any) -> int:
    """Open a backend in a process of its own and make the call; how the process ended."""
    wanted = host.settings(mode="sgpu", **settings)
    return backend_process.ended(MetaxBackend, wanted, host.directory, host.stub.environment, call, arguments)


#: The parameters of a claim on whole cards.
CARD: Mapping[str, str] = {"core": "100"}


def asked(said: Mapping[str, str] | None = None, *, count: int = 1, allocation: str = OURS) -> Request:
    """A request for `count` IDs, with what a scheduler said of it, if one did."""
    return Request(allocation, SGPU, tuple(f"id-{number}" for number in range(count)), said or {})


def claim(core: int = 10, gibibytes: int = 1, qos: str = "") -> dict[str, str]:
    """What koord-scheduler promised, with the pod's policy."""
    said = {"core": str(core), "memory": str(gibibytes << 30)}
    return {**said, "qos": qos} if qos else said


def by_uuid(devices: Any) -> Mapping[str, Device]:
    return {it.uuid: it for it in devices}


def marks(partitions: Any) -> list[str | None]:
    """Whose the slices are, in the order of the cards."""
    return [it.allocation for it in partitions if isinstance(it, Partition)]

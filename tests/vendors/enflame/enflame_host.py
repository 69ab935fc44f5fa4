"""The host's files around Enflame's cards, and backends on the scripted library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from efml_stub import EfmlStub
from enflame_tree import Tree
from support import backend_process

from agent.vendor_api.agent import Device, Partition, Request
from agent.vendors.enflame.child.backend import EnflameBackend

#: Allocations as the agent calls them.
OURS, OTHER, THIRD = "0123456789abcdef", "fedcba9876543210", "00112233aabbccdd"
DRS = "enflame.com/drs-gcu"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Host:
    """A node of the stub's cards; what a test changes on the stub counts from the first backend on."""

    def __init__(self, directory: Path, stub: EfmlStub) -> None:
        self.stub = stub
        self.clock = Clock()
        self._parent = directory
        self.directory = directory / "own"
        self.directory.mkdir(mode=0o700)
        self._tree: Tree | None = None
        self._backends: list[EnflameBackend] = []

    @property
    def tree(self) -> Tree:
        if self._tree is None:
            self._tree = Tree(self._parent / "node", self.stub)
        return self._tree

    def settings(self, **more: Any) -> dict[str, Any]:
        files = {"sysfs": str(self.tree.sysfs), "containerDriverRoot": str(self.tree.root)}
        return {**self.stub.settings, **files, "drs": True, **more}

    def backend(self, **more: Any) -> EnflameBackend:
        """One by the clock of this host, that looks at slices each time, and is not open yet."""
        backend = EnflameBackend(self.settings(**more))
        backend.directory = self.directory
        backend.clock = self.clock
        backend.period = 0.0
        self._backends.append(backend)
        return backend

    def opened(self, **more: Any) -> EnflameBackend:
        """One that has read its cards: what another process would have in place of one before."""
        backend = self.backend(**more)
        backend.open()
        backend.discover()
        return backend

    def close(self) -> None:
        for backend in self._backends:
            backend.close()

    @property
    def journal(self) -> list[str]:
        """The names of the files in which something of a card is written down."""
        return sorted(path.name for path in self.directory.glob("slices-*"))


def in_a_process(host: Host, call: str, *arguments: Any, **settings: Any) -> int:
    """Open a backend in a process of its own and make the call; how the process ended."""
    wanted = host.settings(**settings)
    return backend_process.ended(
        EnflameBackend, wanted, host.directory, host.stub.environment, call, arguments
    )


def asked(count: int = 1, *, allocation: str = OURS, **parameters: str) -> Request:
    """A request for so many slices, with what a scheduler said of it, if one did."""
    said = {name.replace("_", "-"): text for name, text in parameters.items()}
    return Request(allocation, DRS, tuple(f"id::{number}" for number in range(count)), said)


def plain(request: Request) -> dict[str, Any]:
    return asdict(request)


def uuid(slot: int) -> str:
    """As the backend calls the card."""
    return f"GCU-{EfmlStub.uuid(slot)}"


def by_uuid(devices: Iterable[Device]) -> Mapping[str, Device]:
    return {it.uuid: it for it in devices}


def marks(partitions: Iterable[Partition]) -> list[str | None]:
    """Whose the slices are, in the order of the cards."""
    return [it.allocation for it in partitions]

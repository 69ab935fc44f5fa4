"""Enflame's cards of a scenario: the compiled stub of their library, a double of their tool, their files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.vendors.enflame.agent.names import ENFLAME

sys.path.append(str(Path(__file__).parents[1] / "vendors" / "enflame"))

from efml_stub import EfmlStub, Instance
from enflame_tree import Tree

__all__ = ["DRS", "GCU", "MEMORY", "S60", "SHARED", "Enflame", "Instance"]

GCU, MEMORY, SHARED, DRS = ENFLAME.whole, ENFLAME.memory, ENFLAME.shared, ENFLAME.drs
#: MiB: of the cards in GCUShare's manual, and of an S60 as it is sold.
GB = 1024
S60 = 48 * GB
_DOUBLE_BIT = 1


class Enflame:
    """`dialect` and `more` are settings. Until these are read first, `stub` may be told of other cards.

    A card's minor is neither its index nor its slot, unless a test says so: slots 0, 1, 2, 3 of four cards
    are /dev/gcu1, 2, 3 and 0.
    """

    vendor = "enflame"
    visible = "ENFLAME_VISIBLE_DEVICES"

    def __init__(self, directory: Path, count: int) -> None:
        self.stub = EfmlStub(directory, count)
        self.dialect = "none"
        self.more: Mapping[str, Any] = {}
        #: Keys of the vendor beside its settings.
        self.said: Mapping[str, Any] = {}
        self._count = count
        self._directory = directory / "enflame"
        self._tree: Tree | None = None
        self.numbered(*((slot + 1) % count for slot in range(count)))

    def numbered(self, *minors: int) -> None:
        """Let the cards' nodes have these numbers."""
        for slot, minor in enumerate(minors):
            self.stub.minor(slot, minor)

    def sized(self, *mebibytes: int) -> None:
        """Let the cards have this much memory each."""
        for slot, size in enumerate(mebibytes):
            self.stub.memory(slot, size)

    @property
    def tree(self) -> Tree:
        if self._tree is None:
            self._tree = Tree(self._directory, self.stub)
        return self._tree

    # As every hardware of the scenarios

    @property
    def settings(self) -> Mapping[str, Any]:
        files = {"sysfs": str(self.tree.sysfs), "containerDriverRoot": str(self.tree.root)}
        stub = self.stub.settings
        own = {"dialect": self.dialect, "efsmi": stub["efsmi"], **files}
        return {"library": stub["library"], "settings": {**own, **self.more}, **self.said}

    @property
    def environment(self) -> Mapping[str, str]:
        return self.stub.environment

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(f"GCU-{self.stub.uuid(slot)}" for slot in range(self._count))

    @property
    def minors(self) -> tuple[int, ...]:
        return tuple(self.stub.card(slot).minor for slot in range(self._count))

    @property
    def watched(self) -> bool:
        return True

    def named(self, told: str) -> str:
        return self.uuids[self.minors.index(int(told))]

    def fail(self, index: int) -> None:
        """Count an error that only a fresh start ends."""
        self.stub.ecc(index, double=_DOUBLE_BIT)

    def reset(self, index: int) -> None:
        self.stub.ecc(index)

    def unload(self) -> None:
        self.stub.driver_gone()

    def load(self) -> None:
        self.stub.driver_reload()

    def segfault(self) -> None:
        self.stub.segv("EfmlGetDevCount")

    def hang(self) -> None:
        self.stub.hang("EfmlGetDevCount")

    def behave(self) -> None:
        self.stub.clear()

    # Slices

    @property
    def slices(self) -> list[Instance]:
        return self.stub.instances()

    def lose(self) -> None:
        """Take every slice away, also from under programs."""
        for it in self.slices:
            self.stub.vanish(it.uuid)

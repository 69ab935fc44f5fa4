"""A planted fault: an edit, why a user would be hurt, and the tests that must fail. `faults/` lists them."""

from __future__ import annotations

from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent / "faults"


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An edit is addressed by file, function and the code that it replaces, and by no line number.

    So the address goes along with the code: a move of the function changes `file` alone.
    """

    name: str
    #: Relative to the root of the tree.
    file: str
    #: The function or class with the names around it: `Ledger.release`.
    function: str
    #: Stands exactly once in the function.
    code: str
    #: What stands there instead.
    planted: str
    #: Why a user would be hurt, in one line.
    hurts: str
    #: Test files, or node IDs where a file is slow (`tests/test_x.py::test_y`); one of the tests must fail.
    caught_by: tuple[str, ...]
    #: The seed of the draw that chose the function; 0 where a person did.
    drawn: int = 0

    @property
    def module(self) -> str:
        """The name by which the file is imported."""
        return self.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


class _List(msgspec.Struct, forbid_unknown_fields=True):
    fault: list[Fault]


def faults(lists: Path = LISTS) -> tuple[Fault, ...]:
    """All that are listed, by list and in their order."""
    found = (msgspec.toml.decode(path.read_bytes(), type=_List) for path in sorted(lists.glob("*.toml")))
    return tuple(fault for listed in found for fault in listed.fault)

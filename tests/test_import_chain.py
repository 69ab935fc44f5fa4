"""No module lies behind more than eighteen imports, so that a reader can follow each to its end."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Modules in a row, each importing the next one.
LONGEST = 18


def modules() -> Mapping[str, Path]:
    """Module name to file, for all of agent/ but generated code."""
    paths = (path for path in (ROOT / "agent").rglob("*.py") if "pb" not in path.parts)
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules of ours that the file imports at its top level, without those for types alone."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            submodules = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in known else node.module for name in submodules)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_chain_of_imports_is_longer_than_eighteen_modules() -> None:
    known = modules()

    @cache
    def chain(module: str) -> tuple[str, ...]:
        followers = (name for name in imported(known[module], known) if name in known and name != module)
        return (module, *max(map(chain, followers), key=len, default=()))

    longest = max(map(chain, known), key=len)

    assert len(longest) <= LONGEST, " > ".join(longest)

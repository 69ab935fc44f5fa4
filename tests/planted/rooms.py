"""The rooms of agent/, and the draw of functions in which faults are to be planted."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .edit import definitions

#: The modules right below agent/ count as so many rooms, where there are so many.
LOOSE = 8
#: Generated from proto/.
GENERATED = "agent/kubelet/pb/"
#: A module without a function has no place for a fault.
DEFINES = re.compile(r"^ *(async )?def ", re.MULTILINE)
#: A long function is drawn more often than a short one, up to this number of lines.
LONGEST = 12
#: Rules are drawn more often than the rest: their mistakes hurt most.
CORE, CORE_WEIGHT = "agent/core/", 2


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the agent, and how many lines its body has."""

    file: str
    name: str
    lines: int

    @property
    def weight(self) -> int:
        return min(self.lines, LONGEST) * (CORE_WEIGHT if self.file.startswith(CORE) else 1)


def room(file: str) -> str:
    """The room that a file lies in."""
    return str(Path(file).parent)


def demanded(tree: Path) -> dict[str, int]:
    """Each room that has functions, to how many faults it must have at least."""
    there = Counter(room(file) for file, path in _files(tree) if DEFINES.search(path.read_text()))
    return {name: min(LOOSE, count) if name == "agent" else 1 for name, count in there.items()}


def drawn(tree: Path, seed: int, count: int) -> list[Function]:
    """So many functions, weighted, the same ones for the same seed and tree."""
    numbers = random.Random(seed)
    # The weighted draw without replacement of Efraimidis and Spirakis (2006).
    keyed = [(numbers.random() ** (1 / function.weight), function) for function in functions(tree)]
    chosen = sorted(keyed, key=lambda pair: pair[0], reverse=True)[:count]
    return sorted((function for _, function in chosen), key=lambda function: (function.file, function.name))


def functions(tree: Path) -> Iterator[Function]:
    """All functions of agent/ that somebody wrote, by file and place."""
    for file, path in _files(tree):
        for name, node in definitions(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef) and (lines := _lines(node)):
                yield Function(file, name, lines)


def _files(tree: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted((tree / "agent").rglob("*.py")):
        file = path.relative_to(tree).as_posix()
        if not file.startswith(GENERATED):
            yield file, path


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of the body without its docstring; 0 where it does nothing."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    body = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0

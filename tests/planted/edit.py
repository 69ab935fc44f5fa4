"""Finds the place of a fault by its function, and plants the fault there."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from .fault import Fault

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Unplaced(Exception):
    """Raised when an address leads nowhere, or to several places."""


def planted(tree: Path, fault: Fault) -> str:
    """The content of the file with the fault in it.

    Raises:
        Unplaced: There is no such file, function or code, or there are several, or the edit is no Python.
    """
    try:
        source = (tree / fault.file).read_text()
    except OSError as exc:
        raise Unplaced(
            f"{fault.name}: {fault.file}: {exc.strerror}; name the file that has the code now"
        ) from None
    found = _named(source).get(fault.function, ())
    if len(found) != 1:
        raise Unplaced(
            f"{fault.name}: {fault.file} has {len(found)} definitions of {fault.function}, not one"
        )
    lines = source.splitlines(keepends=True)
    first, last = found[0]
    before, text, after = "".join(lines[:first]), "".join(lines[first:last]), "".join(lines[last:])
    # Without the indentation of a class, which a function that moves may lose or get.
    flat = textwrap.dedent(text)
    indent = text[: len(text) - len(text.lstrip(" "))]
    if (count := flat.count(fault.code)) != 1:
        where = f"{fault.function} in {fault.file}"
        raise Unplaced(f"{fault.name}: the quoted code stands {count} times in {where}, not once")
    edited = flat.replace(fault.code, fault.planted)
    try:
        ast.parse(edited)
    except SyntaxError as exc:
        raise Unplaced(f"{fault.name}: with the edit {fault.function} is no Python: {exc}") from None
    return before + textwrap.indent(edited, indent) + after


@lru_cache(maxsize=256)  # many faults lie in one file
def _named(source: str) -> Mapping[str, Sequence[tuple[int, int]]]:
    """Each function and class by name, to its first line, counted from 0, and the one after its last."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, node in definitions(ast.parse(source)):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        found.setdefault(name, []).append((first, node.end_lineno or 0))
    return found


def definitions(node: ast.AST, around: str = "") -> Iterator[tuple[str, Definition]]:
    """Functions and classes with their names, those within others too (`outer.inner`)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield around + child.name, child
            yield from definitions(child, f"{around}{child.name}.")
        else:
            yield from definitions(child, around)

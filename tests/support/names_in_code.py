"""Identifiers and texts of source files, for rules on what a room may name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def said(path: Path) -> Iterator[str]:
    """Identifiers, modules and texts of a file, without its docstrings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [it.body[0] for it in ast.walk(tree) if isinstance(it, documented) and it.body]
    docstrings = {id(it.value) for it in bodies if isinstance(it, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        for field in ("id", "attr", "arg", "name", "asname", "module", "value"):
            if isinstance(text := getattr(node, field, None), str):
                yield text

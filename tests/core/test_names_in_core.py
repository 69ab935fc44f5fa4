"""The rules of agent/core hold for every vendor and scheduler: identifiers and texts name none of them.

Docstrings and comments may, since they say where a fact of the field comes from.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import agent.core

NAMES = re.compile(
    r"koord|hami|gcushare|gpu.?manager|tencent|enflame|topscloud|metax|nvidia|simulated|assigned-containers",
    re.IGNORECASE,
)
CORE = Path(agent.core.__path__[0])


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


def test_no_vendor_and_no_scheduler_is_named_in_the_rules() -> None:
    found = {
        f"{path.relative_to(CORE)}: {text}"
        for path in CORE.rglob("*.py")
        for text in said(path)
        if NAMES.search(text)
    }

    assert found == set()


def test_a_name_is_seen_as_identifier_as_module_and_as_text(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        '"""HAMi."""\nfrom agent.hami import x as metax\nclass Koordlet: ...\nit = f"{x} of NVIDIA"'
    )

    assert {it for it in said(file) if NAMES.search(it)} == {"agent.hami", "metax", "Koordlet", " of NVIDIA"}

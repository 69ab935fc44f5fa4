"""What the rules take of msgspec: frozen values, and no codec."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "agent" / "core"
#: By module of msgspec.
VALUES = {"msgspec": {"Struct", "field", "structs"}, "msgspec.structs": {"replace"}}


def other_uses(source: str) -> list[str]:
    """What a module takes of msgspec besides values."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names if alias.name.startswith("msgspec"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("msgspec"):
            values = VALUES.get(node.module or "", set())
            found += (alias.name for alias in node.names if alias.name not in values or alias.asname)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [f"structs.{node.attr}"] if node.value.id == "structs" and node.attr != "replace" else []
        elif isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Struct" for base in node.bases):
            frozen = any(word.arg == "frozen" and ast.unparse(word.value) == "True" for word in node.keywords)
            found += [] if frozen else [f"a mutable Struct {node.name}"]
    return found


def test_rules_take_frozen_values_of_msgspec_and_no_codec() -> None:
    uses = {path.relative_to(CORE).as_posix(): other_uses(path.read_text()) for path in CORE.rglob("*.py")}

    assert {path: found for path, found in uses.items() if found} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import msgspec",
        "import msgspec.json",
        "from msgspec import json",
        "from msgspec.structs import asdict",
        "from msgspec import Struct as S",
        "from msgspec import structs\nstructs.asdict(1)",
        "from msgspec import Struct\nclass Value(Struct): ...",
    ],
)
def test_each_other_use_is_seen(source: str) -> None:
    assert other_uses(source)

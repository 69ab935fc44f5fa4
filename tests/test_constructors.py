"""A part takes few objects, and the composition joins the parts without knots."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

AGENT = Path(__file__).parents[1] / "agent"

#: Parameters that a constructor may have; fields of frozen values are not counted.
MOST = 8
#: Functions in the composition that may reach for a part by name once they are called.
LAMBDAS = 3


def constructors(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each class with an `__init__` of its own, and how many parameters that has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for function in node.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    given = function.args
                    yield node.name, len(given.posonlyargs + given.args + given.kwonlyargs) - 1


def test_no_constructor_has_more_than_eight_parameters() -> None:
    too_long = {
        name
        for path in AGENT.rglob("*.py")
        if "pb" not in path.parts
        for name, count in constructors(ast.parse(path.read_text()))
        if count > MOST
    }

    assert too_long == set()


def test_a_constructor_s_parameters_are_counted_without_self() -> None:
    tree = ast.parse("class A:\n    def __init__(self, a, /, b, *, c): ...\nclass B: ...\n")

    assert [*constructors(tree)] == [("A", 3)]


def test_the_composition_joins_parts_and_hardly_any_functions() -> None:
    tree = ast.parse((AGENT / "daemon" / "composition.py").read_text())

    assert sum(isinstance(node, ast.Lambda) for node in ast.walk(tree)) <= LAMBDAS

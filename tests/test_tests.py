"""Tests reach into no part of the agent that they do not test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
AGENT = TESTS.parent / "agent"

#: Dunder names, and those of a namedtuple that are public, are none.
PRIVATE = re.compile(r"_(?!replace$|asdict$|fields$|make$)[a-zA-Z]\w*")
#: What may hold an access; the others need no parsing.
SUSPECT = re.compile(r"""\._[a-zA-Z]|import .*\b_[a-zA-Z]|['"]_[a-zA-Z]|^    _[a-zA-Z]\w*,$""", re.MULTILINE)
#: They read or replace an attribute by its name.
BY_NAME = ("setattr", "getattr", "delattr", "hasattr")


def touched(source: str) -> frozenset[str]:
    """The private names of other objects than `self` that a file reads, replaces or imports."""
    return frozenset(name for node in ast.walk(ast.parse(source)) for name in _touched(node))


def _touched(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
            return
        case ast.Call(args=[ast.Name(id="self" | "cls"), *_]):
            return
        case ast.Attribute(attr=name):
            found = [name]
        case ast.ImportFrom(module=str(module), names=aliases) if module.partition(".")[0] == "agent":
            found = [it.name for it in aliases]
        case ast.Call(func=ast.Name(id=call) | ast.Attribute(attr=call), args=args) if call in BY_NAME:
            texts = [it.value for it in args if isinstance(it, ast.Constant) and isinstance(it.value, str)]
            found = [part for text in texts for part in text.split(".")]
        case _:
            return
    yield from filter(PRIVATE.fullmatch, found)


def defined(source: str) -> frozenset[str]:
    """The private names that a module gives to itself, to its classes and to their objects."""
    return frozenset(
        name for node in ast.walk(ast.parse(source)) for name in _defined(node) if PRIVATE.fullmatch(name)
    )


def _defined(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


@cache
def definers() -> Mapping[str, frozenset[Path]]:
    """Private name to the modules that define it, below `agent`."""
    found: dict[str, set[Path]] = {}
    for path in AGENT.rglob("*.py"):
        for name in defined(path.read_text()):
            found.setdefault(name, set()).add(path.relative_to(AGENT))
    return {name: frozenset(paths) for name, paths in found.items()}


def is_tested_by(test: str, module: Path) -> bool:
    """Whether a test file has the module's name: alone, or after the names of rooms that the module is in."""
    *rooms, name = [*module.parts[:-1], module.stem] if module.stem != "__init__" else module.parts[:-1]
    *before, last = _words(test, name)
    return last == name and set(before) <= set(rooms)


def _words(test: str, name: str) -> list[str]:
    """The words of a test file's name; those of the module's are one."""
    stem = test.removeprefix("test_").removesuffix(".py")
    if stem == name or not stem.endswith(f"_{name}"):
        return [stem]
    return [*stem.removesuffix(f"_{name}").split("_"), name]


def reached(test: str, source: str) -> set[str]:
    """The private names of the agent in a file that tests none of the modules that define them."""
    return {
        name
        for name in touched(source)
        if (modules := definers().get(name)) and not any(is_tested_by(test, it) for it in modules)
    }


def test_no_test_reaches_into_a_part_that_it_does_not_test() -> None:
    found = {
        (str(path.relative_to(TESTS)), name)
        for path in TESTS.rglob("*.py")
        if SUSPECT.search(source := path.read_text())
        for name in reached(path.name, source)
    }

    assert sorted(found) == []


@pytest.mark.parametrize(
    "source",
    [
        "from agent.core.attribution.pod_attribution import _explain_uncertainty",
        "from agent.core.attribution.pod_attribution import (\n    _explain_uncertainty,\n)",
        "pod_attribution._explain_uncertainty()",
        "room.allocator._scene = scene",
        "monkeypatch.setattr(allocator, '_scene', scene)",
        "monkeypatch.setattr('agent.daemon.allocation.allocator.Allocator._scene', scene)",
        "getattr(allocator, '_scene')",
    ],
)
def test_an_access_is_seen(source: str) -> None:
    assert SUSPECT.search(source)
    assert reached("test_other.py", source)
    assert not reached("test_allocator.py" if "_scene" in source else "test_pod_attribution.py", source)


@pytest.mark.parametrize(
    "source",
    [
        "self._scene",
        "super()._scene()",
        "getattr(self, '_scene', None)",
        "it.__dict__",
        "from agent.core.allocation import container_edit_checks",
        "sys._getframe()",
        "PodRef._replace(name='a')",
    ],
)
def test_what_is_no_access_is_not_seen(source: str) -> None:
    assert not reached("test_other.py", source)


@pytest.mark.parametrize(
    ("test", "module", "expected"),
    [
        ("test_allocator.py", "core/allocator.py", True),
        ("test_core_allocator.py", "core/allocator.py", True),
        ("test_enflame_library.py", "vendors/enflame/library.py", True),
        ("test_enflame_library.py", "vendors/metax/library.py", False),
        ("test_device_plugins.py", "doctor/device_plugins.py", True),
        ("test_doctor_device_plugins.py", "doctor/device_plugins.py", True),
        ("test_cli.py", "cli/__init__.py", True),
        ("test_allocator_starts.py", "core/allocator.py", False),
        ("room.py", "core/allocator.py", False),
    ],
)
def test_a_test_names_the_module_that_it_tests(test: str, module: str, expected: bool) -> None:
    assert is_tested_by(test, Path(module)) is expected


# Time


def slept(tree: ast.AST, looping: bool = False) -> Iterator[int]:
    """The lines that sleep for a time, and not between two looks of a loop."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from slept(node)
            case ast.While() | ast.For() | ast.AsyncFor():
                yield from slept(node, looping=True)
            case ast.Call(func=ast.Attribute(attr="sleep"), args=[its]) if not looping and not _is_zero(its):
                yield node.lineno
            case _:
                yield from slept(node, looping)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def test_no_test_sleeps_for_a_time_instead_of_waiting_for_a_condition() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("test_*.py")
        if "sleep(" in (source := path.read_text())
        for line in slept(ast.parse(source))
    ]

    assert sorted(found) == []


def test_a_sleep_is_seen_unless_it_stands_in_a_loop_or_takes_no_time() -> None:
    bad = "async def test():\n    await anyio.sleep(0.1)\n"
    fine = "def test():\n    time.sleep(0)\n    while not done():\n        time.sleep(0.1)\n"

    assert [*slept(ast.parse(bad))] == [2]
    assert [*slept(ast.parse(fine))] == []

"""Rules of the house for `agent/`: one class a name, no pronoun as a name, and plain words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRONOUNS = frozenset({"it", "its"})
#: Words that a reader has to turn over.
BANNED = re.compile(r"\b(can not|nobody)\b", re.IGNORECASE)
Scope = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda


def sources(folder: str = "agent") -> list[Path]:
    """The modules below the folder, without generated ones."""
    found = (path.relative_to(ROOT) for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in found if "pb" not in path.parts]


def is_below(path: Path, *folders: str) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), str(path))


def bound(node: ast.AST) -> Iterator[str]:
    """The name that the node binds, if it binds one."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.MatchAs(name=str(name)):
            yield name
        case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name


def pronouns(module: ast.Module) -> Iterator[int]:
    """The lines that make a pronoun a name elsewhere than in a comprehension or lambda of one line."""
    short = (it for it in ast.walk(module) if isinstance(it, Scope) and it.lineno == it.end_lineno)
    allowed = {id(node) for scope in short for node in ast.walk(scope)}
    for node in ast.walk(module):
        if id(node) not in allowed and not PRONOUNS.isdisjoint(bound(node)):
            yield getattr(node, "lineno", 0)


#: The literal parts of an f-string, which are tokens of their own from Python 3.12 on.
FSTRING = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)


def banned(text: str) -> Iterator[int]:
    """The lines of strings and comments that have a banned word."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, FSTRING):
            for found in BANNED.finditer(token.string):
                yield token.start[0] + token.string.count("\n", 0, found.start())


def offences(path: Path) -> list[str]:
    """Where a module breaks the rules of words, as `file:line: rule`."""
    return [
        *(f"{path}:{line}: a pronoun is a name" for line in pronouns(tree(path))),
        *(f"{path}:{line}: a banned word" for line in banned((ROOT / path).read_text())),
    ]


def test_no_class_name_stands_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sources():
        classes = (node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef))
        for node in () if is_below(path, "agent/vendors", "agent/testing") else classes:
            places[node.name].append(f"{path}:{node.lineno}")

    assert {name: at for name, at in places.items() if len(at) > 1} == {}


def test_things_are_called_by_their_nouns_and_in_plain_words() -> None:
    assert [offence for path in sources() for offence in offences(path)] == []


@pytest.mark.parametrize(
    "code",
    [
        "for it in found: pass",
        "def f(it): pass",
        "its = 1",
        "with open(a) as it: pass",
        "match a:\n    case [it]: pass",
        "[it\n for it in found]",
        "import a as it",
    ],
)
def test_a_pronoun_is_seen_wherever_it_becomes_a_name(code: str) -> None:
    assert [*pronouns(ast.parse(code))] != []


@pytest.mark.parametrize("code", ["[it for it in found]", "sorted(found, key=lambda it: it.name)", "it.name"])
def test_a_pronoun_may_be_the_name_in_one_line(code: str) -> None:
    assert [*pronouns(ast.parse(code))] == []


@pytest.mark.parametrize("code", ['"""Asks\n\nnobody."""', "a = f'{a} can not'", "a = 1  # Nobody"])
def test_a_banned_word_is_seen_in_strings_and_comments(code: str) -> None:
    assert [*banned(code)] != []

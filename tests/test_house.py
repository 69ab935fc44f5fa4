"""Rules of the house: in `agent/` one class a name, and no pronoun as a name; plain words also in pages."""

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
#: Words that a reader has to turn over, in strings and comments.
BANNED = re.compile(
    r"\b(can\s+not|nobody|whoever|of\s+which|those\s+who|to\s+and\s+fro|askers?|dealings?|lookouts?|lying"
    r"|neighbours?|rivals?|strangers?|telling|witness(?:es)?|ours|somebody|anybody|anew|heed\w*)\b",
    re.IGNORECASE,
)
#: No page has these words either: things are not persons, and each thing has its name from the glossary.
BANNED_IN_PAGES = re.compile(rf"{BANNED.pattern}|\b(who|whom|whose|theirs|ailments?|unheeded)\b", re.I)
#: A person may be `who`.
OF_PERSONS = re.compile(r"\b(people|persons?|operators?|readers?|users?|authors?)\s+(who|whose)\b", re.I)
#: The parts of a page that are no prose: fenced code, comments, inline code, and the targets of links.
NO_PROSE = re.compile(r"^ *```.*?^ *```|<!--.*?-->|`[^`]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
#: Words that no name has: the glossary has a term for each.
BANNED_IN_NAMES = frozenset(
    {
        *("ailment", "dealing", "dealings", "lookout", "lying", "neighbour", "neighbours", "nobody", "rival"),
        *("rivals", "stranger", "strangers", "telling", "unheeded", "whoever", "witness", "witnesses"),
    }
)
#: Names that stay because the JSON of `inspect` has them as keys.
KEPT_NAMES = {"agent/http/inspect_document.py": ["unheeded"]}
#: Texts that stay: a key of a file on disk, and the name of a finding.
KEPT_TEXTS = frozenset({'"ours"', '"choice-not-heeded"'})
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


def words(name: str) -> set[str]:
    """The words of a name in any style, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def private_names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the name of each binding, attribute, function and class that has a banned word."""
    for node in ast.walk(module):
        names = [*bound(node)]
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()):
                names.append(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
        for name in names:
            if not BANNED_IN_NAMES.isdisjoint(words(name)):
                yield getattr(node, "lineno", 0), name


#: The literal parts of an f-string, which are tokens of their own from Python 3.12 on.
FSTRING = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)


def banned(text: str) -> Iterator[int]:
    """The lines of strings and comments that have a banned word."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, FSTRING) and token.string not in KEPT_TEXTS:
            for found in BANNED.finditer(token.string):
                yield token.start[0] + token.string.count("\n", 0, found.start())


def pages() -> list[Path]:
    """The texts for readers: pages, fragments of the changelog, and the files that deploy the agent."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "changelog.d").glob("*.md")]
    for folder in ("docs", "agent"):
        found += (ROOT / folder).rglob("*.md")
    for kind in ("*.yaml", "*.tpl", "*.txt", "*.sh", "Containerfile"):
        found += (path for path in (ROOT / "deploy").rglob(kind) if path.parent.name != "crd")
    return sorted(path.relative_to(ROOT) for path in found)


def banned_in_page(text: str) -> Iterator[int]:
    """The lines of a page's prose that have a banned word, also one that goes over the end of a line."""
    for no_prose in (NO_PROSE, OF_PERSONS):
        text = no_prose.sub(lambda found: re.sub(r"\S", "-", found[0]), text)
    for found in BANNED_IN_PAGES.finditer(text):
        yield text.count("\n", 0, found.start()) + 1


def offences(path: Path) -> list[str]:
    """Where a module breaks the rules of words, as `file:line: rule`."""
    kept = KEPT_NAMES.get(path.as_posix(), [])
    private = [(line, name) for line, name in private_names(tree(path)) if name not in kept]
    return [
        *(f"{path}:{line}: a pronoun is a name" for line in pronouns(tree(path))),
        *(f"{path}:{line}: the name {name} has a banned word" for line, name in private),
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


def test_pages_are_in_plain_words() -> None:
    texts = {path: (ROOT / path).read_text() for path in pages()}

    assert [f"{path}:{line}" for path, text in texts.items() for line in banned_in_page(text)] == []


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("# Cards\n\nA card that nobody has.\n", [3]),
        ("| a card | can not be had |\n", [1]),
        ("The card, of\nwhich a pod has all, and the card can\n  not be had.", [1, 2]),
        ("- a pod whose card is gone\n- who asks", [1, 2]),
        ("`a` is ours, `b` is theirs", [1, 1]),
        ("[a stranger](page.md#ours)", [1]),
        ("```\ncode\n```\nStrangers\n```\ncode\n```\n", [4]),
    ],
)
def test_a_banned_word_is_seen_in_the_prose_of_a_page(page: str, lines: list[int]) -> None:
    assert [*banned_in_page(page)] == lines


@pytest.mark.parametrize(
    "page",
    [
        "`nobody_has_it` and [a page](nobody.md#whose)",
        "- a list\n\n  ```yaml\n  ours: whose\n  ```\n",
        "<!-- made: of strangers -->",
        "Operators who ask, and people\nwho bring a vendor",
    ],
)
def test_code_links_and_persons_are_no_offence(page: str) -> None:
    assert [*banned_in_page(page)] == []


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


@pytest.mark.parametrize("text", ["a claim of which cards", "a Stranger's file", "to and fro", "witnesses"])
def test_each_form_of_a_banned_word_is_seen(text: str) -> None:
    assert [*banned(f"# {text}")] != []


@pytest.mark.parametrize(
    "code",
    [
        "def _lying(): pass",
        "class OtherRivals: pass",
        "self._strangers = 1",
        "def f(witness): pass",
        "[dealing for dealing in found]",
        "TELLING_NODES = 1",
        "import a as neighbours",
    ],
)
def test_a_banned_word_is_seen_in_every_kind_of_name(code: str) -> None:
    assert [*private_names(ast.parse(code))] != []


@pytest.mark.parametrize("code", ["underlying = 1", "arrivals = 1", "a.unheeded", "def retelling(): pass"])
def test_a_word_that_only_contains_a_banned_one_and_a_use_are_no_offence(code: str) -> None:
    assert [*private_names(ast.parse(code))] == []


def test_each_name_that_is_kept_is_still_there() -> None:
    found = {
        path.as_posix(): [name for _, name in private_names(tree(path))]
        for path in sources()
        if path.as_posix() in KEPT_NAMES
    }

    assert found == KEPT_NAMES

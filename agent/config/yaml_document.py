"""Reads YAML 1.2, and so JSON, into nodes that know their lines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import yaml

from agent.config.location import refused
from agent.vendor_api.config_inputs import Path, YamlNode
from agent.vendor_api.text import shorten

MAX_BYTES = 1 << 20
MAX_DEPTH = 40
#: A megabyte of `[a,a,a` would take ten seconds to read.
MAX_VALUES = 50_000

_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
# YAML 1.2 reads 010 as ten, 1.1 as eight; it is ambiguous, and so stays a text.
_INT = re.compile(r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(
    r"(?:[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
)
#: The parser's error where a bracket follows text in a flow value: [/dev/x{minor}].
_BRACKET = re.compile(r"got '[{\[]'\Z")
#: Plain scalars of the YAML 1.2 core schema; the first match applies: (tag, pattern, first characters).
SCALARS = (
    (f"{_TAG}null", _NULL, ["~", "n", "N", ""]),
    (f"{_TAG}bool", _BOOL, list("tTfF")),
    (f"{_TAG}int", _INT, list("-+0123456789")),
    (f"{_TAG}float", _FLOAT, list("-+.0123456789")),
)


class _Loader(yaml.SafeLoader):
    """Composes nodes by the YAML 1.2 core schema; refuses aliases and deep nesting early."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]
    depth = 0
    values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem=f"the alias *{shorten(event.anchor, 30)} is not read here; write the value out",
                problem_mark=event.start_mark,
            )
        self.values += 1
        if self.depth >= MAX_DEPTH or self.values > MAX_VALUES:
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]
            deep = self.depth >= MAX_DEPTH
            problem = (
                f"nested more than {MAX_DEPTH} levels deep" if deep else f"more than {MAX_VALUES} values"
            )
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _pattern, _first in SCALARS:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)


def read(text: str, source: str) -> YamlNode:
    """Read one document that is a mapping; an empty document is an empty mapping.

    Raises:
        ConfigError: The document is too large, not well-formed, or no mapping.
    """
    root = value(text, source)
    if root.value is None:
        return YamlNode({}, 1)
    if not isinstance(root.value, Mapping):
        raise refused(source, root.line, (), "expected a mapping of keys such as 'agent' and 'vendors'")
    return root


def value(text: str, source: str) -> YamlNode:
    """Read one document of any kind; an empty document has the value None.

    Raises:
        ConfigError: The document is too large, or not well-formed.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise refused(source, None, (), f"larger than {MAX_BYTES} bytes; a configuration is a few kilobytes")
    try:
        loader = _Loader(_expand_spaces(text))
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise refused(source, line, (), _problem(error)) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise refused(source, None, (), f"not YAML: {shorten(str(error), 200)}") from None
    return YamlNode(None, 1) if root is None else _node(root, _line(root), source, ())


def _expand_spaces(text: str) -> str:
    """JSON may be indented by tabs, which YAML forbids; JSON strings cannot contain raw tabs."""
    text = text.removeprefix("\ufeff")
    if "\t" not in text or not text.lstrip().startswith("{"):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


def _problem(error: yaml.MarkedYAMLError) -> str:
    parts = [part for part in (error.context, error.problem) if part]
    hint = "; a text with { } or [ ] needs quotes here" if _BRACKET.search(error.problem or "") else ""
    return shorten(", ".join(parts) or "not YAML", 200) + hint


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _node(node: yaml.Node, line: int, source: str, path: Path) -> YamlNode:
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
        return YamlNode(_mapping(node, source, path), line)
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
        items = (_node(child, _line(child), source, (*path, index)) for index, child in enumerate(node.value))
        return YamlNode(tuple(items), line)
    if isinstance(node, yaml.ScalarNode):
        try:
            return YamlNode(_scalar(node.tag, node.value), line)
        except ValueError as error:
            raise refused(source, line, path, str(error)) from None
    raise refused(source, line, path, f"the tag {shorten(node.tag, 60)} is not read here; remove it")


def _mapping(node: yaml.MappingNode, source: str, path: Path) -> Mapping[str, YamlNode]:
    children: dict[str, YamlNode] = {}
    for key, child in node.value:
        line = _line(key)
        if not isinstance(key, yaml.ScalarNode):
            raise refused(source, line, path, "a key must be a plain word")
        name = _text_at(key, source, path)
        if name in children:
            raise refused(
                source,
                line,
                (*path, name),
                f"the key is here twice; the first is in line {children[name].line}",
            )
        children[name] = _node(child, line, source, (*path, name))
    return children


def _text_at(key: yaml.ScalarNode, source: str, path: Path) -> str:
    try:
        return _text(key.value)
    except ValueError as error:
        raise refused(source, _line(key), path, str(error)) from None


def _scalar(tag: str, text: str) -> bool | int | float | str | None:
    """The value of a scalar; an explicit tag must fit its text.

    Raises:
        ValueError: The tag does not fit.
    """
    match tag.removeprefix(_TAG):
        case "str":
            return _text(text)
        case "null" if _NULL.match(text):
            return None
        case "bool" if _BOOL.match(text):
            return text.lower() == "true"
        case "int" if _INT.match(text):
            return _whole(text)
        case "float" if _FLOAT.match(text):
            return _real(text)
    raise ValueError(f"the tag {shorten(tag, 60)} does not fit '{shorten(text, 60)}'; remove it")


def _text(text: str) -> str:
    # JSON writes a character above U+FFFF as two escapes.
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError(f"the text '{shorten(text, 60)}' holds half a character") from None


def _whole(text: str) -> int:
    number = int(text[:40], 0) if text[:2] in ("0x", "0o") else int(text[:40])
    if len(text) > 40 or not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"the number {shorten(text, 30)} does not fit into 64 bits")
    return number


def _real(text: str) -> float:
    number = math.nan if text[-1] in "fFnN" else float(text)  # .inf, .nan
    if not math.isfinite(number):
        raise ValueError(f"'{shorten(text, 30)}' is not a finite number; quote it if a text is meant")
    return number


def merge(under: YamlNode, over: YamlNode) -> YamlNode:
    """Lay `over` on `under`: mappings merge, everything else is replaced."""
    if not isinstance(under.value, Mapping) or not isinstance(over.value, Mapping):
        return over
    merged = dict(under.value)
    for key, child in over.value.items():
        merged[key] = merge(merged[key], child) if key in merged else child
    return YamlNode(merged, over.line)

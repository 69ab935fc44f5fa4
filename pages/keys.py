"""Every key of our config file with its type, its default and its meaning, from the shapes that read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from agent.config import FLAGS, refused_keys
from agent.config.given_flags import variable
from agent.config.location import camel
from agent.config.own_document import KEYS
from agent.config.schema import is_size
from agent.config.settings import Config, Ratio
from pages.meanings import MEANINGS
from pages.table import code, table

#: Keys that `nodes.py` reads by hand.
_BY_HAND = (
    ("nodes.match", "mapping"),
    ("nodes.match.names", "list of texts"),
    ("nodes.match.labels", "mapping of texts"),
    ("nodes.set", "mapping"),
)
_TYPES = {int: "whole number", float: "time", str: "text", Path: "path", Ratio: "number"}
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (10**6, "MB"), (10**3, "kB"))


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its path with dots, and the cells of its row."""

    path: str
    type: str
    default: str

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]


def keys() -> Iterator[Key]:
    """All of them; those of one mapping in the order of its shape."""
    yield Key("version", "text", code("v1"))
    hints = get_type_hints(Config)
    for name in KEYS:
        yield Key(name, "mapping" if name in hints else "list", "")
    for path, shape in shapes():
        yield from _keys(shape, path)
    for path, kind in _BY_HAND:
        yield Key(path, kind, "")


def key_table(parent: str) -> Iterator[str]:
    """The table of what this mapping may hold; with `top` that of the whole file."""
    held = [it for it in keys() if it.parent == ("" if parent == "top" else parent)]
    if not held:
        raise ValueError(f"no key of our file holds keys under {parent!r}")
    rows = ((code(it.name), it.type, it.default, MEANINGS[it.path]) for it in held)
    yield from table(("key", "type", "default", "meaning"), rows)


def flag_table() -> Iterator[str]:
    """The flags that set a key, and their variables."""
    rows = ((code(f"--{flag}"), code(variable(flag)), code(key)) for flag, key in FLAGS.items())
    yield from table(("flag", "variable", "key"), rows)


def shapes() -> Iterator[tuple[str, Any]]:
    """Every mapping whose keys a shape reads: its path and the shape."""
    hints = get_type_hints(Config)
    for name in KEYS:
        if name in hints:
            shape, path = _inner(hints[name], name)
            yield from _shapes(shape, path)


def _shapes(shape: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, shape
    for name, hint in get_type_hints(shape).items():
        at = f"{path}.{camel(name)}"
        inner, _ = _inner(hint, at)
        if is_dataclass(inner):
            yield from _shapes(inner, at)


def _keys(shape: Any, path: str) -> Iterator[Key]:
    hints = get_type_hints(shape)
    for field in fields(shape):
        size, at = is_size(shape, field.name), f"{path}.{camel(field.name)}"
        kind = "size" if size else _type(shape, at, hints[field.name])
        plain = hints[field.name] is Ratio
        yield Key(at, kind, code(str(field.default)) if plain else _default(field, size=size))


def _inner(hint: Any, path: str) -> tuple[Any, str]:
    """The shape within a list or a mapping of shapes."""
    if get_origin(hint) is tuple:
        return get_args(hint)[0], path
    if _is_mapping(hint):
        return get_args(hint)[1], f"{path}.NAME"
    return hint, path


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _type(shape: type, path: str, hint: Any) -> str:
    *most, last = _choices(shape, path, hint)
    return f"{', '.join(most)} or {last}" if most else last


def _choices(shape: type, path: str, hint: Any) -> Iterator[str]:
    """What may stand there; of a Literal what this release serves."""
    if hint is bool:
        yield from (code("true"), code("false"))
    elif get_origin(hint) is Literal:
        unserved = refused_keys.VALUES.get((shape, path.rpartition(".")[2]), ())
        yield from (code(it) for it in get_args(hint) if it not in unserved)
    elif get_origin(hint) in (UnionType, Union):
        for it in get_args(hint):
            yield from () if it is NoneType else _choices(shape, path, it)
    else:
        yield _TYPES.get(hint, "list" if get_origin(hint) is tuple else "mapping")


def _default(field: Any, *, size: bool) -> str:
    if field.default is MISSING and field.default_factory is MISSING:
        return "needed"
    value = field.default if field.default is not MISSING else field.default_factory()
    if is_dataclass(value) or value is None:
        return ""
    return code(_sized(value) if size else _written(value))


def _written(value: Any) -> str:
    """The value as the file writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value / 60:g}m" if value >= 300 else f"{value:g}s"
    if isinstance(value, Mapping):
        return "{}"
    return "[]" if value == () else str(value) or '""'


def _sized(value: int) -> str:
    return next((f"{value // base}{unit}" for base, unit in _UNITS if value % base == 0), str(value))

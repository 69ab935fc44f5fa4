"""Turns a document into frozen values: strict keys and types, and every error with its place."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path as FilePath
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from agent.config import refused_keys
from agent.config.location import camel, refused
from agent.config.settings import (
    AgentSettings,
    IdleSettings,
    LimitExceededSettings,
    LogSettings,
    Ratio,
    ReconcileSettings,
    UsageSettings,
    VendorSettings,
)
from agent.core.devices.health_thresholds import HealthThresholds
from agent.vendor_api.agent import Sharing
from agent.vendor_api.config_inputs import Path, YamlNode, found, nearest

T = TypeVar("T")

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1000), ("b", 1000), ("i", 1024), ("ib", 1024))
}
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"([0-9]{1,15}) ?([A-Za-z]{0,3})")


def build(shape: type[T], node: YamlNode, source: str, path: Path = ()) -> T:
    """Make a value of the class `shape`. A key without a value counts as absent.

    Raises:
        ConfigError: There is an unknown key, a key of a later release, or a value of the wrong type.
    """
    children = mapping(node, source, path)
    hints = get_type_hints(shape)
    names = {camel(field.name): field.name for field in fields(shape)}  # type: ignore[arg-type]
    refuse_unknown_keys(shape, children, names, source, path)
    values = {
        names[key]: _field(shape, names[key], hints[names[key]], child, source, (*path, key))
        for key, child in children.items()
        if child.value is not None
    }
    for field in fields(shape):  # type: ignore[arg-type]
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise refused(source, node.line, path, f"needs the key '{camel(field.name)}'")
    return shape(**values)


def vendors(node: YamlNode, source: str, shape: type[T], path: Path = ("vendors",)) -> Mapping[str, T]:
    """The value of the key `vendors`: one `shape` for each vendor's name."""
    children = mapping(node, source, path)
    return {name: build(shape, child, source, (*path, name)) for name, child in children.items()}


def refuse_unknown_keys(
    shape: type, children: Mapping[str, YamlNode], names: Mapping[str, str], source: str, path: Path
) -> None:
    """Refuse keys that are unknown, or not served yet."""
    for key, child in children.items():
        if key in names:
            continue
        why = refused_keys.key(shape, key)
        if why is not None:
            raise refused(source, child.line, (*path, key), why)
        raise refused(source, child.line, (*path, key), f"unknown key; {nearest(key, names)}")


def mapping(node: YamlNode, source: str, path: Path) -> Mapping[str, YamlNode]:
    """The node's keys; none if the node is empty."""
    if node.value is None:
        return {}
    if not isinstance(node.value, Mapping):
        raise refused(source, node.line, path, f"expected a mapping of keys, found {found(node.value)}")
    return node.value


def sequence(node: YamlNode, source: str, path: Path) -> tuple[YamlNode, ...]:
    """The node's items; none if the node is empty."""
    if node.value is None:
        return ()
    if not isinstance(node.value, tuple):
        raise refused(source, node.line, path, f"expected a list, found {found(node.value)}")
    return node.value


def _field(shape: type, name: str, hint: Any, node: YamlNode, source: str, path: Path) -> Any:
    if is_dataclass(hint):
        return build(hint, node, source, path)  # type: ignore[arg-type]
    item = _item_shape(hint)
    if item is not None:
        nodes = sequence(node, source, path)
        return tuple(build(item, child, source, (*path, index)) for index, child in enumerate(nodes))
    why = refused_keys.value(shape, str(path[-1]), node.value)
    if why is not None:
        served = refused_keys.served(shape, str(path[-1]), _choices(hint))
        raise refused(source, node.line, path, f"{why}; {served}")
    return convert(hint, node, source, path, _READ.get((shape, name)))


def convert(hint: Any, node: YamlNode, source: str, path: Path, read: Any = None) -> Any:
    """A value without keys of its own, of exactly the type `hint`."""
    try:
        value = node.plain()
        return msgspec.convert(read(value) if read else value, hint, dec_hook=_custom)
    except msgspec.ValidationError as error:
        inner = re.search(r"\[(\d+)\]`$", str(error))
        wrong, at = node, path
        if inner and isinstance(node.value, tuple):
            at = (*path, int(inner[1]))
            wrong = node.value[int(inner[1])]
            hint = _item(hint)
        raise refused(
            source, wrong.line, at, f"expected {wanted(hint)}, found {found(wrong.value)}{_hint(hint, wrong)}"
        ) from None
    except ValueError as error:
        raise refused(source, node.line, path, str(error)) from None


def _item_shape(hint: Any) -> Any:
    if get_origin(hint) is tuple and is_dataclass(get_args(hint)[0]):
        return get_args(hint)[0]
    return None


def _custom(kind: type, value: Any) -> Any:
    if kind is FilePath and isinstance(value, str):
        return FilePath(value)
    raise msgspec.ValidationError("of another type")


def size_of(text: str) -> int:
    """The bytes of a text such as 50MB or 16MiB; ValueError for other texts."""
    return int(_size(text))


def _size(value: Any) -> Any:
    """Bytes from 50MB (decimal), 50MiB (binary) or a plain number."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"expected a size such as 50MB or 16MiB, found {found(value)}")
    return int(match[1]) * unit


def _seconds(value: Any) -> Any:
    """Seconds from 500ms, 10s, 5m, 1h or a plain number."""
    if not isinstance(value, str):
        return value
    match = _TIME.fullmatch(value)
    if match is None:
        raise ValueError(f"expected a time such as 10s or 5m, found {found(value)}")
    return float(match[1]) * _SECONDS[match[2]]


def _unit(value: Any) -> Any:
    # YAML reads 0.1 as a number.
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value


def _off(value: Any) -> Any:
    # YAML 1.1 would read it as false; people write it for none.
    return "" if value == "off" else value


#: By (class, field): the function that reads a value with a unit or a special text.
_READ = {
    (LogSettings, "max_bytes"): _size,
    (VendorSettings, "memory_limit"): _size,
    (AgentSettings, "http"): _off,
    (Sharing, "unit"): _unit,
    (HealthThresholds, "good_for"): _seconds,
    (HealthThresholds, "patience"): _seconds,
    (HealthThresholds, "forget_after"): _seconds,
    (ReconcileSettings, "interval"): _seconds,
    (ReconcileSettings, "grace"): _seconds,
    (UsageSettings, "interval"): _seconds,
    (LimitExceededSettings, "for_"): _seconds,
    (IdleSettings, "after"): _seconds,
}


def is_size(shape: type, name: str) -> bool:
    """Whether the field is a number of bytes, which may be written with a unit."""
    return _READ.get((shape, name)) is _size


_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a time such as 10s or 5m",
    Ratio: "a number such as 0.05",
    bool: "true or false",
    str: "a text",
    FilePath: "a path",
}


def wanted(hint: Any) -> str:
    """The type in words."""
    if hint in _NAMES:
        return _NAMES[hint]
    if get_origin(hint) is Literal:
        return _one_of(hint)
    if get_origin(hint) is tuple:
        return "a list"
    if get_origin(hint) in (types.UnionType, Union):
        return " or ".join(wanted(part) for part in get_args(hint) if part is not types.NoneType)
    return "a mapping"


def _item(hint: Any) -> Any:
    """The type of a list's items; the list may be one of several allowed types."""
    listed = next((part for part in (hint, *get_args(hint)) if get_origin(part) is tuple), hint)
    return get_args(listed)[0]


def _choices(hint: Any) -> tuple[str, ...]:
    literal = next((part for part in (hint, *get_args(hint)) if get_origin(part) is Literal), None)
    return get_args(literal)


def _one_of(hint: Any) -> str:
    """The values of a Literal, as the file writes them."""
    *most, last = (f"'{value}'" for value in _choices(hint))
    return f"{', '.join(most)} or {last}" if most else last


def _hint(hint: Any, node: YamlNode) -> str:
    if hint is str and isinstance(node.value, bool | int | float):
        return "; put it in quotes"
    return ""

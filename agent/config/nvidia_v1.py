"""NVIDIA's own configuration file (v1), read as settings of the vendor nvidia."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.config.document import Node
from agent.config.given import Given, Value
from agent.config.nvidia_file import NvidiaFile, raw
from agent.config.nvidia_flags import NVIDIA_FLAGS, Flag, Kind, is_duration
from agent.config.nvidia_sharing import patterns, replicated, switch
from agent.config.overlay import VENDOR, with_flags
from agent.config.place import Path, dotted, found
from agent.config.settings import Config, VendorSettings
from agent.config.shape import convert
from agent.core.errors import ConfigError

KEYS = ("flags", "resources", "sharing", "imex")

_TREE: dict[Path, Flag] = {tuple(flag.tree.split(".")): flag for flag in NVIDIA_FLAGS if flag.tree}


def read(root: Node, source: str, flags: Sequence[Given] = ()) -> Config:
    """Read the whole file, and lay the flags over it.

    Which values of `flags` are good is for the vendor to judge. failOnInitError, true unless said, is our
    `enabled`: the agent stays, and is not ready without the vendor.

    Raises:
        ConfigError: NVIDIA's own checks refuse it (in their words), or it asks for more than is served.
    """
    file = NvidiaFile(source)
    top = file.keys(root, (), ("version", *KEYS))
    given = (
        *(it for key in ("flags", "imex") if key in top for it in _given(file, top[key], (key,))),
        *flags,
    )
    settings = {**_patterns(file, top.get("resources")), **_sharing(file, top.get("sharing"), given)}
    config = Config(
        vendors={VENDOR: VendorSettings(enabled=True, settings=settings)}, warnings=tuple(file.warnings)
    )
    return with_flags(config, given)


def _given(file: NvidiaFile, node: Node, path: Path) -> Iterator[Given]:
    """The flags under a key of the file."""
    depth = len(path)
    below = {str(tree[depth]) for tree in _TREE if tree[:depth] == path and len(tree) > depth}
    for key, child in file.keys(node, path, sorted(below)).items():
        at = (*path, key)
        flag = _TREE.get(at)
        if flag is None:
            yield from _given(file, child, at)
        else:
            where = f"{file.source}:{child.line}: {dotted(at)}"
            yield Given(flag.name, _value(file, flag.kind, child, at), where)


def _value(file: NvidiaFile, kind: Kind, node: Node, path: Path) -> Value:
    match kind:
        case Kind.TEXT:
            text: str = convert(str, node, file.source, path)
            return text
        case Kind.BOOL:
            return switch(file, node, path)
        case Kind.TEXTS:
            return _texts(file, node, path)
        case Kind.NUMBERS:
            numbers: tuple[int, ...] = convert(tuple[int, ...], node, file.source, path)
            return numbers
        case Kind.DURATION:
            return _duration(file, node, path)


def _texts(file: NvidiaFile, node: Node, path: Path) -> tuple[str, ...]:
    match node.plain():
        case str(one):
            return (one,)
        case [*texts] if all(isinstance(text, str) for text in texts):
            return tuple(texts)
    raise file.refused(node, path, f"invalid {path[-1]}: {raw(node)}")


def _duration(file: NvidiaFile, node: Node, path: Path) -> str:
    """A number counts nanoseconds."""
    match node.value:
        case str(text) if is_duration(text):
            return text
        case bool() | str() | Mapping() | tuple():
            message = f"invalid duration: {found(node.value)}; write one such as 60s, or infinite"
            raise file.refused(node, path, message)
    return f"{node.value}ns"


def _patterns(file: NvidiaFile, node: Node | None) -> dict[str, Any]:
    if node is None:
        return {}
    given = file.keys(node, ("resources",), ("gpus", "mig"))
    named = {key: patterns(file, child, ("resources", key)) for key, child in given.items()}
    named = {key: rules for key, rules in named.items() if rules}
    return {"patterns": named} if named else {}


def _sharing(file: NvidiaFile, node: Node | None, given: Sequence[Given]) -> dict[str, Any]:
    if node is None:
        return {}
    kinds = file.keys(node, ("sharing",), ("timeSlicing", "mps"))
    shared = {kind: replicated(file, child, ("sharing", kind)) for kind, child in kinds.items()}
    if "mps" in shared:
        raise _mps_refused(file, kinds["mps"], given)
    return shared


def _mps_refused(file: NvidiaFile, node: Node, given: Sequence[Given]) -> ConfigError:
    """MPS goes before time-slicing, so it is never passed over; NVIDIA's own objections come with it."""
    values = {it.flag: it.value for it in given}
    message = "is not served by this release; use timeSlicing"
    if values.get("mig-strategy") == "mixed":
        message += " (unable to validate flags: using --mig-strategy=mixed is not supported with MPS)"
    elif not values.get("mps-root"):
        message += " (unable to validate flags: using MPS requires --mps-root to be specified)"
    return file.refused(node, ("sharing", "mps"), message)

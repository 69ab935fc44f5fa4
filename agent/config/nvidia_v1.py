"""NVIDIA's own configuration file (v1), read as settings of the vendor nvidia."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.config.flag_overlay import with_flags
from agent.config.given_values import GivenValue, Value
from agent.config.location import KeyLocation
from agent.config.nvidia_file import NvidiaFile, raw
from agent.config.nvidia_flags import NVIDIA_FLAGS, VENDOR, Flag, FlagKind, is_duration
from agent.config.nvidia_sharing import entries, switch, time_slicing
from agent.config.schema import convert
from agent.config.settings import Config, VendorSettings
from agent.core.errors import ConfigError
from agent.vendor_api.config_inputs import Path, YamlNode, found

KEYS = ("flags", "resources", "sharing", "imex")

_TREE: dict[Path, Flag] = {tuple(flag.tree.split(".")): flag for flag in NVIDIA_FLAGS if flag.tree}


def read(root: YamlNode, source: str, flags: Sequence[GivenValue] = ()) -> Config:
    """Read the whole file, and lay the flags over it.

    Which values are good is for the vendor to judge. failOnInitError, true unless said, is our `enabled`: the
    agent stays, and is not ready without the vendor.

    Raises:
        ConfigError: It cannot be read as NVIDIA's programs would, or it asks for more than is served.
    """
    file = NvidiaFile(source)
    top = file.keys(root, (), ("version", *KEYS))
    given = (
        *(it for key in ("flags", "imex") if key in top for it in _given(file, top[key], (key,))),
        *flags,
    )
    settings = {**_patterns(file, top.get("resources")), **_sharing(file, top.get("sharing"), given)}
    vendor = VendorSettings(enabled=True, settings=settings)
    config = Config(vendors={VENDOR: vendor}, warnings=tuple(file.warnings), places=file.places)
    return with_flags(config, given)


def _given(file: NvidiaFile, node: YamlNode, path: Path) -> Iterator[GivenValue]:
    """The flags under a key of the file."""
    depth = len(path)
    below = {str(tree[depth]) for tree in _TREE if tree[:depth] == path and len(tree) > depth}
    for key, child in file.keys(node, path, sorted(below)).items():
        at = (*path, key)
        flag = _TREE.get(at)
        if flag is None:
            yield from _given(file, child, at)
        else:
            yield GivenValue(
                flag.name, _value(file, flag.kind, child, at), KeyLocation(file.source, child, at)
            )


def _value(file: NvidiaFile, kind: FlagKind, node: YamlNode, path: Path) -> Value:
    match kind:
        case FlagKind.TEXT:
            text: str = convert(str, node, file.source, path)
            return text
        case FlagKind.BOOL:
            return switch(file, node, path)
        case FlagKind.TEXTS:
            return _texts(file, node, path)
        case FlagKind.NUMBERS:
            numbers: tuple[int, ...] = convert(tuple[int, ...], node, file.source, path)
            return numbers
        case FlagKind.DURATION:
            return _duration(file, node, path)


def _texts(file: NvidiaFile, node: YamlNode, path: Path) -> str | tuple[str, ...]:
    """A list, or one text alone."""
    match node.plain():
        case str(one):
            return one
        case [*texts] if all(isinstance(text, str) for text in texts):
            return tuple(texts)
    raise file.refused(node, path, f"invalid {path[-1]}: {raw(node)}")


def _duration(file: NvidiaFile, node: YamlNode, path: Path) -> str:
    """A number counts nanoseconds."""
    match node.value:
        case str(text) if is_duration(text):
            return text
        case bool() | str() | Mapping() | tuple():
            message = f"invalid duration: {found(node.value)}; write one such as 60s, or infinite"
            raise file.refused(node, path, message)
    return f"{node.value}ns"


def _patterns(file: NvidiaFile, node: YamlNode | None) -> dict[str, Any]:
    """`resources`: what devices of a product or profile are called (api/config/v1/resources.go)."""
    if node is None:
        return {}
    patterns = {}
    for key, child in file.keys(node, ("resources",), ("gpus", "mig")).items():
        at = ("resources", key)
        file.says(("patterns", key), child, at)
        patterns[key] = entries(file, child, at, ("pattern", "name"))
    patterns = {key: rules for key, rules in patterns.items() if rules}
    return {"patterns": patterns} if patterns else {}


def _sharing(file: NvidiaFile, node: YamlNode | None, given: Sequence[GivenValue]) -> dict[str, Any]:
    if node is None:
        return {}
    kinds = file.keys(node, ("sharing",), ("timeSlicing", "mps"))
    if "mps" in kinds:
        raise _mps_refused(file, kinds["mps"], given)
    if "timeSlicing" not in kinds:
        return {}
    at = ("sharing", "timeSlicing")
    file.says(("timeSlicing",), kinds["timeSlicing"], at)
    return {"timeSlicing": time_slicing(file, kinds["timeSlicing"], at)}


def _mps_refused(file: NvidiaFile, node: YamlNode, given: Sequence[GivenValue]) -> ConfigError:
    """MPS goes before time-slicing, so it is never passed over; NVIDIA's own objections come with it."""
    values = {it.flag: it.value for it in given}
    message = "is not served by this release; use timeSlicing"
    if values.get("mig-strategy") == "mixed":
        message += " (unable to validate flags: using --mig-strategy=mixed is not supported with MPS)"
    elif not values.get("mps-root"):
        message += " (unable to validate flags: using MPS requires --mps-root to be specified)"
    return file.refused(node, ("sharing", "mps"), message)

"""NVIDIA's own configuration file (v1), read as settings and flags of the vendor.

Source: api/config/v1 of NVIDIA/k8s-device-plugin v0.20. Unknown keys are ignored, as NVIDIA's programs do,
and each gets a warning.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from agent.vendor_api.config_flags import Flag, FlagKind, FlagValue, is_duration
from agent.vendor_api.config_inputs import (
    ConfigFileError,
    ConfigFormat,
    FileContent,
    FileFlag,
    FileValue,
    Path,
    found,
    nearest,
)
from agent.vendor_api.text import shorten

from .plugin_flags import FLAGS

KEYS = ("flags", "resources", "sharing", "imex")
#: A hostile file may hold thousands of unknown keys.
MAX_WARNINGS = 20

_TREE: dict[Path, Flag] = {tuple(flag.tree.split(".")): flag for flag in FLAGS if flag.tree}
_TIME_SLICING = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
_REPLICATED_RESOURCE = ("name", "rename", "devices", "replicas")


def content(document: FileValue, flags: Mapping[str, FlagValue]) -> FileContent:
    """The settings and the flags of the whole file. Which values are good, the vendor's settings judge.

    Raises:
        ConfigFileError: NVIDIA's programs cannot read the file, or it asks for more than is served.
    """
    file = _ConfigFile()
    keys = file.keys(document, ("version", *KEYS))
    of_file = tuple(flag for key in ("flags", "imex") if key in keys for flag in _flags(file, keys[key]))
    values = {**{flag.name: flag.value for flag in of_file}, **flags}
    settings = {
        **_patterns(file, keys.get("resources")),
        **_sharing(file, keys.get("sharing"), values),
    }
    return FileContent(settings, file.places, of_file, tuple(file.warnings))


#: The agent takes the file in place of its own.
CONFIG_FILE = ConfigFormat("NVIDIA's file", KEYS, content)


class _ConfigFile:
    """Collects the warnings, and the place of each setting, while the file is read."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.places: dict[Path, FileValue | str] = {}

    def keys(self, value: FileValue, known: Collection[str], *, exact: bool = False) -> dict[str, FileValue]:
        """The known keys that hold something; each other key becomes a warning.

        NVIDIA's programs match keys without case where they decode into structs, and exactly (`exact`) where
        they decode into maps.
        """
        present = value.keys()
        held: dict[str, FileValue] = {}
        for key, child in present.items():
            name = key if exact else _without_case(key, known)
            if name not in known:
                self._warn_of_key(child, known)
            elif child.value is not None and (name == key or name not in present):
                held[name] = replace(child, path=(*value.path, name))
        return held

    def _warn_of_key(self, child: FileValue, known: Collection[str]) -> None:
        if len(self.warnings) < MAX_WARNINGS:  # the search for the nearest is slow
            hint = nearest(str(child.path[-1]), known)
            self.warnings.append(child.placed(f"unknown key, ignored as NVIDIA's programs do; {hint}"))


def _without_case(key: str, known: Collection[str]) -> str:
    if key in known:
        return key
    return next((name for name in known if name.lower() == key.lower()), key)


def _flags(file: _ConfigFile, value: FileValue) -> Iterator[FileFlag]:
    """The flags under a key of the file."""
    depth = len(value.path)
    below = {str(tree[depth]) for tree in _TREE if tree[:depth] == value.path and len(tree) > depth}
    for child in file.keys(value, sorted(below)).values():
        flag = _TREE.get(child.path)
        if flag is None:
            yield from _flags(file, child)
        else:
            yield FileFlag(flag.name, _flag_value(flag.kind, child), child)


def _flag_value(kind: FlagKind, value: FileValue) -> FlagValue:
    match kind:
        case FlagKind.TEXT:
            return _text(value)
        case FlagKind.BOOL:
            return _switch(value)
        case FlagKind.TEXTS:
            return _texts(value)
        case FlagKind.NUMBERS:
            return tuple(map(_number, value.elements()))
        case FlagKind.DURATION:
            return _duration(value)


def _text(value: FileValue) -> str:
    if isinstance(value.value, str):
        return value.value
    hint = "; put it in quotes" if isinstance(value.value, bool | int | float) else ""
    raise value.refused(f"expected a text, found {found(value.value)}{hint}")


def _number(value: FileValue) -> int:
    if isinstance(value.value, int) and not isinstance(value.value, bool):
        return value.value
    raise value.refused(f"expected a whole number, found {found(value.value)}")


def _switch(value: FileValue) -> bool:
    """A boolean, also in the words of YAML 1.1 that NVIDIA's programs read."""
    word = value.value.lower() if isinstance(value.value, str) else None
    if word in ("yes", "on", "y", "no", "off", "n"):
        return word in ("yes", "on", "y")
    if isinstance(value.value, bool):
        return value.value
    raise value.refused(f"expected true or false, found {found(value.value)}")


def _texts(value: FileValue) -> str | tuple[str, ...]:
    """A list, or one text alone."""
    match value.plain():
        case str(one):
            return one
        case [*texts] if all(isinstance(text, str) for text in texts):
            return tuple(texts)
    raise value.refused(f"invalid {value.path[-1]}: {_raw(value)}")


def _raw(value: FileValue) -> str:
    """The value as NVIDIA's messages show it: compact JSON."""
    return shorten(json.dumps(value.plain(), separators=(",", ":"), sort_keys=True), 200)


def _duration(value: FileValue) -> str:
    """A number counts nanoseconds."""
    match value.value:
        case str(text) if is_duration(text):
            return text
        case bool() | str() | Mapping() | tuple():
            raise value.refused(f"invalid duration: {found(value.value)}; write one such as 60s, or infinite")
    return f"{value.value}ns"


def _patterns(file: _ConfigFile, value: FileValue | None) -> dict[str, Any]:
    """`resources`: what devices of a product or profile are called (api/config/v1/resources.go)."""
    if value is None:
        return {}
    patterns = {}
    for key, child in file.keys(value, ("gpus", "mig")).items():
        file.places["patterns", key] = child
        patterns[key] = _mappings(file, child, ("pattern", "name"))
    patterns = {key: rules for key, rules in patterns.items() if rules}
    return {"patterns": patterns} if patterns else {}


def _sharing(file: _ConfigFile, value: FileValue | None, flags: Mapping[str, FlagValue]) -> dict[str, Any]:
    if value is None:
        return {}
    kinds = file.keys(value, ("timeSlicing", "mps"))
    if "mps" in kinds:
        raise _mps_refused(kinds["mps"], flags)
    if "timeSlicing" not in kinds:
        return {}
    file.places["timeSlicing",] = kinds["timeSlicing"]
    return {"timeSlicing": _time_slicing(file, kinds["timeSlicing"])}


def _mps_refused(value: FileValue, flags: Mapping[str, FlagValue]) -> ConfigFileError:
    """MPS goes before time-slicing, so it is never passed over; NVIDIA's own objections come with it."""
    message = "is not served by this release; use timeSlicing"
    if flags.get("mig-strategy") == "mixed":
        message += " (unable to validate flags: using --mig-strategy=mixed is not supported with MPS)"
    elif not flags.get("mps-root"):
        message += " (unable to validate flags: using MPS requires --mps-root to be specified)"
    return value.refused(message)


def _time_slicing(file: _ConfigFile, value: FileValue) -> dict[str, Any]:
    """`sharing.timeSlicing` (api/config/v1/replicas.go)."""
    settings: dict[str, Any] = {}
    for key, child in file.keys(value, _TIME_SLICING, exact=True).items():
        is_list = key == "resources"
        settings[key] = _mappings(file, child, _REPLICATED_RESOURCE) if is_list else _switch(child)
    return settings


def _mappings(file: _ConfigFile, value: FileValue, known: Collection[str]) -> list[dict[str, Any]]:
    """A list of mappings, with the known keys of each."""
    return [
        {key: child.plain() for key, child in file.keys(element, known, exact=True).items()}
        for element in value.elements()
    ]

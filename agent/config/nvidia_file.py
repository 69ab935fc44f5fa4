"""NVIDIA's file as it is being read: errors, and warnings where NVIDIA's programs are silent."""

from __future__ import annotations

import json
from collections.abc import Collection

from agent.config.location import KeyLocation, refused
from agent.config.nvidia_flags import VENDOR
from agent.config.schema import mapping
from agent.core.errors import ConfigError
from agent.vendor_api.config_inputs import Path, YamlNode, nearest
from agent.vendor_api.text import shorten

#: A hostile file may hold thousands of keys that nobody knows.
MAX_WARNINGS = 20


class NvidiaFile:
    """A file with its name; collects the warnings, and which part of it says which of our settings."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.warnings: list[str] = []
        self.places: dict[Path, KeyLocation] = {}

    def refused(self, node: YamlNode, path: Path, message: str) -> ConfigError:
        return refused(self.source, node.line, path, message)

    def keys(
        self, node: YamlNode, path: Path, known: Collection[str], *, exact: bool = False
    ) -> dict[str, YamlNode]:
        """The known keys that hold something. Others are told of, as NVIDIA's programs ignore them.

        Where those decode into structs they match keys without case; where `exact`, into maps, they do not.
        """
        given = mapping(node, self.source, path)
        found: dict[str, YamlNode] = {}
        for key, child in given.items():
            name = key if exact else _without_case(key, known)
            if name not in known:
                self._unknown(child, (*path, key), known)
            elif child.value is not None and (name == key or name not in given):
                found[name] = child
        return found

    def says(self, setting: Path, node: YamlNode, path: Path) -> None:
        """The node at this path of the file is this setting of the vendor."""
        self.places["vendors", VENDOR, "settings", *setting] = KeyLocation(self.source, node, path)

    def warn(self, node: YamlNode, path: Path, message: str) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(KeyLocation(self.source, node, path).told((), message))

    def _unknown(self, node: YamlNode, path: Path, known: Collection[str]) -> None:
        if len(self.warnings) < MAX_WARNINGS:  # the search for the nearest is slow
            hint = nearest(str(path[-1]), known)
            self.warn(node, path, f"unknown key, ignored as NVIDIA's programs do; {hint}")


def _without_case(key: str, known: Collection[str]) -> str:
    if key in known:
        return key
    return next((name for name in known if name.lower() == key.lower()), key)


def raw(node: YamlNode) -> str:
    """The value as NVIDIA's messages show it: compact JSON."""
    return shorten(json.dumps(node.plain(), separators=(",", ":"), sort_keys=True), 200)

"""`sharing.timeSlicing` and `resources` of NVIDIA's file as plain settings; the vendor judges the values."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agent.config.nvidia_file import NvidiaFile
from agent.config.schema import convert, sequence
from agent.vendor_api.config_inputs import Path, YamlNode

_KEYS = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
_ENTRY = ("name", "rename", "devices", "replicas")


def time_slicing(file: NvidiaFile, node: YamlNode, path: Path) -> dict[str, Any]:
    """`sharing.timeSlicing` (api/config/v1/replicas.go of NVIDIA/k8s-device-plugin v0.20)."""
    read: dict[str, Any] = {}
    for key, child in file.keys(node, path, _KEYS, exact=True).items():
        at = (*path, key)
        read[key] = entries(file, child, at, _ENTRY) if key == "resources" else switch(file, child, at)
    return read


def entries(file: NvidiaFile, node: YamlNode, path: Path, known: Collection[str]) -> list[dict[str, Any]]:
    """A list of mappings, with the known keys of each."""
    return [
        {key: child.plain() for key, child in file.keys(item, (*path, index), known, exact=True).items()}
        for index, item in enumerate(sequence(node, file.source, path))
    ]


def switch(file: NvidiaFile, node: YamlNode, path: Path) -> bool:
    """A boolean, also in the words of YAML 1.1 that NVIDIA's programs read."""
    word = node.value.lower() if isinstance(node.value, str) else None
    if word in ("yes", "on", "y", "no", "off", "n"):
        return word in ("yes", "on", "y")
    value: bool = convert(bool, node, file.source, path)
    return value

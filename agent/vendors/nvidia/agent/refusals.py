"""How wrong settings are refused: in NVIDIA's words where its plugin has some."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from agent.vendor_api.agent import SettingsError
from agent.vendor_api.text import shorten
from agent.vendors.common.setting_values import Path, shown, split, unknown

_FLAGS = "unable to validate flags: "
#: A text that is none of the choices (k8s-device-plugin v0.20, cmd/nvidia-device-plugin/main.go,
#: validateFlags).
_CHOICES = {
    "deviceListStrategy": f"{_FLAGS}invalid --device-list-strategy option: invalid strategy: {{}}",
    "deviceIDStrategy": f"{_FLAGS}invalid --device-id-strategy option: {{}}",
    "sharedDevicesAllocationPolicy": f"{_FLAGS}invalid --shared-devices-allocation-policy option: {{}}",
    "migStrategy": f"{_FLAGS}unknown MIG strategy: {{}}",
}
#: A key that is missing, or an empty list, by where it belongs (api/config/v1/replicas.go, resources.go).
_MISSING = {
    ("timeSlicing", "resources"): "no resources specified",
    ("timeSlicing", "name"): "no resource name specified",
    ("timeSlicing", "replicas"): "no replicas specified",
    ("patterns", "pattern"): "resources must have a 'pattern' field set",
    ("patterns", "name"): "resources must have a 'name' field set",
}
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)


def refusal(
    error: msgspec.ValidationError, given: Mapping[str, Any], fits: Mapping[str, str]
) -> SettingsError:
    """The error of msgspec as a SettingsError with the path to the value.

    `fits`: a description of what fits, for each key.
    """
    what, path = split(str(error))
    cause = error.__cause__
    if isinstance(cause, SettingsError):
        return SettingsError(str(cause), (*path, *cause.path))
    field = _FIELD.fullmatch(what)
    if field and field[1] == "contains unknown":
        return unknown(field[2], fits, path)
    if field:
        return SettingsError(_MISSING[str(path[0]), field[2]], path)
    found, path = _reached(given, path)
    key = next(str(step) for step in reversed(path) if isinstance(step, str))
    if isinstance(found, str) and key in _CHOICES:
        return SettingsError(_CHOICES[key].format(shorten(found)), path)
    if found == [] and (path[0], key) in _MISSING:
        return SettingsError(_MISSING[str(path[0]), key], path)
    return SettingsError(f"expected {fits[key]}, found {shown(found)}", path)


def _reached(given: Any, path: Path) -> tuple[Any, Path]:
    """The value at the path, and the path as far as it exists: a list of one may be given as its element."""
    for depth, step in enumerate(path):
        if not isinstance(given, Mapping | list | tuple):
            return given, path[:depth]
        given = given[step]  # type: ignore[index]
    return given, path

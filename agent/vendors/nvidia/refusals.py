"""How wrong settings are refused: in NVIDIA's words where its plugin has some."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from agent.core.text import shorten

_FLAGS = "unable to validate flags: "
#: A text that is none of the choices (k8s-device-plugin v0.20, cmd/nvidia-device-plugin/main.go,
#: validateFlags; api/config/v1/replicas.go).
_CHOICES = {
    "deviceListStrategy": f"{_FLAGS}invalid --device-list-strategy option: invalid strategy: {{}}",
    "deviceIDStrategy": f"{_FLAGS}invalid --device-id-strategy option: {{}}",
    "sharedDevicesAllocationPolicy": f"{_FLAGS}invalid --shared-devices-allocation-policy option: {{}}",
    "migStrategy": f"{_FLAGS}unknown MIG strategy: {{}}",
    "devices": "devices set as '{}' but the only valid string input is 'all'",
}
#: A key that is missing, by where it belongs (api/config/v1/replicas.go, resources.go).
_MISSING = {
    ("timeSlicing", "name"): "no resource name specified",
    ("timeSlicing", "replicas"): "no replicas specified",
    ("patterns", "pattern"): "resources must have a 'pattern' field set",
    ("patterns", "name"): "resources must have a 'name' field set",
}
#: The keys below those of the vendor.
_INNER = ("gpus", "mig", "pattern", "name", "failRequestsGreaterThanOne")
_INNER_KEYS = (*_INNER, "resources", "replicas", "rename", "devices")


def worded(error: str, given: Any, wanted: Mapping[str, str]) -> str:
    """msgspec's words in ours: where, what was found, what would fit. `wanted`: what fits each key."""
    what, _, where = error.rpartition(" - at `$") if error.endswith("`") else (error, "", "")
    what, where = (what, where[:-1].lstrip(".")) if what else (error, "")
    top = re.split(r"[.[]", where)[0]
    field = re.search(r"field `(.*)`$", what, re.DOTALL)
    if field and what.startswith("Object contains unknown"):
        return f"nvidia.{where} has no key '{shorten(field[1])}'; {nearest(field[1], _INNER_KEYS)}"
    if field and (top, field[1]) in _MISSING:
        return f"nvidia.{where}: {_MISSING[top, field[1]]}"
    found = _found(given, where)
    choice = _CHOICES.get(re.sub(r"\[\d+\]$", "", where).rpartition(".")[2])
    if choice and isinstance(found, str):
        return ("" if top == where.partition("[")[0] else f"nvidia.{where}: ") + choice.format(shorten(found))
    if not what.startswith(("Expected", "Invalid")):
        return f"nvidia.{where}: {what}" if where else what
    fits = f"use {wanted[top]}" if "." not in where else what.lower()
    return f"nvidia.{where} is {shorten(repr(found))}; {fits}"


def nearest(key: object, known: Iterable[str]) -> str:
    """A hint at the key that was probably meant, or at all there are."""
    near = difflib.get_close_matches(str(key)[:100], known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"


def _found(given: Any, where: str) -> Any:
    """What stands at `timeSlicing.resources[0].name`."""
    for step in re.findall(r"[^.[\]]+", where):
        given = given[int(step) if isinstance(given, list | tuple) else step]
    return given

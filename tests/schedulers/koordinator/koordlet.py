"""koordlet as far as it makes a Device of device-infos files, and the CRD as far as a Device must fit it.

Restated from koordinator: pkg/koordlet/statesinformer/impl/states_device_linux.go, collector_xpu.go and
config/crd/bases/scheduling.koordinator.sh_devices.yaml. test_koordlet.py holds it to recorded answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import jsonschema

#: What the tests put for times.
T = "T"

_QUANTITY = re.compile(
    r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)))?"
)
_REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
_INT32 = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
_TEXT = {"type": "string"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}

#: Of one device. Strict: the API server would prune what is not named here.
DEVICE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["health"],
    "properties": {
        "type": _TEXT,
        "id": _TEXT,
        "minor": _INT32,
        "moduleID": _INT32,
        "health": {"type": "boolean"},
        "labels": _TEXTS,
        "resources": {
            "type": "object",
            "additionalProperties": {"type": "string", "pattern": f"^{_QUANTITY.pattern}$"},
        },
        "topology": {
            "type": "object",
            "additionalProperties": False,
            "required": ["socketID", "nodeID", "pcieID"],
            "properties": {"socketID": _INT32, "nodeID": _INT32, "pcieID": _TEXT, "busID": _TEXT},
        },
        "conditions": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                "properties": {
                    "type": {"type": "string", "maxLength": 316},
                    "status": {"enum": ["True", "False", "Unknown"]},
                    "reason": {"type": "string", "pattern": _REASON, "maxLength": 1024},
                    "message": {"type": "string", "maxLength": 32768},
                    "lastTransitionTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
                },
            },
        },
    },
}


def refused(device: Any) -> str:
    """Why the API server would refuse an entry of a Device; empty where it takes it."""
    errors = sorted(jsonschema.Draft202012Validator(DEVICE).iter_errors(device), key=str)
    return errors[0].message if errors else ""


def read(files: Sequence[str]) -> list[dict[str, Any]] | None:
    """What koordlet takes from its directory; None: it cannot decode a file, and keeps what it had."""
    found: list[dict[str, Any]] = []
    for text in files:
        try:
            entries = json.JSONDecoder().raw_decode(text.lstrip())[0]
        except ValueError:
            return None
        if not isinstance(entries, list) or not all(_decodes(it) for it in entries):
            return None
        found += entries
    return found


def made(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The labels, annotations and devices of the Device that koordlet makes of them."""
    labels: dict[str, str] | None = None
    table: dict[str, list[dict[str, Any]]] = {}
    if entries:
        first = entries[0]
        labels = {_NODE + "gpu-model": first.get("model", ""), _NODE + "gpu-vendor": first.get("vendor", "")}
        topology = first.get("topology", {})
        if "p2pLinks" in topology:
            labels[_NODE + "gpu-partition-policy"] = (
                "Honor" if topology.get("mustHonorPartition") else "Prefer"
            )
    for entry in entries:
        for link in entry.get("topology", {}).get("p2pLinks", ()):
            minors = sorted({int(it) for it in [*link["peerMinor"].split(","), entry["minor"]]})
            groups = table.setdefault(str(len(minors)), [])
            if minors not in [it["minors"] for it in groups]:
                groups.append({"minors": minors, "gpuLinkType": link["type"], "allocationScore": 1})
    return {
        "labels": labels,
        "annotations": {"scheduling.koordinator.sh/gpu-partitions": table} if table else None,
        "devices": sorted(map(_device, entries), key=lambda it: int(it["minor"])),
    }


_NODE = "node.koordinator.sh/"


def _device(entry: dict[str, Any]) -> dict[str, Any]:
    resources = {"koordinator.sh/gpu-memory-ratio": "100"}
    for name, amount in entry.get("resources", {}).items():
        if _QUANTITY.fullmatch(amount):
            resources[f"koordinator.sh/{name}" if name in ("gpu-core", "gpu-memory") else name] = amount
    minor, status = entry.get("minor", ""), entry.get("status")
    device = {
        "type": "gpu",
        "id": entry.get("uuid", ""),
        "minor": int(minor) if re.fullmatch(r"[+-]?[0-9]+", minor) else 0,
        "health": status is None or status.get("healthy", False),
        "resources": resources,
    }
    if (topology := entry.get("topology")) is not None:
        device["topology"] = {
            "socketID": -1,
            "nodeID": int(topology.get("nodeID") or -1),
            "pcieID": topology.get("pcieID", ""),
            "busID": topology.get("busID", ""),
        }
    if status is not None:
        device["conditions"] = [_condition(status)]
    return device


def _condition(status: dict[str, Any]) -> dict[str, str]:
    if status.get("healthy", False):
        said = {"status": "True", "reason": "DeviceHealthy", "message": "device is healthy"}
    else:
        reason, message = (
            status.get("errCode") or "Unknown",
            status.get("errMessage") or "device is unhealthy",
        )
        said = {"status": "False", "reason": reason, "message": message}
    return {"type": "Healthy", "lastTransitionTime": T, **said}


def _decodes(entry: Any) -> bool:
    """Whether Go's decoder takes the entry: strings where koordlet has strings, whatever it does not know."""
    if not isinstance(entry, dict):
        return False
    topology, status, resources = (entry.get(name, {}) for name in ("topology", "status", "resources"))
    texts = [
        *(entry.get(name, "") for name in ("vendor", "model", "uuid", "minor")),
        *(topology.get(name, "") for name in ("socketID", "nodeID", "pcieID", "busID")),
        *(status.get(name, "") for name in ("errCode", "errMessage")),
        *resources.values(),
    ]
    return all(isinstance(it, str) for it in texts)

"""A koordlet as its source and its recorded answers have it, as far as it concerns the node's Device."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.testing.simapi import SimApiServer

VERSION = "scheduling.koordinator.sh/v1alpha1"


def pod(node: str, gates: str = "Accelerators=true", **security: Any) -> dict[str, Any]:
    """Its pod on the node. Source: koordinator-sh/charts v1.8.0, templates/koordlet.yaml."""
    container = {
        "name": "koordlet",
        "command": ["/koordlet"],
        "args": ["-addr=:9316", f"-feature-gates=BECPUEvict=true,{gates}", "--v=4"],
        "securityContext": {"privileged": True, **security},
    }
    labels = {"koord-app": "koordlet"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "koordlet-x", "namespace": "koordinator-system", "labels": labels},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }


def cards(count: int = 1) -> list[dict[str, Any]]:
    """As its NVML part reports them."""
    resources = {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "48Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    return [
        {"type": "gpu", "id": f"GPU-{it}", "minor": it, "health": True, "resources": resources}
        for it in range(count)
    ]


def from_files(directory: Path) -> list[dict[str, Any]] | None:
    """The devices that it makes of the directory's files; None where it keeps what it had.

    Source: pkg/koordlet/metricsadvisor/collectors/noderesource/collector_xpu.go and
    pkg/koordlet/statesinformer/impl/states_device_linux.go.
    """
    found: list[Any] = []
    try:
        # As os.ReadDir has it: what was a directory in the listing is passed over, also once it is gone.
        for entry in sorted(os.scandir(directory), key=lambda it: it.name):
            if not entry.is_dir():
                found += json.loads(Path(entry).read_text())
    except (OSError, ValueError):
        return None
    return [_device(it) for it in found]


def _device(info: Mapping[str, Any]) -> dict[str, Any]:
    scalars = [info["uuid"], info["minor"], *info["resources"].values()]
    assert all(isinstance(it, str) for it in scalars), f"a decode error to koordlet: {info}"
    prefix = "koordinator.sh/"
    resources = {f"{prefix}gpu-memory-ratio": "100"} | {
        prefix + name if name in ("gpu-core", "gpu-memory") else name: it
        for name, it in info["resources"].items()
    }
    status = info.get("status", {"healthy": True})
    device = {"type": "gpu", "id": info["uuid"], "minor": int(info["minor"]), "health": status["healthy"]}
    return {**device, "resources": resources}


class Koordlet:
    """One pass of its loop: what differs is replaced whole, with every label and annotation.

    An empty list is left out of what it writes, and a status is not, so that an empty write makes the list
    nobody's and the status its own; the next one like it changes nothing of its own, and so not its time.
    """

    def __init__(self, server: SimApiServer, node: str, labels: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._node = node
        self._labels = dict(labels or {})
        self.writes = 0

    def report(self, devices: Sequence[Mapping[str, Any]]) -> bool:
        """Returns whether it had to write. Source: states_device_linux.go, updateDevice."""
        there = self._server.find("Device", self._node)
        if there is not None and self._equal(there, devices):
            return False
        metadata = copy.deepcopy(there["metadata"]) if there else {"name": self._node}
        for key in ("labels", "annotations"):
            metadata.pop(key, None)
        if self._labels:
            metadata["labels"] = self._labels
        spec = {"devices": [dict(it) for it in devices]} if devices else {}
        body = {"apiVersion": VERSION, "kind": "Device", "metadata": metadata, "spec": spec, "status": {}}
        self._server.put_object(body, manager="koordlet")
        self.writes += 1
        return True

    def _equal(self, there: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> bool:
        metadata = there["metadata"]
        same = metadata.get("labels", {}) == self._labels and not metadata.get("annotations")
        return same and there["spec"].get("devices", []) == list(devices)

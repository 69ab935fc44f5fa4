"""The CDI devices of simulated slices: one per allocation, by whose name its container finds them. Pure.

Standard library only: both halves of the vendor name them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from agent.vendor_api.backend import Partition

KIND = "xpu-agent.io/slice"
SPEC = "xpu-agent.io-slice.json"
#: What a container gets by the name of its slices: their ids.
VARIABLE = "XPU_SLICES"


def device(allocation: str) -> str:
    """The qualified name of what an allocation has."""
    return f"{KIND}={allocation}"


def spec(slices: Iterable[Partition]) -> str:
    """The spec that names ours; empty where there are none."""
    ours: dict[str, list[str]] = {}
    for it in slices:
        if it.allocation is not None:
            ours.setdefault(it.allocation, []).append(it.id)
    devices = [
        {"name": allocation, "containerEdits": {"env": [f"{VARIABLE}={','.join(ids)}"]}}
        for allocation, ids in sorted(ours.items())
    ]
    return json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}) if devices else ""

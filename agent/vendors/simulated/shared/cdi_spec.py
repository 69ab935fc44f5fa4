"""CDI names and the CDI spec of simulated slices, with one CDI device for each allocation. Pure.

Both halves of the vendor import this module, so it needs the standard library and the API alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from agent.vendor_api.backend import Partition

KIND = "xpu-agent.io/slice"
SPEC = "xpu-agent.io-slice.json"
#: The environment variable that gives a container the ids of its slices.
VARIABLE = "XPU_SLICES"


def device(allocation: str) -> str:
    """The qualified CDI name of an allocation's device."""
    return f"{KIND}={allocation}"


def spec(slices: Iterable[Partition]) -> str:
    """The JSON text of the spec for slices that have an allocation. Empty without such slices."""
    by_allocation: dict[str, list[str]] = {}
    for part in slices:
        if part.allocation is not None:
            by_allocation.setdefault(part.allocation, []).append(part.id)
    devices = [
        {"name": allocation, "containerEdits": {"env": [f"{VARIABLE}={','.join(ids)}"]}}
        for allocation, ids in sorted(by_allocation.items())
    ]
    return json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}) if devices else ""

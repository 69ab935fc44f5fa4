"""The CDI spec of the slices, with one CDI device for each allocation.

The name of an allocation stays the same, while the device nodes of its slices can change at a reboot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from agent.vendors.common import cdi_file
from agent.vendors.metax.shared import constants

FILE = f"{constants.CDI_VENDOR}-{constants.CDI_CLASS}.json"


def spec(slices: Sequence[tuple[str, str, Sequence[str]]], variable: str = "") -> Mapping[str, str]:
    """The CDI file of these slices by its name. An empty text means that there is no file.

    `slices` are tuples of allocation, uuid and paths of device nodes. `variable` is the environment variable
    that gives a container the uuids of its slices; empty: none.
    """
    nodes: defaultdict[str, list[str]] = defaultdict(list)
    uuids: defaultdict[str, list[str]] = defaultdict(list)
    for allocation, uuid, paths in slices:
        nodes[allocation] += paths
        uuids[allocation].append(uuid)
    devices = [_device(name, nodes[name], uuids[name], variable) for name in sorted(nodes)]
    devices = [it for it in devices if it["containerEdits"]]
    return {FILE: cdi_file.content(constants.CDI_KIND, devices)}


def _device(name: str, paths: Sequence[str], uuids: Sequence[str], variable: str) -> dict[str, Any]:
    edits: dict[str, Any] = {}
    if paths:
        edits["deviceNodes"] = cdi_file.nodes(dict.fromkeys(paths))
    if variable:
        edits["env"] = [f"{variable}={','.join(uuids)}"]
    return {"name": name, "containerEdits": edits}

"""The CDI spec of the slices: one name for each container, whatever nodes its slices have after a reboot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from agent.vendors.common import cdi_file
from agent.vendors.metax import constants

FILE = f"{constants.CDI_VENDOR}-{constants.CDI_CLASS}.json"


def spec(slices: Sequence[tuple[str, str, Sequence[str]]], variable: str = "") -> Mapping[str, str]:
    """The file of these slices, given as allocation, uuid and paths of nodes; empty text is no file.

    `variable` names what tells a container the uuids of its slices; none where it is empty.
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

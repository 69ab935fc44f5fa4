"""The CDI spec of the slices, with one CDI device for each allocation.

The name of an allocation stays the same, while its slice can be another one after a reboot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.vendors.common import cdi_file

from . import constants

#: Enflame's programs read the first to use only a slice of the card. Its container runtime reads the second.
SLICE, CARDS = "TOPS_VISIBLE_DEVICES", "ENFLAME_VISIBLE_DEVICES"
PREFIX = "DRS-"


@dataclass(frozen=True, slots=True)
class AllocatedSlice:
    """The slice of an allocation: its uuid, the card's minor number, and the paths of device nodes."""

    allocation: str
    uuid: str
    minor: int | None
    nodes: tuple[str, ...]


def spec(slices: Sequence[AllocatedSlice]) -> Mapping[str, str]:
    """The CDI file of these slices by its name. An empty text means that there is no file."""
    devices = [_device(it) for it in sorted(slices, key=lambda it: it.allocation)]
    return {constants.CDI_FILE: cdi_file.content(constants.CDI_KIND, devices)}


def _device(part: AllocatedSlice) -> dict[str, Any]:
    env = [f"{SLICE}={PREFIX}{part.uuid}"]
    if part.minor is not None:
        env.append(f"{CARDS}={part.minor}")
    edits: dict[str, Any] = {"env": env}
    if part.nodes:
        edits["deviceNodes"] = cdi_file.nodes(part.nodes)
    return {"name": part.allocation, "containerEdits": edits}

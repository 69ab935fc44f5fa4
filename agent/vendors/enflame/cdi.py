"""The CDI spec of the slices: one name for each container, whatever slice it has after a reboot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.vendors.common import cdi_file

from . import constants

#: What Enflame's programs read to use a slice and nothing else of the card; its runtime reads the other.
SLICE, CARDS = "TOPS_VISIBLE_DEVICES", "ENFLAME_VISIBLE_DEVICES"
PREFIX = "DRS-"


@dataclass(frozen=True, slots=True)
class Sliced:
    """A container's slice: whose, its uuid, its card's minor number, and the nodes to reach it by."""

    allocation: str
    uuid: str
    minor: int | None
    nodes: tuple[str, ...]


def spec(slices: Sequence[Sliced]) -> Mapping[str, str]:
    """The file of these slices; empty text is no file."""
    devices = [_device(it) for it in sorted(slices, key=lambda it: it.allocation)]
    return {constants.CDI_FILE: cdi_file.content(constants.CDI_KIND, devices)}


def _device(it: Sliced) -> dict[str, Any]:
    env = [f"{SLICE}={PREFIX}{it.uuid}"]
    if it.minor is not None:
        env.append(f"{CARDS}={it.minor}")
    edits: dict[str, Any] = {"env": env}
    if it.nodes:
        edits["deviceNodes"] = cdi_file.nodes(it.nodes)
    return {"name": it.allocation, "containerEdits": edits}

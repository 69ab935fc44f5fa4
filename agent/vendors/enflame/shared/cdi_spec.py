"""The CDI spec of the slices: one name for each container, whatever slice it has after a reboot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.vendors.common import cdi_file

from . import constants

#: The variable by which Enflame's programs use a slice alone, and the variable that Enflame's runtime reads.
SLICE, CARDS = "TOPS_VISIBLE_DEVICES", "ENFLAME_VISIBLE_DEVICES"
PREFIX = "DRS-"


@dataclass(frozen=True, slots=True)
class Sliced:
    """A container's slice: allocation, uuid, the minor number of the card, and the device nodes."""

    allocation: str
    uuid: str
    minor: int | None
    nodes: tuple[str, ...]


def spec(slices: Sequence[Sliced]) -> Mapping[str, str]:
    """The file of these slices: name to content; empty content is no file."""
    devices = [_device(it) for it in sorted(slices, key=lambda it: it.allocation)]
    return {constants.CDI_FILE: cdi_file.content(constants.CDI_KIND, devices)}


def _device(sliced: Sliced) -> dict[str, Any]:
    env = [f"{SLICE}={PREFIX}{sliced.uuid}"]
    if sliced.minor is not None:
        env.append(f"{CARDS}={sliced.minor}")
    edits: dict[str, Any] = {"env": env}
    if sliced.nodes:
        edits["deviceNodes"] = cdi_file.nodes(sliced.nodes)
    return {"name": sliced.allocation, "containerEdits": edits}

"""Container annotations by which the agent knows its answers again. Pure.

The kubelet writes them into its checkpoint with the answer. Only root can change that file. So it shows what
the agent answered, even if the agent's own checkpoint is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent.core.devices.memory_units import THOUSANDTHS
from agent.core.model import Allocation

#: The id of the allocation.
ALLOCATION = "xpu-agent.io/allocation"
#: UUIDs with commas between them: the cards, where the device IDs name other cards.
CARDS = "xpu-agent.io/cards"
#: JSON object of texts: the parameters of the claim with which the answer was made.
SHARE = "xpu-agent.io/share"
#: GiB of memory that each device ID stands for; left out where IDs do not count memory.
UNIT = "xpu-agent.io/unit"


def annotations_of(allocation: Allocation) -> dict[str, str]:
    """The annotations of the allocation's answer."""
    annotations = {ALLOCATION: allocation.id}
    if allocation.diverged:
        annotations[CARDS] = ",".join(allocation.diverged)
    if allocation.claim is not None and allocation.claim.parameters:
        annotations[SHARE] = json.dumps(
            dict(allocation.claim.parameters), separators=(",", ":"), sort_keys=True
        )
    if allocation.unit:
        annotations[UNIT] = allocation.unit
    return annotations


def unit(annotations: Mapping[str, str]) -> str:
    """The memory unit of an answer's IDs; empty where they count no memory, or the unit is not known."""
    written = annotations.get(UNIT, "")
    return written if written in THOUSANDTHS else ""


def cards(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The cards of an answer, where its IDs name other cards."""
    return tuple(dict.fromkeys(filter(None, annotations.get(CARDS, "").split(","))))


def share(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """The parameters with which an answer was made; none where the annotation is not the agent's."""
    try:
        parsed: Any = json.loads(annotations.get(SHARE, "{}"))
    except (ValueError, RecursionError):
        return {}
    texts = isinstance(parsed, dict) and all(isinstance(it, str) for it in parsed.values())
    return parsed if texts else {}

"""What each answer of ours says of itself in container annotations, which the kubelet writes down beside it.

Its checkpoint is root's own: what stands there is what we answered, also where our own checkpoint is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent.core.devices.memory_units import THOUSANDTHS
from agent.core.model import Allocation

#: The id of the allocation.
ALLOCATION = "xpu-agent.io/allocation"
#: uuids with commas between them: the cards, where they are not those of the device IDs.
CARDS = "xpu-agent.io/cards"
#: JSON object of texts: the parameters of the claim that the answer was made with.
SHARE = "xpu-agent.io/share"
#: GiB of memory that each device ID stood for; not there where they counted something else.
UNIT = "xpu-agent.io/unit"


def marks(it: Allocation) -> dict[str, str]:
    """The annotations of its answer."""
    found = {ALLOCATION: it.id}
    if it.diverged:
        found[CARDS] = ",".join(it.diverged)
    if it.claim is not None and it.claim.parameters:
        found[SHARE] = json.dumps(dict(it.claim.parameters), separators=(",", ":"), sort_keys=True)
    if it.unit:
        found[UNIT] = it.unit
    return found


def unit(annotations: Mapping[str, str]) -> str:
    """What the IDs of an answer counted memory in; empty where nothing, or what is no mark of ours."""
    said = annotations.get(UNIT, "")
    return said if said in THOUSANDTHS else ""


def cards(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The cards of an answer that are not those of its IDs; none where they are."""
    return tuple(dict.fromkeys(filter(None, annotations.get(CARDS, "").split(","))))


def share(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """The parameters that an answer was made with; none of what is no mark of ours."""
    try:
        said: Any = json.loads(annotations.get(SHARE, "{}"))
    except (ValueError, RecursionError):
        return {}
    texts = isinstance(said, dict) and all(isinstance(it, str) for it in said.values())
    return said if texts else {}

"""A scheduler that promises pods percents of cards, as koord-scheduler does, and knows its own pods alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agent.core.koordinator.allocated import ALLOCATED
from agent.core.vendor import Device

NAME = "koord-scheduler"
CORE, RATIO, SHARED = (f"koordinator.sh/{it}" for it in ("gpu-core", "gpu-memory-ratio", "gpu.shared"))


def limits(percent: int) -> Mapping[str, int]:
    """What a pod asks for beside the device plugin's resource."""
    return {CORE: percent, RATIO: percent, SHARED: 1}


def said(card: Device, percent: int) -> Mapping[str, str]:
    """What stands on a pod that was promised so much of a card."""
    resources = {CORE: str(percent), RATIO: str(percent)}
    return {ALLOCATED: json.dumps({"gpu": [{"minor": card.minor, "id": card.uuid, "resources": resources}]})}


def with_room(cards: Sequence[Device], promised: Iterable[tuple[str, int]], percent: int) -> Sequence[Device]:
    """The cards that have so much left. `promised`: card and percent of each pod that is not over."""
    taken: Counter[str] = Counter()
    for card, its in promised:
        taken[card] += its
    return [it for it in cards if taken[it.uuid] + percent <= 100]

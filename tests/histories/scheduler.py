"""Schedulers that promise pods a part of a card, as those of the field do, and know their own pods alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.vendor_api.agent import Device

CORE, RATIO, SHARED = (f"koordinator.sh/{it}" for it in ("gpu-core", "gpu-memory-ratio", "gpu.shared"))
#: Slices to the name and number of a profile of that size.
PROFILES = {1: ("1g.8gb", "0"), 2: ("2g.16gb", "1"), 3: ("3g.24gb", "2"), 6: ("6g.48gb", "3")}


@dataclass(frozen=True, slots=True)
class Wish:
    """`amount` of the `whole` of a card. `count`: IDs. `percent`: what the container is held to, 0 where its
    IDs say it. `limits`: what is asked for beside the device plugin's resource.
    """

    resource: str
    amount: int
    whole: int
    count: int = 1
    percent: int = 0
    limits: Mapping[str, int] | None = None

    def with_room(self, cards: Sequence[Device], promised: Iterable[tuple[str, int]]) -> Sequence[Device]:
        """The cards that have so much left. `promised`: card and amount of each pod that is not over."""
        taken: Counter[str] = Counter()
        for card, its in promised:
            taken[card] += its
        return [it for it in cards if taken[it.uuid] + self.amount <= self.whole]


class Koordinator:
    """koord-scheduler gives percents."""

    name = "koord-scheduler"

    def wishes(self, resource: str, whole: int) -> Sequence[Wish]:
        return [
            Wish(resource, it, 100, percent=it, limits={CORE: it, RATIO: it, SHARED: 1})
            for it in (10, 25, 40, 60)
        ]

    def said(self, card: Device, wish: Wish, now: float) -> Mapping[str, str]:
        """What stands on a pod that was promised so much of a card."""
        resources = {CORE: str(wish.percent), RATIO: str(wish.percent)}
        its = {"minor": card.minor, "id": card.uuid, "resources": resources}
        return {ALLOCATED: json.dumps({"gpu": [its]})}


class GcuShare:
    """GCUShare's fourth generation gives sixths, or as many shares as the node has."""

    name = "gcushare-scheduler"

    def wishes(self, resource: str, whole: int) -> Sequence[Wish]:
        return [Wish(resource, it, whole, count=it) for it in PROFILES if it <= whole]

    def said(self, card: Device, wish: Wish, now: float) -> Mapping[str, str]:
        key = f"{wish.resource.partition('/')[0]}/gcu"
        said = {
            f"{key}-assigned-minor": str(card.minor),
            f"{key}-request-size": str(wish.amount),
            f"{key}-assigned": "false",
            f"{key}-assigned-time": str(int(now * 1e9)),
        }
        if wish.resource.endswith("/drs-gcu"):
            name, number = PROFILES[wish.amount]
            its = {"allocated": False, "request": wish.amount, "profileName": name, "profileID": number}
            said["assigned-containers"] = json.dumps({"main": its})
        return said


class Extender:
    """GCUShare's first generation, an extender of another scheduler, gives units of memory."""

    name = ""

    def wishes(self, resource: str, whole: int) -> Sequence[Wish]:
        return [Wish(resource, it, 48, count=it) for it in (8, 16, 40)]

    def said(self, card: Device, wish: Wish, now: float) -> Mapping[str, str]:
        return {
            "enflame.com/gcu-device-id": str(card.minor),
            "enflame.com/gcu-device-memory-request": str(wish.amount),
            "enflame.com/gcu-device-assigned": "false",
            "enflame.com/gcu-device-assign-time": str(int(now * 1e9)),
        }


Scheduler = Koordinator | GcuShare | Extender

"""What each vendor makes of its devices now: wishes and snapshot in, offers and complaints out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.core.model import NodeSnapshot
from agent.core.names import wrong_name
from agent.core.plan import Offer
from agent.core.text import shorten
from agent.core.vendor import Device, Offering, ResourceRule, Vendor

#: Complaints of one vendor that are passed on, and their characters.
COMPLAINTS, COMPLAINT_LIMIT = 16, 500


@dataclass(frozen=True, slots=True)
class Wish:
    """A vendor and the resources that the config asks of it; none leaves the choice to the vendor."""

    vendor: Vendor
    rules: tuple[ResourceRule, ...] = ()


class Offers:
    """Asks each vendor again only when its devices changed. A vendor that fails keeps its last offer."""

    def __init__(self, wishes: Sequence[Wish] = ()) -> None:
        self._wishes = tuple(wishes)
        self._seen: dict[str, tuple[Device, ...]] = {}
        self._made: dict[str, Offering] = {}

    def of(self, snapshot: NodeSnapshot) -> tuple[Offer, ...]:
        """The offers to plan with."""
        return tuple(Offer(it.vendor.name, self._offering(it, snapshot).rules) for it in self._wishes)

    @property
    def plain(self) -> tuple[Offer, ...]:
        """What the config asks of vendors that do not say themselves what they lack for it."""
        return tuple(Offer(it.vendor.name, it.rules) for it in self._wishes if it.vendor.resources is None)

    @property
    def complaints(self) -> Mapping[str, tuple[str, ...]]:
        """What the vendors could not serve when they were last asked; vendor to sentences."""
        return {name: made.complaints for name, made in self._made.items() if made.complaints}

    def _offering(self, wish: Wish, snapshot: NodeSnapshot) -> Offering:
        name = wish.vendor.name
        devices = tuple(it.device for it in snapshot.of(name) if not it.device.nameless)
        if name not in self._made or devices != self._seen[name]:
            self._seen[name] = devices
            self._made[name] = _asked(wish, devices, self._made.get(name, Offering()))
        return self._made[name]


def _asked(wish: Wish, devices: tuple[Device, ...], last: Offering) -> Offering:
    if wish.vendor.resources is None:
        return Offering(wish.rules or (ResourceRule(wish.vendor.resource),))
    if not devices:
        return Offering()
    try:
        made = wish.vendor.resources(wish.rules, devices)
        wrong = [trouble for rule in made.rules if (trouble := wrong_name(rule.name))]
    except Exception as exc:  # the vendor's own code: it must not end the agent
        wrong = [f"{type(exc).__name__}: {exc}"]
    if wrong:
        return Offering(last.rules, (f"its plugin fails to make resources: {shorten(wrong[0], 300)}",))
    told = tuple(shorten(it, COMPLAINT_LIMIT) for it in made.complaints[:COMPLAINTS])
    return Offering(made.rules, told)

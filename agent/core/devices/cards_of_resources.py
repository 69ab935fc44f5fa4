"""Which cards are to be whose: offers and snapshot in, cards of each rule out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agent.core.model import DeviceStatus, NodeSnapshot, VendorState
from agent.vendor_api.agent import ResourceRule


@dataclass(frozen=True, slots=True)
class Offer:
    """A vendor and the resources made of its devices. Rules of one name are one resource."""

    vendor: str
    rules: tuple[ResourceRule, ...]
    #: Whether they may name the same cards, each of which is the first's that takes of it.
    dynamic: bool = False
    #: Those of them whose containers need hardware that is made.
    made: frozenset[str] = frozenset()


def dealt(
    offers: Iterable[Offer], snapshot: NodeSnapshot
) -> Iterator[tuple[Offer, ResourceRule, Sequence[DeviceStatus]]]:
    """Offer, rule, and the devices that are to be its: a device is the first's that names it, or each's."""
    for offer in offers:
        its = [it for it in snapshot.of(offer.vendor) if not it.device.nameless]
        left: dict[str, list[DeviceStatus]] = {}
        for rule in offer.rules:
            whose = rule.name if offer.dynamic else ""
            chosen = _chosen(rule, left.setdefault(whose, its))
            taken = {status.uuid for status in chosen}
            left[whose] = [status for status in left[whose] if status.uuid not in taken]
            yield offer, rule, chosen


def beside(offer: Offer, rule: ResourceRule) -> frozenset[str]:
    """The other resources that may name the cards of this one."""
    names = {it.name for it in offer.rules if it.name != rule.name}
    return frozenset(names) if offer.dynamic else frozenset()


def _chosen(rule: ResourceRule, statuses: Sequence[DeviceStatus]) -> Sequence[DeviceStatus]:
    """A slice is chosen by its uuid only."""
    whole = [it for it in statuses if it.device.parent is None]
    if rule.devices == "all":
        return whole
    if isinstance(rule.devices, int):
        return whole[: rule.devices]
    wanted = set(rule.devices)
    indices = {it.uuid for it in whole if it.device.index in wanted}
    return [it for it in statuses if it.uuid in wanted or it.uuid in indices]


def absent(offers: Iterable[Offer], snapshot: NodeSnapshot) -> tuple[str, ...]:
    """A sentence for each rule that names cards which its vendor does not list."""
    heard = {it.name for it in snapshot.vendors if it.state is VendorState.OPEN}
    found = (
        _absent(rule, offer.vendor, snapshot.of(offer.vendor))
        for offer in offers
        if offer.vendor in heard
        for rule in offer.rules
    )
    return tuple(sentence for sentence in found if sentence)


def _absent(rule: ResourceRule, vendor: str, statuses: Sequence[DeviceStatus]) -> str:
    whole = sum(it.device.parent is None for it in statuses)
    if isinstance(rule.devices, int) and rule.devices > whole:
        return f"{rule.name} asks for {rule.devices} cards, {vendor} lists {whole}"
    if not isinstance(rule.devices, tuple):
        return ""
    known = {it.uuid for it in statuses} | {it.device.index for it in statuses}
    missing = ", ".join(str(it) for it in rule.devices if it not in known)
    return f"{rule.name} names {missing}, which {vendor} does not list" if missing else ""

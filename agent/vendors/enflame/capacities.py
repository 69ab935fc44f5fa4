"""What schedulers of Enflame's cards read on the Node: the slices of each card, and the count of cards. Pure.

Sources: EnflameTechnology/gcushare ee04a65, gcushare-device-plugin/pkg/{resource/node,server/server}.go (what
is written: a card without a healthy slice is not named) and gcushare-scheduler-plugin/src/v1/pkg/resources/
{node,pod}.go (what is read: from a card's slices the scheduler subtracts the limits of the main containers of
pods on that card; a negative result ends the scheduling of every pod; kube-scheduler shows no pod that has
ended); Project-HAMi/HAMi 4707fb0 pkg/device/enflame (the slices of the hardware), v2.8.0 (shared-gcu divided
by gcu-count).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from agent.vendor_api.agent import Device, Grant, Offering, ResourceRule

from .agent.names import Brand
from .agent.offering import DRS_DIALECTS
from .agent.options import Options
from .shared import constants

Offers = Callable[[Sequence[ResourceRule], Sequence[Device]], Offering]

SHARED_CAPACITY = "enflame.com/gcu-shared-capacity"
DRS_CAPACITY = "enflame.com/gcu-drs-capacity"
#: The dialect without a scheduler.
UNREAD = "none"


def annotation_keys(brand: Brand) -> tuple[str, ...]:
    """The keys of the Node's annotations."""
    return (*_shared_keys(brand), *_drs_keys(brand))


def extended_resource_keys(brand: Brand) -> tuple[str, ...]:
    return (brand.count,)


def node_annotations(
    options: Options,
    offers: Offers,
    rules: Sequence[ResourceRule],
    devices: Sequence[Device],
    grants: Sequence[Grant],
) -> Mapping[str, str | None]:
    """The number of slices of each card, for each offered resource that the dialect's scheduler reads.

    A card that new pods cannot get has none, and neither has a card with pods that the scheduler does not
    count. GCUShare itself leaves out cards that have the other kind of slices; HAMi does not.
    """
    if options.dialect not in DRS_DIALECTS:
        return {}
    brand, offered = options.brand, offers(rules, devices).rules
    both = (brand.shared, brand.drs) if options.dialect == "gcushare-v4" else ()
    found: dict[str, str | None] = {}
    if shared := _cards(offered, brand.shared, devices):
        seen, sizes = {brand.shared, *both}, _replicas(offered, brand.shared)
        counts = {
            str(card.minor): _slices(
                card, brand.shared, seen, grants, 0 if _foreign(card) else sizes[card.uuid]
            )
            for card in shared
        }
        found |= dict.fromkeys(
            _shared_keys(brand), _json({minor: count for minor, count in counts.items() if count})
        )
    if sliced := _cards(offered, brand.drs, devices):
        seen = {brand.drs, *both}
        entries = [
            {"index": str(card.index), "minor": str(card.minor), "capacity": count}
            for card in sliced
            if (count := _slices(card, brand.drs, seen, grants, constants.SLICES - _foreign(card)))
            or not both
        ]
        found |= dict.fromkeys(_drs_keys(brand), _json({"devices": entries, "profiles": _profiles(sliced)}))
    return found


def extended_resources(
    options: Options, offers: Offers, rules: Sequence[ResourceRule], devices: Sequence[Device]
) -> Mapping[str, int | None]:
    """The number of shared cards, broken ones included: schedulers divide the kubelet's count of IDs by it.

    Of several resources it is the one that they divide. None where no card is shared, or the dialect has no
    scheduler.
    """
    brand = options.brand
    offered = offers(rules, devices).rules if options.dialect != UNREAD else ()
    counts = (len(_cards(offered, name, devices)) for name in (brand.shared, brand.memory, brand.drs))
    return {brand.count: next(filter(None, counts), None)}


# For another brand GCUShare's scheduler reads other annotations than GCUShare's plugin writes, so the Node
# has both. For shares without isolation the scheduler replaces the domain alone, for DRS it reads Enflame's.


def _shared_keys(brand: Brand) -> tuple[str, ...]:
    return tuple(dict.fromkeys((brand.key(SHARED_CAPACITY), brand.domain_key(SHARED_CAPACITY))))


def _drs_keys(brand: Brand) -> tuple[str, ...]:
    return tuple(dict.fromkeys((brand.key(DRS_CAPACITY), DRS_CAPACITY)))


def _cards(offered: Sequence[ResourceRule], name: str, devices: Sequence[Device]) -> list[Device]:
    """The cards of the resource, in their order, without cards that have no minor number."""
    uuids = _replicas(offered, name)
    return [it for it in devices if it.uuid in uuids and it.minor is not None]


def _replicas(offered: Sequence[ResourceRule], name: str) -> Mapping[str, int]:
    """The number of IDs of each card of the resource, by uuid."""
    return {
        str(uuid): rule.sharing.replicas
        for rule in offered
        if rule.name == name and isinstance(rule.devices, tuple)
        for uuid in rule.devices
    }


def _slices(card: Device, name: str, seen: set[str], grants: Sequence[Grant], size: int) -> int:
    """The number of slices of the card that a scheduler may assign: `size` without those it does not count.

    The scheduler counts the requests of main containers of pods that have not ended. Slices that init
    containers have beyond that are subtracted here. 0 for a card that new pods cannot get, and for a card
    that has more allocations than slices.
    """
    here = [it for it in grants if card.uuid in it.uuids]
    if card.fault is not None or any(it.request.resource not in seen for it in here):
        return 0
    known = [it for it in here if it.request.resource == name and it.pod is not None and not it.pod.ended]
    taken, counted = _taken(known), sum(len(it.request.ids) for it in known if _is_main(it))
    return 0 if max(taken, counted) > size else size - max(0, taken - counted)


def _taken(grants: Sequence[Grant]) -> int:
    """The number of taken slices. Containers of a pod have the same ID in turn, but never a made slice."""
    made = sum(len(it.request.ids) for it in grants if it.partitions)
    return made + len({name for grant in grants if not grant.partitions for name in grant.request.ids})


def _is_main(grant: Grant) -> bool:
    containers = grant.pod.containers if grant.pod is not None else ()
    return any(it.name == grant.container and not it.init for it in containers)


def _foreign(card: Device) -> int:
    """Sixths of the card that foreign slices take."""
    text = card.attributes.get(constants.FOREIGN_SIXTHS, "")
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def _profiles(cards: Sequence[Device]) -> Mapping[str, str]:
    """Name to number of the profiles that all cards have: schedulers read one list for the Node."""
    lists = [
        {name: number for name, _, number in (it.partition(":") for it in _told(card))} for card in cards
    ]
    common = set.intersection(*(set(it.items()) for it in lists)) if lists else set()
    return {name: number for name, number in lists[0].items() if (name, number) in common} if lists else {}


def _told(card: Device) -> list[str]:
    return [it for it in card.attributes.get(constants.PROFILES, "").split(",") if ":" in it]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))

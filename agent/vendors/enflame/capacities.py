"""What schedulers of Enflame's cards read of the Node: the slices of each card, and how many cards. Pure.

Sources: EnflameTechnology/gcushare ee04a65, gcushare-device-plugin/pkg/{resource/node,server/server}.go (what
is written: a card without a healthy slice is not named) and gcushare-scheduler-plugin/src/v1/pkg/resources/
{node,pod}.go (what is read: of a card's slices it takes the limits of the main containers of the pods that
are told to be on it, and less than none ends the scheduling of every pod; kube-scheduler shows it no pod that
has ended); Project-HAMi/HAMi 4707fb0 pkg/device/enflame (the slices of the hardware), v2.8.0 (shared-gcu
divided by gcu-count).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from agent.vendor_api.agent import Device, Grant, Offering, ResourceRule

from . import constants
from .agent.names import Brand
from .agent.offering import DRS_DIALECTS
from .agent.options import Options

Offers = Callable[[Sequence[ResourceRule], Sequence[Device]], Offering]

SHARED_CAPACITY = "enflame.com/gcu-shared-capacity"
DRS_CAPACITY = "enflame.com/gcu-drs-capacity"
#: The dialect in which nobody reads anything.
UNREAD = "none"


def annotation_keys(brand: Brand) -> tuple[str, ...]:
    """Of the Node."""
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
    """How many slices each card has to give, of those resources that are offered and have a reader.

    Of a card that nobody new gets, or that pods have of which the reader knows nothing, there are none.
    GCUShare leaves out by itself the cards that have the other kind of slices, HAMi does not.
    """
    if options.dialect not in DRS_DIALECTS:
        return {}
    brand, offered = options.brand, offers(rules, devices).rules
    both = (brand.shared, brand.drs) if options.dialect == "gcushare-v4" else ()
    found: dict[str, str | None] = {}
    if shared := _cards(offered, brand.shared, devices):
        seen, sizes = {brand.shared, *both}, _replicas(offered, brand.shared)
        counts = {
            str(it.minor): _slices(it, brand.shared, seen, grants, 0 if _foreign(it) else sizes[it.uuid])
            for it in shared
        }
        found |= dict.fromkeys(_shared_keys(brand), _json({it: n for it, n in counts.items() if n}))
    if sliced := _cards(offered, brand.drs, devices):
        seen = {brand.drs, *both}
        entries = [
            {"index": str(it.index), "minor": str(it.minor), "capacity": count}
            for it in sliced
            if (count := _slices(it, brand.drs, seen, grants, constants.SLICES - _foreign(it))) or not both
        ]
        found |= dict.fromkeys(_drs_keys(brand), _json({"devices": entries, "profiles": _profiles(sliced)}))
    return found


def extended_resources(
    options: Options, offers: Offers, rules: Sequence[ResourceRule], devices: Sequence[Device]
) -> Mapping[str, int | None]:
    """How many cards are shared, the broken ones too: schedulers divide the kubelet's count of IDs by it.

    Of several resources the one that they divide; none where no card is shared, or nobody reads it.
    """
    brand = options.brand
    offered = offers(rules, devices).rules if options.dialect != UNREAD else ()
    counts = (len(_cards(offered, name, devices)) for name in (brand.shared, brand.memory, brand.drs))
    return {brand.count: next(filter(None, counts), None)}


# GCUShare's scheduler reads another brand's annotations by other names than its plugin writes them, so that a
# node bears both: of slices without isolation it looks for the domain put in alone, of DRS for Enflame's own.


def _shared_keys(brand: Brand) -> tuple[str, ...]:
    return tuple(dict.fromkeys((brand.key(SHARED_CAPACITY), brand.domain_key(SHARED_CAPACITY))))


def _drs_keys(brand: Brand) -> tuple[str, ...]:
    return tuple(dict.fromkeys((brand.key(DRS_CAPACITY), DRS_CAPACITY)))


def _cards(offered: Sequence[ResourceRule], name: str, devices: Sequence[Device]) -> list[Device]:
    """The cards that the resource offers, by their order; one whose node has no number cannot be told."""
    uuids = _replicas(offered, name)
    return [it for it in devices if it.uuid in uuids and it.minor is not None]


def _replicas(offered: Sequence[ResourceRule], name: str) -> Mapping[str, int]:
    """How many IDs each card of the resource has. Rules that come out name their cards by uuid."""
    return {
        str(uuid): it.sharing.replicas
        for it in offered
        if it.name == name and isinstance(it.devices, tuple)
        for uuid in it.devices
    }


def _slices(card: Device, name: str, seen: set[str], grants: Sequence[Grant], size: int) -> int:
    """How many slices a scheduler may give out of the card in all: `size`, less those it does not count.

    It counts what main containers of pods that have not ended ask for: what init containers have beyond that
    is no slice of the card. None of a card that nobody new gets, or that pods have more of than it has.
    """
    here = [it for it in grants if card.uuid in it.uuids]
    if card.fault is not None or any(it.request.resource not in seen for it in here):
        return 0
    its = [it for it in here if it.request.resource == name and it.pod is not None and not it.pod.ended]
    taken, counted = _taken(its), sum(len(it.request.ids) for it in its if _is_main(it))
    return 0 if max(taken, counted) > size else size - max(0, taken - counted)


def _taken(grants: Sequence[Grant]) -> int:
    """How many are taken. Containers of a pod have an ID one after another, and a made slice each."""
    made = sum(len(it.request.ids) for it in grants if it.partitions)
    return made + len({one for it in grants if not it.partitions for one in it.request.ids})


def _is_main(it: Grant) -> bool:
    containers = it.pod.containers if it.pod is not None else ()
    return any(one.name == it.container and not one.init for one in containers)


def _foreign(card: Device) -> int:
    """Sixths of the card that slices take which nobody of us made."""
    text = card.attributes.get(constants.FOREIGN_SIXTHS, "")
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def _profiles(cards: Sequence[Device]) -> Mapping[str, str]:
    """Name to number of those that all cards have: the readers know of one list for the node."""
    its = [{name: number for name, _, number in (it.partition(":") for it in _told(card))} for card in cards]
    common = set.intersection(*(set(it.items()) for it in its)) if its else set()
    return {name: number for name, number in its[0].items() if (name, number) in common} if its else {}


def _told(card: Device) -> list[str]:
    return [it for it in card.attributes.get(constants.PROFILES, "").split(",") if ":" in it]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))

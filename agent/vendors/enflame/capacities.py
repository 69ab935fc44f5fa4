"""The facts on the Node for schedulers of Enflame's cards: the slices of each card, and the card count. Pure.

Sources: EnflameTechnology/gcushare ee04a65, gcushare-device-plugin/pkg/{resource/node,server/server}.go, for
what is written: a card without a healthy slice is not named. gcushare-scheduler-plugin/src/v1/pkg/resources/
{node,pod}.go, for what is read: from a card's slices the scheduler subtracts the limits of the main
containers of all pods with an annotation for the card. A negative result ends the scheduling of every pod.
kube-scheduler shows it no pod that has ended. Project-HAMi/HAMi 4707fb0 pkg/device/enflame, for slices of the
hardware, and v2.8.0, which divides shared-gcu by gcu-count.
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
#: The value of the setting `dialect` without a scheduler that reads the Node.
UNREAD = "none"


def annotation_keys(brand: Brand) -> tuple[str, ...]:
    """The keys of all annotations that `node_annotations` can have."""
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
    """The annotations with the number of slices that each card offers, for offered resources with a reader.

    A card has no slices for the reader if new pods cannot get the card, or if pods have it by a resource that
    the reader does not know. GCUShare itself leaves out cards that have the other kind of slices, HAMi does
    not.
    """
    if options.dialect not in DRS_DIALECTS:
        return {}
    brand, offered = options.brand, offers(rules, devices).rules
    both = (brand.shared, brand.drs) if options.dialect == "gcushare-v4" else ()
    found: dict[str, str | None] = {}
    if shared := _cards(offered, brand.shared, devices):
        known, sizes = {brand.shared, *both}, _replicas(offered, brand.shared)
        counts = {
            str(card.minor): _slices(
                card, brand.shared, known, grants, 0 if _foreign(card) else sizes[card.uuid]
            )
            for card in shared
        }
        counts = {minor: count for minor, count in counts.items() if count}
        found |= dict.fromkeys(_shared_keys(brand), _json(counts))
    if sliced := _cards(offered, brand.drs, devices):
        known = {brand.drs, *both}
        entries = [
            {"index": str(card.index), "minor": str(card.minor), "capacity": count}
            for card in sliced
            if (count := _slices(card, brand.drs, known, grants, constants.SLICES - _foreign(card)))
            or not both
        ]
        found |= dict.fromkeys(_drs_keys(brand), _json({"devices": entries, "profiles": _profiles(sliced)}))
    return found


def extended_resources(
    options: Options, offers: Offers, rules: Sequence[ResourceRule], devices: Sequence[Device]
) -> Mapping[str, int | None]:
    """The number of shared cards, with unhealthy ones: schedulers divide the kubelet's count of IDs by it.

    If there are several resources, this is the one that schedulers divide. None without shared cards, or
    without a reader.
    """
    brand = options.brand
    offered = offers(rules, devices).rules if options.dialect != UNREAD else ()
    counts = (len(_cards(offered, name, devices)) for name in (brand.shared, brand.memory, brand.drs))
    return {brand.count: next(filter(None, counts), None)}


# For other brands GCUShare's scheduler reads other annotations than GCUShare's plugin writes, so a node gets
# both: for slices without isolation it only replaces the domain, for DRS it reads Enflame's annotation.


def _shared_keys(brand: Brand) -> tuple[str, ...]:
    return tuple(dict.fromkeys((brand.key(SHARED_CAPACITY), brand.domain_key(SHARED_CAPACITY))))


def _drs_keys(brand: Brand) -> tuple[str, ...]:
    return tuple(dict.fromkeys((brand.key(DRS_CAPACITY), DRS_CAPACITY)))


def _cards(offered: Sequence[ResourceRule], name: str, devices: Sequence[Device]) -> list[Device]:
    """The cards that the resource offers, in their order. A card without a minor number has no name here."""
    uuids = _replicas(offered, name)
    return [it for it in devices if it.uuid in uuids and it.minor is not None]


def _replicas(offered: Sequence[ResourceRule], name: str) -> Mapping[str, int]:
    """The number of device IDs that each card of the resource has. Offered rules name their cards by uuid."""
    return {
        str(uuid): rule.sharing.replicas
        for rule in offered
        if rule.name == name and isinstance(rule.devices, tuple)
        for uuid in rule.devices
    }


def _slices(card: Device, name: str, known: set[str], grants: Sequence[Grant], size: int) -> int:
    """The number of slices of the card for a scheduler: `size`, less the slices that it does not count.

    A scheduler counts the requests of the main containers of pods that have not ended, and no slices of init
    containers beyond that. 0 if the card has a fault, if pods have it by a resource that is not in `known`,
    or if pods have more slices than `size`.
    """
    on_card = [it for it in grants if card.uuid in it.uuids]
    if card.fault is not None or any(it.request.resource not in known for it in on_card):
        return 0
    own = [it for it in on_card if it.request.resource == name and it.pod is not None and not it.pod.ended]
    taken, counted = _taken(own), sum(len(it.request.ids) for it in own if _is_main(it))
    return 0 if max(taken, counted) > size else size - max(0, taken - counted)


def _taken(grants: Sequence[Grant]) -> int:
    """The number of slices in use. Containers of a pod can have the same ID in turn, but no made slice."""
    made = sum(len(it.request.ids) for it in grants if it.partitions)
    return made + len({device_id for it in grants if not it.partitions for device_id in it.request.ids})


def _is_main(grant: Grant) -> bool:
    containers = grant.pod.containers if grant.pod is not None else ()
    return any(container.name == grant.container and not container.init for container in containers)


def _foreign(card: Device) -> int:
    """The sixths of the card that foreign slices take."""
    text = card.attributes.get(constants.FOREIGN_SIXTHS, "")
    return int(text) if text.isdecimal() and len(text) < 4 else 0


def _profiles(cards: Sequence[Device]) -> Mapping[str, str]:
    """The profiles that all cards have, name to number: readers take one list for the whole node."""
    if not cards:
        return {}
    first, *others = map(_profiles_of, cards)
    return {name: number for name, number in first.items() if all(it.get(name) == number for it in others)}


def _profiles_of(card: Device) -> dict[str, str]:
    texts = card.attributes.get(constants.PROFILES, "").split(",")
    parts = (text.partition(":") for text in texts if ":" in text)
    return {name: number for name, _, number in parts}


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))

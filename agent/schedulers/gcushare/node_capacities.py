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
from collections.abc import Mapping, Sequence, Set
from functools import partial

from agent.scheduler_api import CountedCard, Grant, SchedulerFacts

from .names import ResourceNames

SHARED_CAPACITY = "enflame.com/gcu-shared-capacity"
DRS_CAPACITY = "enflame.com/gcu-drs-capacity"


def facts(names: ResourceNames, dialect: str) -> SchedulerFacts:
    """What the schedulers of the dialect read on the Node.

    The keys are those of all dialects, so that the agent removes what it wrote for another dialect. In the
    dialect `none` no scheduler reads, and everything is removed.
    """
    slices = {
        "gcushare-v4": partial(node_annotations, names, {names.shared, names.drs}),
        "hami": partial(node_annotations, names, frozenset[str]()),
    }
    return SchedulerFacts(
        annotations=slices.get(dialect),
        annotation_keys=(*_shared_keys(names), *_drs_keys(names)),
        extended_resources=partial(extended_resources, names) if dialect != "none" else None,
        extended_resource_keys=(names.count,),
    )


def node_annotations(
    names: ResourceNames, both: Set[str], cards: Sequence[CountedCard], grants: Sequence[Grant]
) -> Mapping[str, str | None]:
    """The number of slices of each card, for each offered resource that the dialect's scheduler reads.

    `both`: the resources that the scheduler counts together on one card; empty where it counts each alone. A
    card that new pods cannot get has no slices, and neither has a card with pods that the scheduler does not
    count. GCUShare itself leaves out cards that have the other kind of slices; HAMi does not.
    """
    found: dict[str, str | None] = {}
    if shared := _of(cards, names.shared):
        counts = {str(it.device.minor): _slices(it, {names.shared, *both}, grants) for it in shared}
        found |= dict.fromkeys(
            _shared_keys(names), _json({minor: count for minor, count in counts.items() if count})
        )
    if sliced := _of(cards, names.drs):
        entries = [
            {"index": str(card.device.index), "minor": str(card.device.minor), "capacity": count}
            for card in sliced
            if (count := _slices(card, {names.drs, *both}, grants)) or not both
        ]
        found |= dict.fromkeys(_drs_keys(names), _json({"devices": entries, "profiles": _profiles(sliced)}))
    return found


def extended_resources(names: ResourceNames, cards: Sequence[CountedCard]) -> Mapping[str, int | None]:
    """The number of shared cards, broken ones included: schedulers divide the kubelet's count of IDs by it.

    Of several resources it is the one that they divide. None where no card is shared.
    """
    counts = (len(_of(cards, name)) for name in (names.shared, names.memory, names.drs))
    return {names.count: next(filter(None, counts), None)}


# For another brand GCUShare's scheduler reads other annotations than GCUShare's plugin writes, so the Node
# has both. For shares without isolation the scheduler replaces the domain alone, for DRS it reads Enflame's.


def _shared_keys(names: ResourceNames) -> tuple[str, ...]:
    return tuple(dict.fromkeys((names.key(SHARED_CAPACITY), names.domain_key(SHARED_CAPACITY))))


def _drs_keys(names: ResourceNames) -> tuple[str, ...]:
    return tuple(dict.fromkeys((names.key(DRS_CAPACITY), DRS_CAPACITY)))


def _of(cards: Sequence[CountedCard], resource: str) -> list[CountedCard]:
    """The cards of the resource, without cards that have no minor number."""
    return [it for it in cards if it.resource == resource and it.device.minor is not None]


def _slices(card: CountedCard, seen: Set[str], grants: Sequence[Grant]) -> int:
    """The number of slices of the card that a scheduler may assign, without slices that it does not count.

    `seen`: the resources that the scheduler counts on the card.

    The scheduler counts the requests of main containers of pods that have not ended. Slices that init
    containers have beyond that are subtracted here. 0 for a card that new pods cannot get, and for a card
    that has more allocations than slices.
    """
    size, device = card.count, card.device
    here = [it for it in grants if device.uuid in it.uuids]
    if device.fault is not None or any(it.request.resource not in seen for it in here):
        return 0
    own = [it for it in here if it.request.resource == card.resource]
    known = [it for it in own if it.pod is not None and not it.pod.ended]
    taken, counted = _taken(known), sum(len(it.request.ids) for it in known if _is_main(it))
    return 0 if max(taken, counted) > size else size - max(0, taken - counted)


def _taken(grants: Sequence[Grant]) -> int:
    """The number of taken slices. Containers of a pod have the same ID in turn, but never a made slice."""
    made = sum(len(it.request.ids) for it in grants if it.partitions)
    return made + len({name for grant in grants if not grant.partitions for name in grant.request.ids})


def _is_main(grant: Grant) -> bool:
    containers = grant.pod.containers if grant.pod is not None else ()
    return any(it.name == grant.container and not it.init for it in containers)


def _profiles(cards: Sequence[CountedCard]) -> Mapping[str, str]:
    """Name to number of the profiles that all cards have: schedulers read one list for the Node."""
    first, *others = (it.profiles for it in cards)
    return {
        name: number for name, number in first.items() if all((name, number) in it.items() for it in others)
    }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))

"""Makes the kubelet follow a scheduler's choice: prefers device IDs on the chosen cards. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from agent.core.allocation.best_free_ids import prefer
from agent.core.attribution.next_request import next_request
from agent.core.attribution.waiting_pods import WaitingPods
from agent.core.devices.topology import Topology
from agent.core.model import Resource


def chosen_ids(
    resource: Resource,
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    topology: Topology,
    waiting: WaitingPods,
    room: Mapping[str, int] | None = None,
) -> list[str]:
    """`size` of the available IDs, with the required ones, on the cards of the pod that may ask next.

    A pod without a promise gets no promised cards while there are others. `room`: as for `prefer`.
    """
    cards = resource.uuids_of(available)
    held = {cards[device_id] for device_id in required if device_id in cards}
    aim = next_request(resource.name, size, held, {*cards.values()}, waiting)
    if aim.cards and (chosen := _choose_evenly(aim.cards, available, required, size, cards)):
        return chosen
    others = [
        device_id for device_id in available if device_id in required or cards.get(device_id) not in aim.avoid
    ]
    chosen = prefer(resource, others, required, size, topology, room) if aim.avoid else []
    return chosen or prefer(resource, available, required, size, topology, room)


def _choose_evenly(
    aim: Sequence[str],
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    cards: Mapping[str, str],
) -> list[str]:
    """The same number of IDs of each card, one more of the first ones if need be; [] if that fails."""
    must = list(dict.fromkeys(required))
    left = {
        uuid: deque(
            device_id for device_id in available if cards.get(device_id) == uuid and device_id not in must
        )
        for uuid in aim
    }
    got = Counter(cards[device_id] for device_id in must if device_id in cards)
    chosen = must
    while len(chosen) < size:
        uuid = min((it for it in aim if left[it]), key=lambda it: got[it], default=None)
        if uuid is None:
            return []
        chosen.append(left[uuid].popleft())
        got[uuid] += 1
    return chosen if len(chosen) == size and set(got) == set(aim) else []

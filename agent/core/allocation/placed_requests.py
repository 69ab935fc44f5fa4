"""Where an admitted request lies: its claim and its cards, or why it cannot be placed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.core.allocation.admission import Admitted
from agent.core.allocation.scheduler_promises import PlacementChoice, Promises, holder
from agent.core.devices.dynamic_modes import holder_in_other_mode
from agent.core.errors import InOtherMode
from agent.core.model import Allocation


@dataclass(frozen=True, slots=True)
class PlacedRequest:
    """A request with its claim, and the cards that it gets instead of those of its IDs."""

    request: Admitted
    choice: PlacementChoice


def place(promises: Promises, request: Admitted, others: Sequence[Allocation]) -> PlacedRequest:
    """Place a request. `others`: allocations of the resource that take room.

    Raises:
        AllocationError: A scheduler chose other cards, or there is no room.
        InOtherMode: Another resource has one of the cards.
    """
    choice = promises.choice(request, others)
    _refuse_other_mode(promises, request, choice.instead or [it.uuid for it in request.devices])
    return PlacedRequest(request, choice)


def others_in_use(in_use: Iterable[Allocation], request: Admitted) -> list[Allocation]:
    """The allocations of the resource, without those whose IDs the kubelet gives out again."""
    again = frozenset(request.ids)
    return [it for it in in_use if it.resource == request.resource.name and again.isdisjoint(it.ids)]


def _refuse_other_mode(promises: Promises, request: Admitted, uuids: Sequence[str]) -> None:
    """Refuse a card that went to another resource since the plan was made.

    Where a pod has ended, the kubelet may take an ID for free whose card another plugin gave to that pod: the
    ID is listed for as long as the pod may be there.

    Raises:
        InOtherMode: One of the cards has gone to another resource.
    """
    planned = request.resource
    for card in planned.cards:
        if card.mode and card.uuid in uuids and not any(one in card.held for one in request.ids):
            raise InOtherMode(planned.name, card.uuid, card.mode)
    for uuid in dict.fromkeys(uuids):
        if (allocation := holder_in_other_mode(planned, uuid, promises.in_use)) is not None:
            name = holder(allocation, allocation.resource)
            raise InOtherMode(planned.name, uuid, allocation.resource, name)

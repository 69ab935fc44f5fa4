"""What an allocation was granted of a card: bytes, and a part of the compute units. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from agent.core.allocation.allocations_in_use import ids_on_card
from agent.core.allocation.card_amounts import CardAmounts, part_of_card
from agent.core.devices.memory_units import THOUSANDTHS
from agent.core.model import Allocation, Resource
from agent.core.usage.known_sums import sum_of, sum_of_parts
from agent.scheduler_api.claims import Part


class Limits(Struct, frozen=True):
    """What was granted: bytes, and a part of the card from 0 to 1. None: no limit was granted."""

    memory: int | None = None
    compute: float | None = None


NO_LIMITS = Limits()


def granted(
    allocation: Allocation, uuid: str, planned: Resource | None, amounts: CardAmounts, made: int | None = None
) -> Limits:
    """What the allocation was granted of this card, by its answer.

    `planned`: the allocation's resource, as it is now. `made`: the bytes of the slice that was made for the
    allocation, where the library says how large the slice is.
    """
    part = _measured(allocation, uuid, amounts)
    if made is not None:
        return Limits(made, part.core or None if part is not None else None)
    if allocation.handed is not None and not allocation.handed:
        return NO_LIMITS
    memory = amounts.memory.get(uuid, 0)
    if part is not None:
        return Limits(round(part.memory * memory) or None, min(part.core, 1.0) or None)
    on_card = ids_on_card(uuid, allocation)
    if allocation.unit:
        size = THOUSANDTHS.get(allocation.unit, 0)
        return Limits((len(on_card) * size << 30) // 1000 or None)
    card = next((it for it in planned.cards if it.uuid == uuid), None) if planned is not None else None
    ids = card.ids if card is not None else None
    if ids is None or ids.count is not None or not on_card or any(it not in ids for it in on_card):
        return NO_LIMITS  # a replica, or an ID of a rule that is no longer in force
    return Limits(memory or None, 1.0)


def together(limits: Iterable[Limits]) -> Limits:
    """What one container was granted of a card by all its resources there."""
    granted_limits = tuple(limits)
    if len(granted_limits) == 1:
        return granted_limits[0]
    # A resource may limit one of the two alone, so what one does not limit is known.
    memory = sum_of(it.memory for it in granted_limits if it.memory is not None)
    return Limits(memory, sum_of_parts(it.compute for it in granted_limits if it.compute is not None))


def _measured(allocation: Allocation, uuid: str, amounts: CardAmounts) -> Part | None:
    """The part of the card by the parameters of the answer; None where its IDs say the part."""
    if allocation.handed is None:
        if allocation.claim is None:
            return None
        return amounts.amount_of_claim(allocation.claim, uuid, len({*allocation.cards}))
    if not allocation.handed:
        return None
    memory = amounts.memory.get(uuid, 0)
    parts = (part_of_card(measure, allocation.handed, memory) for measure in amounts.measures.values())
    return next((it for it in parts if it is not None), None)

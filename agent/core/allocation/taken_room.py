"""What takes room of the cards of one resource, card by card. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from msgspec import Struct, field

from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.card_amounts import CardAmounts
from agent.core.model import Allocation
from agent.scheduler_api.claims import Part


class TakenRoom(Struct, frozen=True):
    """The allocations that take room of a resource's cards."""

    resource: str
    #: Those of the resource count by their IDs, or by the amounts that schedulers promised.
    in_use: AllocationsInUse = field(default_factory=AllocationsInUse)
    #: How promised amounts are measured. By default IDs alone count.
    amounts: CardAmounts = field(default_factory=CardAmounts)
    #: Allocations that count by promised amounts alone.
    more: Sequence[Allocation] = ()
    #: The uids of the living pods. What a scheduler measured for another pod takes no room. Empty where the
    #: pods are not known, or do not count.
    alive: Collection[str] = ()

    def on_card(self, uuid: str) -> Sequence[Allocation]:
        """The allocations that take room of the card."""
        known = chain(self.in_use.on_card(self.resource, uuid), self._more_on_card(uuid))
        return [it for it in known if not self._is_over(it)]

    def diverged(self) -> bool:
        """Whether any of the allocations is on another card than its IDs name."""
        return not all(map(self._is_over, self.in_use.diverged(self.resource)))

    def ids_taken(self, uuid: str) -> int:
        """How many device IDs of the resource are taken on the card; see `AllocationsInUse.ids_taken`."""
        over = [it for it in self._measured_by_dialect(uuid) if self._is_over(it)] if self.alive else ()
        return self.in_use.without(over).ids_taken(self.resource, uuid)

    def is_measured(self, uuid: str) -> bool:
        """Whether any allocation on the card is measured, and not counted by its IDs."""
        otherwise = self.in_use.answered_otherwise_on_card(self.resource, uuid)
        known = chain(self._measured_by_dialect(uuid), otherwise, self._more_on_card(uuid))
        return self.amounts.is_measured_on(uuid, (it for it in known if not self._is_over(it)))

    def amount(self, uuid: str) -> Part:
        """What is taken of the card: for each pod, the most that the pod takes at one time."""
        return self.amounts.amount_on_card(uuid, self.on_card(uuid))

    def _measured_by_dialect(self, uuid: str) -> Iterator[Allocation]:
        """The allocations on the card with a claim in a dialect that has a measure."""
        dialects = self.amounts.measures
        return chain.from_iterable(self.in_use.claimed_on_card(self.resource, uuid, it) for it in dialects)

    def _more_on_card(self, uuid: str) -> Iterator[Allocation]:
        return (it for it in self.more if uuid in it.cards)

    def _is_over(self, allocation: Allocation) -> bool:
        return bool(self.alive) and self.amounts.is_gone(allocation, self.alive)

"""What schedulers promised to the pods of the node, and what containers have, as of one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.card_amounts import CardAmounts, measures
from agent.core.allocation.scene import Scene
from agent.core.allocation.taken_room import TakenRoom
from agent.core.attribution.claim_reading import promised_claim
from agent.core.attribution.dialects_of_resource import cards_by_minor, dialects
from agent.core.model import Allocation, Resource
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Claim
from agent.scheduler_api.dialects import Cards, Dialect
from agent.vendor_api.agent import Vendor


class Promises(Struct, frozen=True):
    """All claims and allocations as of one moment. The other files of this room ask questions about them."""

    scene: Scene
    in_use: AllocationsInUse
    #: The uids of pods that were refused most likely, though their status may not show that yet.
    refused: frozenset[str] = frozenset()
    #: The pods of `refused` where another pod may have been refused instead.
    guessed: frozenset[str] = frozenset()

    @property
    def pods(self) -> Mapping[str, Candidate]:
        """uid to pod."""
        return self.scene.candidates.by_uid

    def served(self, resource: str) -> tuple[Resource, Vendor] | None:
        """The planned resource with its vendor; None where no vendor serves it."""
        planned = self.scene.plan.get(resource)
        vendor = self.scene.vendors.get(planned.vendor) if planned else None
        return (planned, vendor) if planned is not None and vendor is not None else None

    def dialects(self, planned: Resource) -> Sequence[Dialect]:
        """The dialects that are read for the resource."""
        return dialects(self.scene.schedulers, self.scene.vendors[planned.vendor], planned)

    def cards(self, vendor: str) -> Cards:
        """The vendor's cards with their minor numbers."""
        return cards_by_minor(self.scene.snapshot, vendor)

    def amounts(self, planned: Resource) -> CardAmounts:
        """How the claims on the resource's cards are measured."""
        memory = {it.uuid: it.memory for it in self.scene.snapshot.present(planned.vendor)}
        dialects_with_measure = measures(self.dialects(planned))
        return CardAmounts(self.scene.plan, dialects_with_measure, memory, self.scene.candidates)

    def claim_of(self, allocation: Allocation, pod: Candidate | None, container: str) -> Claim | None:
        """What the allocation's resource promised to this container, as its pod says now."""
        served = self.served(allocation.resource)
        if pod is None or served is None or allocation.vendor not in self.scene.vendors:
            return None
        cards = self.cards(allocation.vendor)
        return promised_claim(allocation.resource, pod, container, self.dialects(served[0]), cards)

    def in_the_way(self, planned: Resource, in_use: AllocationsInUse, amounts: CardAmounts) -> TakenRoom:
        """What takes room of the resource's cards.

        These are the resource's allocations among `in_use`, and the cards that a scheduler gave by its word
        alone. A scheduler gives the room of an ended pod away before the kubelet and the ledger let go of it:
        what a scheduler measured for an ended pod takes no room. The kubelet counts IDs, and waits.
        """
        if planned.rule.placement == "local":
            return TakenRoom(planned.name, in_use, amounts)
        external = tuple(it for it in self.in_use.external() if it.vendor == planned.vendor)
        return TakenRoom(planned.name, in_use, amounts, external, self.scene.alive)

    def is_kept_by_ended(self, resource: str) -> bool:
        """Whether a pod that has ended still has one of the resource's cards, under whichever resource."""
        planned, alive = self.scene.plan.get(resource), self.scene.alive
        if planned is None or not alive:
            return False
        names = {resource, *planned.other_modes}
        places = (it.container_key for it in self.in_use if it.resource in names)
        return any(place is not None and place[0] not in alive for place in places)

"""The request that most likely comes next, by the claims of the waiting pods. Pure."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from agent.core.attribution.waiting_claims import WaitingClaims
from agent.core.attribution.waiting_pods import WaitingPods
from agent.scheduler_api.claims import Claim


class NextRequest(Struct, frozen=True):
    """The claim of the pod that most likely asks next, and its cards; or the cards that it should not get."""

    claim: Claim | None = None
    cards: tuple[str, ...] = ()
    #: Without a claim: cards that are promised to waiting pods. With a claim that names no card: cards that
    #: have too little room.
    avoid: frozenset[str] = frozenset()


def next_request(
    resource: str, count: int, held: Collection[str], free: Collection[str], waiting: WaitingPods
) -> NextRequest:
    """The request for `count` IDs that most likely comes next.

    `held`: cards of the IDs that the request must have. `free`: cards of the IDs that the request can have.
    """
    known = WaitingClaims(resource, waiting)
    claims, _ = known.claims_for_count(count)
    available = {*held, *free}
    for claim in claims:
        if not claim.devices:
            roomy = frozenset(waiting.find_cards_with_room(claim, count))
            return NextRequest(claim, avoid=frozenset(available - roomy) if roomy else frozenset())
        for cards in (
            claim.devices,
            known.cards_after_swaps(claim),
            known.cards_of_equal_claims(claim, {*held}),
        ):
            if cards and set(held) <= set(cards) <= available:
                return NextRequest(claim, cards)
    return NextRequest(avoid=known.promised_cards())

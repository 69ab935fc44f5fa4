"""Where containers have allocations, known once until something changes."""

from __future__ import annotations

from agent.core.usage.card_holdings import holdings
from agent.core.usage.granted_limits import Limits
from agent.core.usage.usage_report import VendorSample

from .cards_in_use import CARD, GIB, card, held, moment

SAMPLE = VendorSample((card(GIB),), ())
PLACE = ("uid-p", "main", CARD)


def test_holdings_are_made_once_until_an_allocation_or_a_size_changes() -> None:
    now = moment(held("p"))
    first = holdings("acme", SAMPLE, now)
    assert first.places == {PLACE}
    assert holdings("acme", VendorSample((card(2 * GIB),), None), now, first) is first
    assert holdings("acme", VendorSample((card(GIB, total=GIB),)), now, first) is not first
    assert holdings("acme", SAMPLE, moment(held("p")), first) is not first
    assert holdings("acme", SAMPLE, moment(), first).places == frozenset()


def test_a_container_has_the_limits_of_its_newest_allocation_of_a_resource() -> None:
    in_use = (held("p", f"{CARD}::0", devices=(CARD,)), held("p"))
    made = holdings("acme", SAMPLE, moment(*in_use))
    assert made.limits(PLACE) == made.limits(PLACE) == Limits(16 * GIB, 1.0)
    assert made.limits(("uid-q", "main", CARD)) == Limits()


def test_other_vendors_allocations_are_not_held() -> None:
    assert holdings("other", SAMPLE, moment(held("p"))).places == frozenset()

"""Which pod has a card."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from agent.core.allocation.current_holders import card_holders
from agent.core.model import Owner
from agent.scheduler_api import Candidate
from core.scenes import CHOSEN, bound, held
from core.values import GPU, allocation, grouped, shared

CARDS = ("a", "b", "c")
TRIO = shared(dict.fromkeys(CARDS, 2))


def pod(name: str, *cards: str, count: int = 1, **fields: float) -> Candidate:
    return bound(name, *cards, resource=GPU, count=count, **fields)


IDS = st.lists(st.sampled_from([one for card in TRIO.cards for one in card]), unique=True)


# Which pod has which card


def test_a_card_is_its_owners_or_else_its_claims_and_of_this_resource() -> None:
    claimed = replace(
        held("b", "b", resource=GPU), owner=None, claim=CHOSEN.claims(pod("job", "b"), GPU, {})[0]
    )
    in_use = [
        held("web", "a", resource=GPU),
        claimed,
        held("moved", "c", resource=GPU, on=("d",)),
        held("other", "e", resource="acme.com/other"),
        allocation("unknown", ["f"]),
    ]

    assert card_holders(grouped(in_use), GPU) == {
        "a": "uid-web",
        "b": "uid-job",
        "d": "uid-moved",
    }


LYING = st.lists(
    st.tuples(st.sampled_from([one for card in TRIO.cards for one in card]), st.sampled_from(CARDS)),
    unique_by=lambda it: it[0],
)


def test_owners_without_uid_hold_no_card() -> None:
    shown = allocation("a", ["a"], owner=Owner("", "main", "default", "web"))

    assert card_holders(grouped([shown]), GPU) == {}

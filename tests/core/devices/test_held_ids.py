"""The IDs in use on one card answer as a look at each of them does, and read only what changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.ledger import Ledger
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.held_ids import HeldIds, IdChoice, NoShares, OutsideRanges
from agent.core.devices.plan import plan
from agent.core.model import AdvertisedDevice, Allocation, Cordon, IdRange, Plan, Resource
from agent.vendor_api.agent import ResourceRule, Sharing
from core.values import GPU, allocation, node, status

RANGE, OTHER_RANGE, WHOLE = IdRange("a", 4), IdRange("b", 2), IdRange("a")
CARD = AdvertisedDevice("a", RANGE, healthy=True, names=("a", "7"))
#: IDs in the ranges, beyond their ends, of other plugins, and such that only look like any of these.
IDS = ("a", "b", "c", "a::0", "a::1", "a::3", "a::4", "a::03", "b::1", "a-1", "7-0", "7-3", "7-9", "8-0")

#: Choices, each with what decides on one ID.
CHOICES: tuple[tuple[IdChoice, Callable[[str], bool]], ...] = (
    (OutsideRanges((RANGE,)), lambda it: it not in RANGE),
    (
        OutsideRanges((RANGE, OTHER_RANGE, WHOLE)),
        lambda it: it not in RANGE and it not in {"b::0", "b::1", "a"},
    ),
    (OutsideRanges(()), lambda _: True),
    (NoShares(RANGE, CARD.names), lambda it: it not in RANGE and "::" not in it and not CARD.has_share(it)),
    (NoShares(None, CARD.names), lambda it: "::" not in it),
)


@given(st.lists(st.tuples(st.dictionaries(st.sampled_from(IDS), st.booleans()), st.integers(0, 31))))
def test_after_every_history_each_answer_is_what_a_look_at_all_ids_finds(
    steps: list[tuple[dict[str, bool], int]],
) -> None:
    """Of some values only some questions are asked, so that some answers are carried on and some are not."""
    held, known = HeldIds(), dict[str, bool]()

    for new, asked in steps:
        here = {one: away for one, away in new.items() if known.get(one) != away}
        known = {one: away for one, away in known.items() if one not in new} | here
        held = held.changed(new.keys(), here)

        assert held.ids == known
        assert held.lies_here == (not all(known.values()))
        assert held.stems >= {it.rpartition("::")[0] for it in known}
        for n, (choice, decides) in enumerate(CHOICES):
            if asked >> n & 1:
                assert held.chosen(choice) == tuple(sorted(filter(decides, known)))
        for one in (RANGE, WHOLE):
            assert held.in_range(one) == tuple(sorted(filter(one.__contains__, known)))
        assert held.numbers(RANGE) == tuple(
            sorted((int(it[3:]) for it in known if it in RANGE), reverse=True)
        )


def test_a_value_that_was_handed_out_stays_as_it_is() -> None:
    before = HeldIds({"a::0": False, "x": False})
    assert before.chosen(OutsideRanges((RANGE,))) == ("x",)

    after = before.changed({"x", "y"}, {"y": True})

    assert ({*before.ids}, before.chosen(OutsideRanges((RANGE,)))) == ({"a::0", "x"}, ("x",))
    assert ({*after.ids}, after.chosen(OutsideRanges((RANGE,)))) == ({"a::0", "y"}, ("y",))
    assert after.changed({"z"}, {}) is after


# The plan that follows

SHARES = "example.com/share"
CARDS = tuple(status(f"GPU-{letter}", n, minor=n) for n, letter in enumerate("ab"))
CORDONED = (replace(CARDS[0], cordon=Cordon("me")), CARDS[1])
OFFERS = (
    Offer("acme", (ResourceRule(GPU), ResourceRule(SHARES, sharing=Sharing("replicas", 3))), dynamic=True),
    Offer("acme", (ResourceRule(SHARES, sharing=Sharing("replicas", 3)),)),
    Offer("acme", (ResourceRule(GPU, sharing=Sharing("replicas", 2)),)),
    Offer("acme", ()),
)
DEVICE_IDS = st.lists(
    st.sampled_from(["GPU-a", "GPU-b", "GPU-a::0", "GPU-a::2", "GPU-b::1", "0-1", "1-0", "0-9", "x"]),
    max_size=4,
    unique=True,
)


@st.composite
def any_step(draw: st.DrawFn) -> tuple[str, Allocation]:
    ids = draw(DEVICE_IDS)
    known = allocation(
        draw(st.sampled_from(["one", "two", "three"])),
        ids,
        devices=tuple(draw(st.sampled_from(["GPU-a", "GPU-b", "GPU-z"])) for _ in ids),
        resource=draw(st.sampled_from([GPU, SHARES])),
    )
    diverged = draw(st.sampled_from([(), ("GPU-a",), ("GPU-b",)]))
    return draw(st.sampled_from(["record", "record", "release", "drop"])), replace(known, diverged=diverged)


@given(st.lists(any_step(), max_size=8), st.sampled_from(OFFERS), st.booleans())
def test_the_plan_after_every_history_is_that_of_a_ledger_that_is_read_for_the_first_time(
    steps: list[tuple[str, Allocation]], offer: Offer, is_cordoned: bool
) -> None:
    ledger, snapshot = Ledger(), node(*(CORDONED if is_cordoned else CARDS))
    planned: Plan = {}

    for verb, wanted in steps:
        if verb == "record":
            ledger.record(wanted)
        elif verb == "drop":
            ledger.drop(wanted.id)
        elif ledger.get(wanted.id) is not None:
            ledger.release(wanted.id, "over", now=1)
        before = planned
        planned = plan([offer], snapshot, before=before, usage=ledger.usage())
        fresh = plan([offer], snapshot, before=before, usage=Ledger(ledger.all()).usage())
        assert in_order(planned) == in_order(fresh)


def in_order(planned: Plan) -> Mapping[str, tuple[Resource, list[AdvertisedDevice]]]:
    """The plan without the order of cards that are not here any more: it is that of their allocations."""
    return {
        name: (replace(it, cards=()), sorted(it.cards, key=lambda card: card.uuid))
        for name, it in planned.items()
    }

"""A pod that says how much of a card it is to have gets a card that has as much, or is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.card_choice import cards_with_room as chosen_by
from agent.core.allocation.card_choice import first_that_fits
from agent.core.attribution.answered_claims import claims_after_swaps, is_unread
from agent.core.attribution.dialects_of_resource import dialects, scheduler_dialects
from agent.core.attribution.scheduler_promises import Promises
from agent.core.errors import (
    InsufficientRoom,
    NotPromised,
    NotServable,
    VendorError,
)
from agent.core.model import Allocation
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.scheduler_api import Candidate, Claim
from agent.vendor_api.agent import ContainerEdits, Offers, Request, Vendor
from core.promising import by_limits, choose, of, prefer, share
from core.scenes import BY_LIMITS, SHARE, asking, held


def has(name: str, card: str, core: int, n: int = 0) -> Allocation:
    """What a pod has of a card, by the nth ID of it."""
    claim = Claim(f"uid-{name}", "default", name, "main", (), {"core": str(core)})
    return held(name, f"{card}::{n}", resource=SHARE, claim=claim)


# The card


@pytest.mark.parametrize(
    ("pods", "in_use", "asked", "expected"),
    [
        pytest.param([asking("web", 40)], [], "c5::0", ("web", ()), id="the IDs' card has room"),
        pytest.param(
            [asking("web", 40)], [has("a", "c5", 70)], "c5::1", ("web", ("c4",)), id="another card has room"
        ),
        pytest.param(
            [asking("web", 40), asking("job", 90, created=1)],
            [has("a", "c4", 20)],
            "c4::1",
            ("web", ("c5",)),
            id="the card on which the largest fits, whoever asks",
        ),
        pytest.param(
            [asking("web", 90), asking("job", 30, created=1)],
            [has("a", "c4", 20), has("b", "c5", 60)],
            "c4::1",
            ("job", ()),
            id="the first that fits",
        ),
        pytest.param(
            [asking("web", 900), asking("job", 30, created=1)], [], "c4::1", ("job", ()), id="one that can be"
        ),
        pytest.param(
            [asking("web"), asking("job", 30, created=1)], [], "c4::1", ("web", ()), id="one without amount"
        ),
        pytest.param(
            [asking("web", 40), share("late", "c5", created=1)],
            [has("a", "c4", 55), has("b", "c5", 55)],
            "c5::1",
            ("web", ("c4",)),
            id="beside what is promised",
        ),
        pytest.param(
            [share("early", "c5"), asking("web", 40, created=1)],
            [],
            "c4::0",
            ("early", ("c5",)),
            id="a chosen card, of who comes before",
        ),
        pytest.param([], [has("a", "c4", 30)], "c4::1", (None, ("c5",)), id="nobody is known: most left"),
        pytest.param([], [], "c4::1", (None, ()), id="nobody is known: of equal ones the IDs'"),
        pytest.param(
            [asking("web", 10)],
            [has("a", "c5", 1, 0), has("b", "c5", 1, 1), has("c", "c4", 50)],
            "c4::1",
            ("web", ()),
            id="a card whose IDs are all taken is none",
        ),
    ],
)
def test_the_card_is_one_that_has_as_much_left(
    pods: Sequence[Candidate], in_use: Sequence[Allocation], asked: str, expected: tuple[Any, ...]
) -> None:
    assert of(choose(by_limits(*pods, in_use=in_use), SHARE, asked)) == expected


def test_where_no_card_has_as_much_it_is_refused_with_figures() -> None:
    in_use = [has("a", "c4", 60), has("b", "c5", 70)]

    with pytest.raises(InsufficientRoom, match=r"50 percent are asked for, left are \[30, 40\]"):
        choose(by_limits(asking("web", 50), asking("job", 60, created=1), in_use=in_use), SHARE, "c4::1")


def test_what_can_be_had_nowhere_is_refused_in_its_vendors_words() -> None:
    with pytest.raises(NotServable, match="120 percent are more than a card"):
        choose(by_limits(asking("web", 120)), SHARE, "c4::1")


def test_where_a_scheduler_must_choose_no_pods_own_limits_count() -> None:
    with pytest.raises(NotPromised):
        choose(by_limits(asking("web", 10), placement="claim"), SHARE, "c4::1")


def test_where_none_chooses_they_count_as_little() -> None:
    assert of(choose(by_limits(asking("web", 10), placement="local"), SHARE, "c4::1")) == (None, ())


def test_a_scheduler_is_heard_before_the_pod_itself() -> None:
    its = by_limits(share("web", "c5"))
    known = (its.scene.schedulers, its.scene.vendors["acme"], its.scene.plan[SHARE])

    assert choose(its, SHARE, "c5::0").claim == Claim("uid-web", "default", "web", "main", ("c5",))
    assert dialects(*known) == (*scheduler_dialects(*known), BY_LIMITS)


def broken(*_: object) -> Sequence[str]:
    raise ZeroDivisionError


def test_a_vendor_whose_code_fails_refuses_the_request_and_ends_nothing() -> None:
    vendor = Vendor("acme", "", SHARE, lambda *_: ContainerEdits(), offers=Offers(cards_with_room=broken))

    with pytest.raises(VendorError, match="its plugin fails to choose a card: ZeroDivisionError"):
        chosen_by(vendor, Request("", SHARE, ("0",)), (), ())


def test_the_kubelet_is_steered_to_cards_that_have_as_much() -> None:
    its = by_limits(asking("web", 40), in_use=[has("a", "c4", 70)])

    assert prefer(its, SHARE, ["c4::1", "c5::0"], [], 1) == ["c5::0"]
    assert prefer(its, SHARE, ["c4::1"], [], 1) == ["c4::1"]
    assert prefer(by_limits(asking("web", 900)), SHARE, ["c4::1"], [], 1) == ["c4::1"]


FITS = {"10": ("c0", "c1", "c2"), "20": ("c2", "c1"), "30": ("c2",)}


def fitting(parameters: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return FITS[parameters["core"]]
    except KeyError:
        raise InsufficientRoom(SHARE, parameters["core"]) from None


@given(st.lists(st.sampled_from(["10", "20", "30", "90"]), min_size=1, max_size=6), st.integers(1, 2))
def test_the_first_that_fits_gets_a_card_that_does_for_all_that_could(amounts: list[str], count: int) -> None:
    claims = [Claim(f"u{n}", "default", f"p{n}", "main", (), {"core": it}) for n, it in enumerate(amounts)]
    fit = [it for it in claims if it.parameters["core"] in FITS]
    if not fit:
        with pytest.raises(InsufficientRoom, match="90"):
            first_that_fits(claims, count, fitting)
        return
    claim, cards = first_that_fits(claims, count, fitting)
    assert claim == fit[0]
    assert set(cards) <= set(FITS[claim.parameters["core"]])
    if count == 1:
        assert all(cards[0] in FITS[it.parameters["core"]] for it in fit)


@st.composite
def waiting(draw: st.DrawFn) -> list[Candidate]:
    """Pods that ask for less and for more than two cards have."""
    amounts = draw(st.lists(st.sampled_from(["", "20", "30", "50", "70", "100"]), min_size=1, max_size=6))
    return [asking(f"pod-{n}", it, created=n) for n, it in enumerate(amounts)]


@given(waiting(), st.data())
def test_no_card_gets_more_than_it_has_whoever_is_taken_to_ask(
    pods: list[Candidate], data: st.DataObject
) -> None:
    in_use: list[Allocation] = []
    for n in range(data.draw(st.integers(1, 5))):
        free = [f"{card}::{m}" for card in ("c4", "c5") for m in range(2)]
        free = [it for it in free if not any(it in one.ids for one in in_use)]
        if not free:
            break
        one = data.draw(st.sampled_from(free))
        try:
            choice = choose(by_limits(*pods, in_use=in_use), SHARE, one)
        except InsufficientRoom:
            assert in_use
            continue
        name, claim = f"answer-{n}", choice.claim
        in_use.append(held(name, one, resource=SHARE, on=choice.actual_cards, owner=None, claim=claim))
        for card in ("c4", "c5"):
            its = [it.claim for it in in_use if card in it.cards]
            assert sum(int(it.parameters.get("core", "10")) if it else 10 for it in its) <= 100
    claimed = [it.claim.uid for it in in_use if it.claim is not None]
    assert len(claimed) == len({*claimed})


# Whose it turns out to be


def test_a_pod_on_another_card_than_was_chosen_keeps_what_it_asks_for_itself() -> None:
    known = has("job", "c4", 40)
    its = by_limits(share("web", "c5"), in_use=[known])

    after = claims_after_swaps(its, [CheckpointAnswer(known.id, "uid-web", "main", SHARE, known.ids)])

    assert after == {known.id: Claim("uid-web", "default", "web", "main")}


@pytest.mark.parametrize(
    ("pods", "uid", "more", "unread"),
    [
        pytest.param([], "uid-web", {}, True, id="a pod that is not known"),
        pytest.param([asking("web", 10)], "uid-web", {}, False, id="a pod that is known"),
        pytest.param([], "uid-job", {}, False, id="its claim is written down"),
        pytest.param([], "uid-web", {"unseen": "no API server"}, False, id="no pod is ever seen"),
        pytest.param([], "uid-web", {"placement": "claim"}, False, id="a scheduler chooses"),
        pytest.param([], "uid-web", {"left_out": True}, False, id="the vendor is left out"),
    ],
)
def test_what_a_container_asks_for_is_unread_where_its_pod_is_not_known(
    pods: Sequence[Candidate], uid: str, more: Mapping[str, Any], unread: bool
) -> None:
    known = has("job", "c4", 40)
    its: Promises = by_limits(*pods, in_use=[known], **more)

    assert is_unread(its, known, CheckpointAnswer(known.id, uid, "main", SHARE, known.ids)) is unread

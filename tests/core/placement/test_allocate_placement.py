"""What schedulers promised is kept, or refused with the reason, and no card is promised away twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agent.core.allocation.admission import admit
from agent.core.allocation.room_on_cards import free_by_card
from agent.core.attribution.scheduler_promises import Promises
from agent.core.errors import (
    AllocationError,
    InsufficientMemory,
    InsufficientShares,
    NotPromised,
    PromisedElsewhere,
    PromisedMoreCards,
)
from agent.core.model import Allocation, AllocationSource
from agent.core.placement.allocate_placement import PlacementChoice
from agent.core.placement.allocate_placement import choose_cards as choose_cards
from agent.scheduler_api import Candidate, Cards, Claim, Dialect
from agent.vendor_api.agent import Placement, Sharing
from core.promising import MEMORY, TOGETHER, choose, counted, of, prefer, promises, share
from core.scenes import CHOSEN, SHARE, SLICE, WHOLE, bound, full_c5, held, shown
from core.values import grouped, node, status, taking

# What a request gets: whole cards


def test_a_request_on_the_chosen_card_has_its_claim() -> None:
    choice = choose(promises(bound("web", "c1")), WHOLE, "c1")

    assert of(choice) == ("web", ())
    assert choice.claim is not None
    assert choice.claim.devices == ("c1",)


def test_a_whole_card_other_than_the_chosen_one_is_refused() -> None:
    with pytest.raises(PromisedElsewhere) as refused:
        choose(promises(bound("web", "c1")), WHOLE, "c0")

    assert str(refused.value) == (
        'invalid allocation request for "acme.com/whole": the kubelet gave c0, claims are on other cards: '
        "default/web on c1; create the pod again to let the scheduler choose its card again"
    )


@pytest.mark.parametrize(
    ("in_use", "words"),
    [
        pytest.param(
            [
                replace(
                    held("own", resource="koordinator.sh/gpu", devices=("c1",)),
                    source=AllocationSource.ANNOTATION,
                )
            ],
            "c1 is held by default/own, by its scheduler's word alone;",
            id="by a scheduler's word alone",
        ),
        pytest.param(
            [held("plain", "c1", resource=SLICE)],
            f"c1 is held by default/plain as {SLICE};",
            id="as another resource",
        ),
        pytest.param([held("web-1", "c1")], "c1 is held by default/web-1;", id="as this resource"),
        pytest.param([], "create the pod again", id="by no pod"),
    ],
)
def test_a_refusal_names_the_pod_that_has_the_chosen_card(in_use: list[Allocation], words: str) -> None:
    with pytest.raises(PromisedElsewhere) as refused:
        choose(promises(bound("web", "c1"), in_use=in_use), WHOLE, "c0")

    assert f"default/web on c1; {words}" in str(refused.value)


def test_an_allocation_of_the_resource_that_takes_no_room_is_not_named() -> None:
    """The kubelet shows its pod no more."""
    its = promises(bound("web", "c1"), in_use=[held("old", "c1")])

    with pytest.raises(PromisedElsewhere) as refused:
        choose_cards(its, admit(its.scene, WHOLE, ["c0"]), grouped())

    assert "held by" not in str(refused.value)


def test_a_refusal_gives_the_first_reasons_and_the_number_of_the_rest() -> None:
    in_use = [held(f"pod-{n}", "c1", resource=SLICE) for n in range(5)]

    with pytest.raises(PromisedElsewhere, match=r"pod-2 as acme\.com/slice; and 2 more;"):
        choose(promises(bound("web", "c1"), in_use=in_use), WHOLE, "c0")


@pytest.mark.parametrize(
    ("card", "why"),
    [
        pytest.param("c6", "which have no room; c6 is unhealthy;", id="unhealthy"),
        pytest.param("c3", "which have no room; c3 is not of this resource;", id="another resource's"),
    ],
)
def test_a_refusal_says_what_keeps_the_chosen_card_from_the_pod(card: str, why: str) -> None:
    with pytest.raises(PromisedElsewhere) as refused:
        choose(promises(share("web", card)), SHARE, "c4::0")

    assert why in str(refused.value)


def test_a_whole_card_may_be_a_pods_of_which_no_scheduler_spoke() -> None:
    assert choose(promises(bound("web", "c1"), bound("job")), WHOLE, "c0") == PlacementChoice()


@pytest.mark.parametrize(
    ("pods", "unseen", "doubt"),
    [
        pytest.param((), "agent.watchPods is false", "no pod is seen: agent.watchPods is false", id="unseen"),
        pytest.param((), "", "no pod of this node is known", id="no pod"),
        pytest.param(
            (bound("job"),), "", "default/job asks for as much and has no claim", id="a pod without claim"
        ),
    ],
)
def test_where_a_scheduler_must_choose_no_card_is_given_without_its_choice(
    pods: tuple[Candidate, ...], unseen: str, doubt: str
) -> None:
    with pytest.raises(NotPromised) as refused:
        choose(promises(*pods, placement="claim", unseen=unseen), WHOLE, "c0")

    assert str(refused.value) == (
        f'invalid allocation request for "acme.com/whole": no scheduler has chosen a card for this pod: '
        f"{doubt}; the resource's placement is 'claim': create the pod "
        "again with a schedulerName that chooses, such as koord-scheduler, which writes "
        "scheduling.koordinator.sh/device-allocated"
    )


def test_where_a_scheduler_must_choose_a_pod_without_claim_gets_no_other_pods_place() -> None:
    with pytest.raises(PromisedElsewhere):
        choose(promises(bound("web", "c1"), bound("job"), placement="claim"), WHOLE, "c0")


def test_a_pod_whose_card_an_equal_pod_has_gets_that_pods_card() -> None:
    pods = bound("early", "c0", created=1), bound("late", "c1", created=2)
    its = promises(*pods, in_use=[held("late", "c0")])

    assert prefer(its, WHOLE, ["c1"], [], 1) == ["c1"]
    choice = choose(its, WHOLE, "c1")
    assert choice.claim is not None
    assert (choice.claim.pod, choice.claim.devices) == ("early", ("c1",))


def test_a_pod_whose_ids_the_kubelet_gives_out_again_has_them_no_more() -> None:
    """Two pods have each other's cards, and the one of c1 has gone; its card is chosen for the next one."""
    pods = bound("next", "c0"), bound("stays", "c1", pending=False)
    its = promises(*pods, in_use=[held("stays", "c0"), held("gone", "c1")])

    assert prefer(its, WHOLE, ["c2", "c1"], [], 1) == ["c1"]
    choice = choose(its, WHOLE, "c1")
    assert choice.claim is not None
    assert (choice.claim.pod, choice.claim.devices) == ("next", ("c1",))


def test_a_scheduler_is_told_the_devices_in_the_order_of_their_minors() -> None:
    named: list[Sequence[tuple[str, int | None]]] = []

    def listen(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
        named.append([*devices.items()][:3])
        return ()

    its = promises(bound("web"), dialects=(Dialect("listening", listen),))
    minors = {"late": 2, "none": None, "first": 0}
    others = (status(it, n, minor=minor) for n, (it, minor) in enumerate(minors.items()))
    snapshot = node(*others, *its.scene.snapshot.devices)

    choose(structs.replace(its, scene=replace(its.scene, snapshot=snapshot)), WHOLE, "c0")

    assert named[0] == [("first", 0), ("late", 2), ("none", None)]


# What a request gets: shares


def test_a_share_lies_on_the_chosen_card_whatever_its_ids_are() -> None:
    assert of(choose(promises(share("web", "c5", count=2)), SHARE, "c4::0", "c4::1")) == ("web", ("c5",))


@pytest.mark.parametrize("card", [pytest.param("c5", id="full"), pytest.param("c6", id="unhealthy")])
def test_a_share_of_a_card_without_room_is_refused(card: str) -> None:
    in_use = [held("a", "c5::0", resource=SHARE), held("b", "c5::1", resource=SHARE)]

    with pytest.raises(PromisedElsewhere, match="which have no room"):
        choose(promises(share("web", card), in_use=in_use), SHARE, "c4::0")


@pytest.mark.parametrize(
    ("held_ids", "on", "asked", "instead"),
    [
        pytest.param(("c5::0", "c5::1"), (), ("c4::0", "c4::1"), (), id="c4"),
        pytest.param(("c4::0", "c4::1"), ("c5",), ("c5::0", "c5::1"), ("c4",), id="c5"),
    ],
)
def test_a_share_of_a_card_that_an_equal_pod_has_filled_lies_where_that_pods_was_to_lie(
    held_ids: tuple[str, ...], on: tuple[str, ...], asked: tuple[str, ...], instead: tuple[str, ...]
) -> None:
    """The kubelet took them in another order than they were bound."""
    pods = share("here", "c5", count=2), share("there", "c4", count=2, pending=False)
    its = promises(*pods, in_use=[held("there", *held_ids, resource=SHARE, on=on)])

    assert of(choose(its, SHARE, *asked)) == ("here", instead)


def chained(*ends: str) -> Promises:
    """Cards c5, which is chosen, and c4 are full; the pods on c5 were promised c4, those on c4 these ends."""
    on_c5 = [share(f"five-{n}", "c4", pending=False) for n in range(2)]
    on_c4 = [share(f"four-{n}", end, pending=False) for n, end in enumerate(ends)]
    in_use = [
        held(pod.name, f"{card}::{n}", resource=SHARE)
        for card, pods in (("c5", on_c5), ("c4", on_c4))
        for n, pod in enumerate(pods)
    ]
    its = promises(share("here", "c5"), *on_c5, *on_c4, in_use=in_use)
    planned = its.scene.plan[SHARE]
    cards = tuple(replace(card, healthy=True) for card in planned.cards)
    return structs.replace(its, scene=replace(its.scene, plan={SHARE: replace(planned, cards=cards)}))


def test_a_share_lies_at_the_end_of_a_chain_of_pods_that_have_each_others_cards() -> None:
    assert of(choose(chained("c5", "c6"), SHARE, "c6::0")) == ("here", ())


def test_a_share_is_refused_where_pods_that_have_each_others_cards_leave_none() -> None:
    with pytest.raises(PromisedElsewhere, match="which have no room"):
        choose(chained("c5", "c5"), SHARE, "c6::0")


def test_a_share_does_not_take_the_place_of_a_pod_that_has_more_shares() -> None:
    """Its promise is of another size."""
    pods = share("here", "c5"), share("there", "c4", count=2, pending=False)

    with pytest.raises(PromisedElsewhere, match="which have no room"):
        choose(promises(*pods, in_use=[held("there", "c5::0", "c5::1", resource=SHARE)]), SHARE, "c4::0")


def test_a_pod_whose_card_failed_since_takes_no_other_pods_promise() -> None:
    early, late = share("early", "c6", created=1), share("late", "c5", created=2)

    with pytest.raises(PromisedElsewhere, match="default/early on c6, which have no room"):
        choose(promises(early, late), SHARE, "c5::0")
    assert of(choose(promises(replace(early, over=True), late), SHARE, "c5::0")) == ("late", ())


@pytest.mark.parametrize(
    ("pods", "device_id", "words"),
    [
        pytest.param(
            (share("web", "c5"),), "c4::1", "default/web on c5, which have no room", id="by another's ID"
        ),
        pytest.param(
            (share("web", "c5"),),
            "c5::1",
            "default/web is promised that one, which is full of allocations with IDs of other cards",
            id="by its own ID",
        ),
    ],
)
def test_a_share_that_lies_elsewhere_than_its_id_takes_the_room_there(
    pods: tuple[Candidate, ...], device_id: str, words: str
) -> None:
    with pytest.raises(PromisedElsewhere) as refused:
        choose(promises(*pods, in_use=full_c5()), SHARE, device_id)

    assert words in str(refused.value)


def anywhere(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    return [Claim(pod.uid, pod.namespace, pod.name, "main", (), {"priority": "low"})]


@pytest.mark.parametrize(
    ("pods", "more", "pod"),
    [
        pytest.param((), {}, None, id="no pod was promised anything"),
        pytest.param((), {"placement": "local"}, None, id="no scheduler is heeded"),
        pytest.param((share("web"),), {"dialects": (Dialect("plain", anywhere),)}, "web", id="of any card"),
    ],
)
def test_a_share_of_no_card_in_particular_lies_where_there_is_room(
    pods: tuple[Candidate, ...], more: Mapping[str, Any], pod: str | None
) -> None:
    its = promises(*pods, in_use=full_c5(), **more)

    assert of(choose(its, SHARE, "c5::1")) == (pod, ("c4",))


@pytest.mark.parametrize("placement", ["auto", "local"])
def test_a_share_is_refused_where_no_card_has_the_room_that_the_kubelet_counts(placement: Placement) -> None:
    its = promises(in_use=full_c5(), failed={"c4"}, placement=placement)

    with pytest.raises(PromisedElsewhere, match=r"gave c5, which is full .*no other card has room"):
        choose(its, SHARE, "c5::1")


@pytest.mark.parametrize(
    ("dialect", "fewer"),
    [("chosen", "as few cards"), ("koordinator", "1 of koordinator.sh/gpu.shared")],
)
def test_more_cards_than_are_asked_for_are_refused_with_both_numbers_and_what_would_work(
    dialect: str, fewer: str
) -> None:
    """No card lacks room, and asking again has the same cards chosen."""
    dialects = (replace(CHOSEN, name=dialect),)

    with pytest.raises(PromisedMoreCards) as refused:
        choose(promises(share("web", "c4", "c5"), dialects=dialects), SHARE, "c4::0")

    assert str(refused.value) == (
        f'invalid allocation request for "{SHARE}": 1 requested, but 2 cards were chosen for default/web '
        f"(c4, c5), and each card needs one ID: create the pod again with 2 of {SHARE}, or with "
        f"{fewer}"
    )
    with pytest.raises(PromisedMoreCards):
        choose(promises(bound("web", "c0", "c1", count=1)), WHOLE, "c0")


def test_of_pods_that_ask_for_as_much_one_with_too_many_cards_keeps_no_other_from_its_own() -> None:
    its = promises(share("wide", "c4", "c5", created=1), share("web", "c5", created=2))

    assert of(choose(its, SHARE, "c4::0")) == ("web", ("c5",))


def test_who_asks_first_does_not_get_the_card_of_who_asks_next_by_the_next_ones_ids() -> None:
    """The kubelet gives these where those of its own card cannot be had: it was in another mode just now."""
    web, job = share("web", "c4", appeared=1), share("job", "c5", appeared=2)

    assert of(choose(promises(web, job), SHARE, "c5::0")) == ("web", ("c4",))
    with pytest.raises(PromisedElsewhere, match="default/web on c4"):
        choose(
            promises(
                web, job, in_use=[held("a", "c4::0", resource=SHARE), held("b", "c4::1", resource=SHARE)]
            ),
            SHARE,
            "c5::0",
        )


def test_nor_does_it_get_that_card_by_ids_of_both() -> None:
    web, job = share("web", "c4", count=2, appeared=1), share("job", "c5", count=2, appeared=2)
    taken = held("a", "c4::0", resource=SHARE)

    with pytest.raises(PromisedElsewhere, match="default/web on c4, which have no room"):
        choose(promises(web, job, in_use=[taken]), SHARE, "c4::1", "c5::0")
    assert of(choose(promises(web, job), SHARE, "c4::1", "c5::0")) == ("web", ("c4",))
    its = promises(web, job, in_use=[taken], refused={"uid-web"})
    assert of(choose(its, SHARE, "c4::1", "c5::0")) == ("job", ("c5",))


def test_nor_where_a_pod_of_which_no_scheduler_spoke_asks_for_as_much_later() -> None:
    web, mute = share("web", "c4", appeared=1), share("mute", appeared=2)
    full = [held("a", "c4::0", resource=SHARE), held("b", "c4::1", resource=SHARE)]

    with pytest.raises(PromisedElsewhere, match="default/web on c4"):
        choose(promises(web, mute, in_use=full), SHARE, "c5::0")


def test_nor_does_a_pod_of_which_two_containers_ask_for_as_much() -> None:
    two = share("web", "c4", appeared=1)
    web = replace(two, containers=(*two.containers, replace(two.containers[0], name="side")))
    job = share("job", "c5", appeared=2)

    def claims(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
        own = (pod.annotations["cards"],)
        return [Claim(pod.uid, pod.namespace, pod.name, it.name, own) for it in pod.containers]

    its = promises(web, job, dialects=(Dialect("each", claims),))
    assert of(choose(its, SHARE, "c5::0")) == ("web", ("c4",))


@pytest.mark.parametrize(
    ("appeared", "more"),
    [
        pytest.param(0, {}, id="nobody knows whom the kubelet heard of first"),
        pytest.param(
            1,
            {"pods_at_kubelet_start": frozenset({"uid-web", "uid-job"})},
            id="found by a kubelet that began",
        ),
        pytest.param(1, {"refused": {"uid-web"}}, id="refused before"),
    ],
)
def test_where_it_is_not_known_who_asks_first_the_ids_say_it(appeared: int, more: dict[str, Any]) -> None:
    web = share("web", "c4", created=1, appeared=appeared)
    job = share("job", "c5", created=2, appeared=2 * appeared)

    assert of(choose(promises(web, job, **more), SHARE, "c5::0")) == ("job", ())


def test_a_pod_that_pod_resources_alone_shows_waits_no_more() -> None:
    pods = share("web", "c5", created=1), share("job", "c4", created=2)
    its = promises(*pods, in_use=[replace(shown("web", "c5::0"), since=5.0)])

    assert prefer(its, SHARE, ["c4::0", "c4::1", "c5::1"], [], 1) == ["c4::0"]
    assert of(choose(its, SHARE, "c4::0")) == ("job", ())


def test_a_pod_whose_claim_came_back_is_not_taken_for_one_that_waits() -> None:
    web, job = share("web", "c5"), share("job", "c4", created=9)
    back = replace(shown("web", "c5::0"), claim=Claim("uid-web", "default", "web", "main", ("c5",)))

    assert of(choose(promises(web, job, in_use=[back]), SHARE, "c4::0")) == ("job", ())


# What a request gets: what lies on one card


@pytest.mark.parametrize("sharing", [TOGETHER, MEMORY], ids=["replicas", "memory"])
def test_a_claim_on_several_cards_cannot_be_kept_where_all_lies_on_one(sharing: Sharing) -> None:
    its = promises(share("web", "c4", "c5", count=2))

    with pytest.raises(PromisedElsewhere, match="default/web is promised 2 cards, but all shares of one"):
        choose(structs.replace(its, scene=counted(its.scene, sharing)), SHARE, "c4::0", "c5::0")


@pytest.mark.parametrize(
    ("sharing", "error"),
    [
        pytest.param(TOGETHER, InsufficientShares, id="replicas"),
        pytest.param(MEMORY, InsufficientMemory, id="memory"),
    ],
)
@pytest.mark.parametrize(
    ("in_use", "largest"),
    [
        pytest.param(
            [held("a", "c4::1", resource=SHARE), held("b", "c5::1", resource=SHARE)], "has 1", id="some"
        ),
        pytest.param(
            [
                held(f"{n}", f"c4::{n}", resource=SHARE, on=[card])
                for n, card in enumerate(("c4", "c4", "c5", "c5"))
            ],
            "no card is free",
            id="none",
        ),
    ],
)
def test_what_lies_on_one_card_and_fits_on_none_is_refused_with_the_largest(
    in_use: list[Allocation], largest: str, sharing: Sharing, error: type[AllocationError]
) -> None:
    its = promises(in_use=in_use, placement="local")
    its = structs.replace(its, scene=counted(its.scene, sharing))
    asked = admit(its.scene, SHARE, ["c4::0", "c5::0"])

    with pytest.raises(error, match=largest):
        choose_cards(its, asked, grouped(in_use))


# No card is promised away twice


CARDS = ("c4", "c5")
SHARES = [f"{card}::{n}" for card in CARDS for n in range(2)]


@st.composite
def waiting(draw: st.DrawFn) -> list[Candidate]:
    """Pods that wait for shares, with and without a scheduler's choice."""
    its = draw(
        st.lists(
            st.tuples(st.lists(st.sampled_from(CARDS), max_size=2, unique=True), st.integers(1, 2)),
            max_size=4,
        )
    )
    return [share(f"pod-{n}", *cards, count=count, created=n) for n, (cards, count) in enumerate(its)]


@given(waiting(), st.sampled_from(["auto", "claim", "local"]), st.data())
def test_no_card_gets_more_shares_than_it_has_whatever_was_promised(
    pods: list[Candidate], placement: Placement, data: st.DataObject
) -> None:
    """Whichever of the IDs that it takes for free the kubelet picks, and in whatever order pods ask."""
    in_use: list[Allocation] = []
    for n in range(data.draw(st.integers(1, 5))):
        free = [it for it in SHARES if not any(it in one.ids for one in in_use)]
        ids = data.draw(st.permutations(free))[: data.draw(st.integers(1, 2))]
        its = promises(*pods, in_use=in_use, placement=placement)
        try:
            choice = choose(its, SHARE, *ids)
        except AllocationError:
            continue
        in_use.append(
            held(f"answer-{n}", *ids, resource=SHARE, on=choice.actual_cards, owner=None, claim=choice.claim)
        )
        assert min(free_by_card(its.scene.plan[SHARE], taking(in_use, SHARE)).values()) >= 0
        assert choice.claim is not None or placement != "claim"

    claimed = [(it.claim.uid, it.claim.container) for it in in_use if it.claim is not None]
    assert len(claimed) == len({*claimed})


@given(waiting(), st.permutations(SHARES), st.integers(1, 2))
def test_a_claim_is_kept_on_its_cards_alone(pods: list[Candidate], ids: Sequence[str], count: int) -> None:
    """While no other pod has any of them."""
    try:
        choice = choose(promises(*pods), SHARE, *ids[:count])
    except (PromisedElsewhere, PromisedMoreCards):
        assert any(pod.annotations for pod in pods)
        return
    if choice.claim is not None:
        lies = choice.actual_cards or tuple(dict.fromkeys(it.partition("::")[0] for it in ids[:count]))
        assert {*lies} == {*choice.claim.devices}
        assert choice.claim.pod in {pod.name for pod in pods if pod.containers[0].limits[SHARE] == count}


@given(
    st.lists(st.sampled_from([(), ("c0",), ("c1",), ("c0", "c1")]), max_size=3),
    st.sampled_from([("c0",), ("c1",), ("c0", "c1"), ("c1", "c0")]),
    st.sampled_from(["auto", "claim"]),
)
def test_a_whole_card_that_was_chosen_for_a_pod_is_given_to_it_alone(
    promised: list[tuple[str, ...]], asked: tuple[str, ...], placement: Placement
) -> None:
    """Or to a pod of which no scheduler spoke, where one waits for as many and none has to be chosen."""
    pods = [bound(f"pod-{n}", *cards, count=len(cards) or 1, created=n) for n, cards in enumerate(promised)]
    its = promises(*pods, placement=placement)
    alike = [pod for pod in pods if pod.containers[0].limits[WHOLE] == len(asked)]
    chosen = [pod for pod in alike if pod.annotations]
    fitting = [pod.name for pod in chosen if {*pod.annotations["cards"].split(",")} == {*asked}]

    if fitting:
        assert of(choose(its, WHOLE, *asked)) == (fitting[0], ())
    elif chosen and (placement == "claim" or len(chosen) == len(alike)):
        with pytest.raises(PromisedElsewhere):
            choose(its, WHOLE, *asked)
    elif placement == "claim":
        with pytest.raises(NotPromised):
            choose(its, WHOLE, *asked)
    else:
        assert choose(its, WHOLE, *asked) == PlacementChoice()

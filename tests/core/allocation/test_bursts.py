"""Pods of one second, which a kubelet that starts anew takes in any order: no card is promised away twice.

Each pod was promised part of a card, of its cores and of its memory, and asks for as many IDs as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.admission import admit
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.attribution.pod_attribution import suspected_pods
from agent.core.attribution.refused_requests import (
    RefusedRequest,
    guessed_suspects,
    suspected_uids,
    unexplained_requests,
    without_answered_pod,
)
from agent.core.attribution.scheduler_promises import Promises
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.devices.topology import Topology
from agent.core.errors import AllocationError
from agent.core.model import Owner
from agent.core.placement.allocate_placement import choose_cards
from agent.core.placement.preferred_allocation import preferred_ids
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.allocation.claim_swaps import ClaimSwaps
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, Cards, Claim, Dialect, PodContainer
from agent.schedulers.common.grants import measured
from agent.vendor_api.agent import ContainerEdits, Device, Edits, Request, ResourceRule, Sharing, Vendor
from core.scenes import edits
from core.values import GPU, allocation, node, status

GIB = 1 << 30
CARDS = ("a", "b", "c")
#: Percent of the cores and of the memory.
Percent = tuple[int, int]


def limits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    """An answer that holds a container to its part, which nobody can change later."""
    return ContainerEdits(env={key: request.parameters.get(key, "") for key in ("core", "ratio")})


def claims(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    its = pod.annotations
    parts = {key: its[key] for key in ("core", "ratio")} if its else {}
    return [Claim(pod.uid, pod.namespace, pod.name, "main", (its["card"],), parts)] if its else []


def pod(name: str, card: str, percent: Percent, **more: object) -> Candidate:
    said = {"card": card, "core": str(percent[0]), "ratio": str(percent[1])}
    containers = (PodContainer("main", {GPU: 1}),)
    return Candidate(f"uid-{name}", "default", name, containers, said, created=7.0, **more)  # type: ignore[arg-type]


@dataclass
class Node:
    """A node whose kubelet has just begun, and names whose an answer is before it asks for the next."""

    pods: list[Candidate]
    container_edits: Edits = edits
    replicas: int = 8
    ledger: Ledger = field(default_factory=Ledger)
    answered: dict[str, Mapping[str, str]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    #: The uids of pods that were bound after the kubelet began.
    late: frozenset[str] = frozenset()
    requests: tuple[RefusedRequest, ...] = ()
    #: What the kubelet says of pods that were refused.
    why: dict[str, str] = field(default_factory=dict)
    #: Whether the status of a pod that was refused says so before the next one asks.
    shows: bool = True

    def scene(self) -> Scene:
        snapshot = node(
            *(replace(it, device=replace(it.device, memory=64 * GIB)) for it in map(status, CARDS))
        )
        rule = ResourceRule(GPU, sharing=Sharing("replicas", self.replicas), placement="auto")
        dialects = (Dialect("parts", claims, measure=measured),)
        vendor = Vendor("acme", "", GPU, self.container_edits, dialects=dialects)
        planned = plan([Offer("acme", (rule,))], snapshot)
        found = frozenset(it.uid for it in self.pods) - self.late
        return Scene(
            planned,
            snapshot,
            Topology(),
            {"acme": vendor},
            candidates=KnownPods.of(self.pods),
            pods_at_kubelet_start=found,
            schedulers=registered(),
        )

    def promises(self) -> Promises:
        scene, requests = self.scene(), self.requests
        refused = suspected_uids(requests, scene.candidates)
        return Promises(scene, self.ledger.in_use(), refused, guessed_suspects(requests, scene.candidates))

    def free(self) -> list[str]:
        held = {one for it in self.ledger.in_use() for one in it.ids}
        return [one for card in self.scene().plan[GPU].cards for one in card if one not in held]

    def preferred(self) -> str:
        """The ID that the kubelet takes."""
        return preferred_ids(self.promises(), self.scene().plan[GPU], self.free(), [], 1)[0]

    def asks(self, pod: Candidate, device_id: str) -> bool:
        """Whether the pod is admitted with this ID, which the kubelet chose."""
        promises = self.promises()
        asked = admit(promises.scene, GPU, [device_id])
        try:
            choice = choose_cards(promises, asked, self.ledger.in_use())
        except AllocationError as exc:
            self.refused.append(pod.name)
            others = frozenset(it.uid for it in self.pods if str(exc) in it.message)
            request = RefusedRequest(str(exc), suspected_pods(promises, GPU, [device_id]), others)
            self.requests = unexplained_requests((*self.requests, request), promises.scene.candidates)
            self.why[pod.uid] = f"Pod was rejected: Allocate failed due to {exc}, which is unexpected"
            if self.shows:
                self.ends(pod)
            return False
        if choice.claim is not None:
            self.requests = without_answered_pod(choice.claim.uid, self.requests)
        name = f"answer-{len(self.answered)}"
        answer = allocation(name, [device_id], claim=choice.claim)
        self.ledger.record(replace(answer, diverged=choice.actual_cards))
        self.answered[name] = choice.claim.parameters if choice.claim else {}
        ClaimSwaps(self.ledger).swap(
            self.promises(), [CheckpointAnswer(name, pod.uid, "main", GPU, (device_id,)), *self.granted()]
        )
        self.ledger.confirm(name, Owner(pod.uid, "main", "default", pod.name))
        return True

    def ends(self, pod: Candidate) -> None:
        """Let it show that the pod is over, and that it was refused if it was."""
        over = replace(pod, over=True, message=self.why.get(pod.uid, ""))
        self.pods = [over if it.uid == pod.uid else it for it in self.pods]

    def has(self) -> Mapping[str, str]:
        """The card of each pod that has one."""
        return {it.owner.pod: it.cards[0] for it in self.ledger.in_use() if it.owner}

    def granted(self) -> Iterable[CheckpointAnswer]:
        owned = (it for it in self.ledger.in_use() if it.owner)
        return [CheckpointAnswer(it.id, it.owner.uid, "main", GPU, it.ids) for it in owned if it.owner]

    def given(self, card: str, count: Callable[[str, str], Mapping[str, str]]) -> Percent:
        """What of a card is given out, by the parameters of an answer or of its pod."""
        its = [it for it in self.ledger.in_use() if card in it.cards]
        said = [count(it.id, it.owner.uid if it.owner else "") for it in its]
        return sum(int(it.get("core", 0)) for it in said), sum(int(it.get("ratio", 0)) for it in said)

    def is_within(self) -> bool:
        """Whether no card has given out more than all of it, as promised and as containers are held to."""
        promised = {it.uid: it.annotations for it in self.pods}
        counts: list[Callable[[str, str], Mapping[str, str]]] = [lambda _, uid: promised[uid]]
        if self.container_edits is limits:
            counts.append(lambda name, _: self.answered[name])
        return all(max(self.given(card, count)) <= 100 for card in CARDS for count in counts)


def filled(**percent: int) -> Node:
    """A node on whose cards so much is given out."""
    its = Node([])
    for n, (card, part) in enumerate(percent.items()):
        its.pods.append(pod(f"on-{card}", card, (part, part), bound=1.0))
        assert its.asks(its.pods[n], f"{card}::0")
    return its


@st.composite
def promised(draw: st.DrawFn) -> list[Candidate]:
    """Pods as a scheduler promises them parts of cards, of none more than all."""
    pods = []
    for card in CARDS:
        left = (100, 100)
        for n in range(draw(st.integers(0, 4))):  # each with an ID of its own
            part = tuple(draw(st.integers(0, max(0, it))) for it in left)
            left = (left[0] - part[0], left[1] - part[1])
            if max(part):
                pods.append(pod(f"{card}-{n}", card, (part[0], part[1])))
    return pods


@pytest.mark.parametrize("container_edits", [edits, limits], ids=["plain", "limits"])
@given(data=st.data())
def test_no_order_of_pods_of_one_second_has_a_card_give_more_than_all_of_it(
    container_edits: Edits, data: st.DataObject
) -> None:
    """Not of its cores and not of its memory, as promised and as containers are held to it."""
    its = Node(data.draw(promised()), container_edits)

    for asking in data.draw(st.permutations(its.pods)):
        its.asks(asking, data.draw(st.sampled_from(its.free())))
        assert its.is_within()


@given(data=st.data())
def test_equal_pods_of_one_second_are_all_admitted_in_whatever_order(data: st.DataObject) -> None:
    part = data.draw(st.sampled_from([(50, 50), (30, 25), (10, 100)]))
    each = min(100 // max(part), 4)
    its = Node([pod(f"{card}-{n}", card, part) for card in CARDS for n in range(each)])

    for asking in data.draw(st.permutations(its.pods)):
        assert its.asks(asking, data.draw(st.sampled_from(its.free())))
        assert its.is_within()


@given(promised())
def test_pods_of_different_seconds_get_what_was_promised_them(pods: list[Candidate]) -> None:
    pods = [replace(it, created=n) for n, it in enumerate(pods)]
    its = Node(pods)

    for asking in pods:
        assert its.asks(asking, its.preferred())
    cards = {it.owner.uid: it.cards for it in its.ledger.in_use() if it.owner}
    assert cards == {it.uid: (it.annotations["card"],) for it in pods}


def test_a_place_is_given_only_where_it_has_room_for_whichever_pod_asks() -> None:
    """The smaller pod is first by its uid, and may be the larger one."""
    its = Node([pod("other", "b", (70, 70), bound=1.0)])
    its.asks(its.pods[0], "b::0")
    small, large = pod("1-small", "b", (30, 30)), pod("2-large", "a", (60, 60))
    its.pods += [small, large]

    assert its.asks(large, "b::1")

    assert {it.owner.pod: it.cards for it in its.ledger.in_use() if it.owner}["2-large"] == ("a",)
    assert its.is_within()


def test_what_a_pod_without_a_promise_may_ask_for_has_room_for_whichever_asks() -> None:
    """The plain pod has its share there, by its ID; the one that was promised more has not."""
    its = filled(b=60)
    plain, large = replace(pod("plain", "a", (0, 0)), annotations={}), pod("large", "a", (60, 60))
    its.pods += [plain, large]

    assert its.asks(large, "b::1")

    assert its.has()["large"] == "a"
    assert its.is_within()


def test_what_a_pod_without_a_promise_may_ask_for_is_refused_without_room_for_the_other() -> None:
    its = filled(a=60, b=60)
    plain, large = replace(pod("plain", "a", (0, 0)), annotations={}), pod("large", "a", (60, 60))
    its.pods += [plain, large]

    assert not its.asks(large, "b::1")


@pytest.mark.parametrize("listed", [True, False])
def test_a_pod_that_only_seemed_to_be_refused_may_still_ask_after_a_later_one_was_bound(
    listed: bool,
) -> None:
    """The one that was refused is deleted before its status shows it; its deletion may be over, too."""
    its = filled(a=50, b=60, c=100)
    its.pods = [replace(it, pending=False) for it in its.pods]
    small, large = pod("small", "a", (30, 30)), pod("large", "b", (60, 60))
    its.pods += [small, large]
    its.shows = False
    assert not its.asks(small, "b::1")
    its.why.clear()
    its.ends(small)
    its.pods = [it for it in its.pods if listed or it.uid != small.uid]
    later = replace(pod("later", "a", (30, 30), appeared=9), created=8.0)
    its.pods.append(later)
    its.late = frozenset({later.uid})

    its.asks(large, "a::1")

    assert its.is_within()


def test_a_pod_is_suspected_no_more_once_the_status_of_another_says_that_it_was_refused() -> None:
    its = filled(a=50, b=60, c=50)
    first, second = pod("first", "a", (30, 30)), pod("second", "b", (60, 60))
    its.pods += [first, second]
    later = replace(pod("later", "c", (30, 30), appeared=9), created=8.0)

    assert not its.asks(second, its.preferred())
    its.pods.append(later)
    its.late = frozenset({later.uid})
    for asking in (first, later):
        assert its.asks(asking, its.preferred())

    assert (its.has()["first"], its.has()["later"]) == ("a", "c")


@given(data=st.data())
def test_who_is_left_of_one_second_has_its_card_where_it_shows_who_was_refused(data: st.DataObject) -> None:
    """Those that were refused have room nowhere. Their statuses come before the one that is left asks."""
    full = {card: data.draw(st.integers(41, 60)) for card in CARDS}
    its = filled(**full)
    names = data.draw(st.permutations("12345"))
    home, *homes = data.draw(st.permutations(CARDS))
    left = pod(names[0], home, (100 - full[home],) * 2)
    large = [pod(name, data.draw(st.sampled_from(CARDS)), (60, 60)) for name in names[1:]]
    its.pods += [left, *large]
    coming = [
        replace(pod(f"later-{n}", card, (100 - full[card],) * 2, appeared=9 + n), created=8.0 + n)
        for n, card in enumerate(homes)
    ]

    for asking in data.draw(st.permutations(large)):
        its.shows = data.draw(st.booleans())
        assert not its.asks(asking, its.preferred())
    for asking in data.draw(st.permutations(large)):
        its.ends(asking)
    its.pods += coming
    its.late = frozenset(it.uid for it in coming)
    for asking in (left, *coming):
        assert its.asks(asking, its.preferred())

    assert its.has() == {f"on-{card}": card for card in CARDS} | {
        it.name: it.annotations["card"] for it in (left, *coming)
    }


@pytest.mark.parametrize("container_edits", [edits, limits], ids=["plain", "limits"])
@given(data=st.data())
def test_pods_that_are_bound_while_those_of_one_second_are_taken_have_no_card_give_more_than_all_of_it(
    container_edits: Edits, data: st.DataObject
) -> None:
    """Whether or not it shows who was refused, and whoever is over by itself."""
    pods = data.draw(promised())
    late = data.draw(st.lists(st.sampled_from(pods), unique_by=attrgetter("uid"))) if pods else []
    names = frozenset(it.uid for it in late)
    coming = [replace(it, created=8.0 + n, appeared=9 + n) for n, it in enumerate(late)]
    its = Node([it for it in pods if it.uid not in names], container_edits)
    its.late, its.shows = names, data.draw(st.booleans())

    bound = data.draw(st.integers(0, len(its.pods)))
    for n, asking in enumerate(data.draw(st.permutations(its.pods))):
        if n == bound:
            its.pods = [*its.pods, *coming]
        if data.draw(st.booleans()) and its.refused:
            its.ends(data.draw(st.sampled_from([asking, *(it for it in pods if it.name in its.refused)])))
        if any(it.uid == asking.uid and it.waits for it in its.pods):
            its.asks(asking, its.preferred())
        assert its.is_within()
    its.pods += [it for it in coming if it not in its.pods]
    for asking in coming:
        its.asks(asking, its.preferred())
        assert its.is_within()

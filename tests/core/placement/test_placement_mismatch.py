"""Pods whose scheduler's choice is not heeded: which, and in which words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.scene import Scene
from agent.core.attribution.scheduler_promises import Promises
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.devices.topology import topology
from agent.core.event_notices import PodRef
from agent.core.model import Allocation, Owner
from agent.core.placement.placement_mismatch import MismatchNotices, placement_mismatches
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, Cards, Claim, Dialect, PodContainer
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.vendor_api.agent import ContainerEdits, Offers, Placement, ResourceRule, Slices, Vendor
from core.values import allocation, grouped, node, status

WHOLE = "acme.com/whole"
CARD = {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}
ONE = {WHOLE: 1, **CARD}


def written(*uuids: str) -> str:
    return json.dumps({"gpu": [{"minor": n, "id": uuid} for n, uuid in enumerate(uuids)]})


def pod(text: str, limits: dict[str, int] = ONE, **more: Any) -> Candidate:
    return Candidate("u", "default", "web", (PodContainer("main", limits),), {ALLOCATED: text}, **more)


def told(
    it: Candidate,
    *in_use: Allocation,
    placement: Placement = "auto",
    locked: Sequence[tuple[str, str]] = (),
    **more: Any,
) -> list[str]:
    snapshot = node(status("c0", 0), status("c1", 1))
    vendor = Vendor("acme", "", WHOLE, lambda *_: ContainerEdits(), **more)
    planned = plan([Offer("acme", (ResourceRule(WHOLE, placement=placement),))], snapshot)
    its = {"acme": vendor}
    scene = Scene(
        planned,
        snapshot,
        topology(snapshot),
        its,
        candidates=KnownPods.of([it]),
        locked=frozenset(locked),
        schedulers=registered(),
    )
    found = placement_mismatches(Promises(scene, grouped(in_use)))
    assert [one.pod for one in found] == [PodRef("default", "web", "u")] * len(found)
    return [one.why for one in found]


@pytest.mark.parametrize(
    ("it", "why"),
    [
        (pod("{{"), "Expecting property name"),
        (pod(written("c7")), "names c7, which is not here"),
        (pod(written("c0"), {WHOLE: 1}), "asks for no koordinator.sh/gpu or the like beside acme.com/whole"),
        (pod(written("c0"), {name: 2 * it for name, it in ONE.items()}), "names 1 cards, its containers ask"),
        (pod(written("c0"), scheduler="default-scheduler"), "is not believed of a pod of default-scheduler"),
    ],
    ids=["no JSON", "another node's card", "asks for the vendor's alone", "too few", "of another scheduler"],
)
def test_a_choice_that_can_not_be_heeded_is_told_with_the_reason(it: Candidate, why: str) -> None:
    (said,) = told(it)

    assert said.startswith("acme.com/whole: default/web: koordinator: ")
    assert why in said
    assert said.endswith("gets what the kubelet chooses")


@pytest.mark.parametrize(
    "it",
    [pod("{}"), pod('{"rdma": [{"minor": 0}]}'), replace(pod("{{"), annotations={})],
    ids=["nothing", "other devices", "no word"],
)
def test_who_asks_a_scheduler_and_has_no_word_of_it_is_told(it: Candidate) -> None:
    (said,) = told(it)

    assert said == (
        "acme.com/whole: default/web: no scheduler wrote which cards it gets; container main asks for 100 % "
        "of the cores and 100 % of the memory of a card, and gets what the kubelet chooses"
    )


SHARED = {WHOLE: 1, "koordinator.sh/gpu-core": 10, "koordinator.sh/gpu-memory": 1 << 30}


@pytest.mark.parametrize("text", ["{}", "{{"], ids=["missing", "not believed"])
@pytest.mark.parametrize(
    ("limits", "asks"),
    [
        (SHARED, "10 % of the cores and 1Gi of a card"),
        (
            {**SHARED, "koordinator.sh/gpu.shared": 2, WHOLE: 2},
            "5 % of the cores and 0.5Gi of each of 2 cards",
        ),
    ],
)
def test_what_it_gets_instead_is_the_vendors_word(text: str, limits: dict[str, int], asks: str) -> None:
    (said,) = told(pod(text, limits), offers=Offers(without_choice=lambda count: f"gets {count} halves"))

    assert said.endswith(f"; container main asks for {asks}, and gets {limits[WHOLE]} halves")


LIMITS = Dialect("limits", lambda it, *_: [Claim(it.uid, it.namespace, it.name, "main")])


OWN = Claim("u", "default", "web", "main", dialect="limits")
COUNTED_BY_NONE = (
    "container main asks for 10 % of the cores and 1Gi of a card, and gets that amount on any card "
    "with room, and no scheduler counts it"
)


@pytest.mark.parametrize(
    "in_use",
    [
        pytest.param((), id="it waits"),
        pytest.param((allocation("a", ["c0"], resource=WHOLE, claim=OWN),), id="it has what it asks for"),
    ],
)
def test_who_gets_what_its_own_limits_say_is_told_that_no_scheduler_counts_that(
    in_use: tuple[Allocation, ...],
) -> None:
    (said,) = told(pod("{}", SHARED), *in_use, pod_limits=LIMITS)

    assert said.endswith(COUNTED_BY_NONE)


def test_who_asks_no_scheduler_and_has_a_wrong_word_of_one_gets_what_its_limits_name() -> None:
    (said,) = told(
        pod("{{", {WHOLE: 1}), pod_limits=LIMITS, offers=Offers(without_choice=lambda _: "gets a half")
    )

    assert said.endswith(
        "; it gets the part of a card that its limits ask for; without such limits it gets a half"
    )


def test_where_a_scheduler_must_choose_no_limits_of_its_own_help_a_pod() -> None:
    assert told(pod("{}"), placement="claim", pod_limits=LIMITS)[0].endswith(", and is refused")


def test_a_vendor_whose_word_is_not_to_be_had_hides_nothing() -> None:
    assert told(pod("{}"), offers=Offers(without_choice=lambda _: str(1 / 0)))[0].endswith(
        ", and gets what the kubelet chooses"
    )


@pytest.mark.parametrize(
    "it",
    [
        pod(written("c0")),
        pod("{}", {WHOLE: 1}),
        pod("{}", {WHOLE: 1, "nvidia.com/gpu": 1}),
        replace(pod("{{"), over=True),
        pod("{{", {"cpu": 1}),
        pod(written("c0"), CARD),
    ],
    ids=[
        "heeded",
        "asks no scheduler",
        "another plugin's, too",
        "over",
        "asks for nothing",
        "asks no plugin",
    ],
)
def test_a_choice_that_is_heeded_or_none_is_no_news(it: Candidate) -> None:
    assert told(it) == []


def test_where_a_scheduler_must_choose_it_is_refused() -> None:
    for text in ("{{", "{}"):
        assert told(pod(text), placement="claim")[0].endswith(" of the memory of a card, and is refused")


def test_where_nobody_is_heeded_nothing_is_told() -> None:
    assert told(pod("{{"), placement="local") == []


def test_who_a_lock_of_the_node_names_is_believed() -> None:
    assert told(pod(written("c0"), scheduler="default-scheduler"), locked=[("default", "web")]) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{", "Expecting property name"),
        (written("c7"), "names c7, which is not here"),
        (written("c0", "c1"), "names 2 cards, its containers ask for 1"),
    ],
)
def test_cards_by_a_schedulers_word_alone_that_count_as_free_are_told(text: str, why: str) -> None:
    (said,) = told(pod(text, CARD))

    assert said.startswith("koordinator.sh/gpu: ")
    assert why in said
    assert said.endswith("the cards that it uses count as free here")


def held(uuid: str, claim: Claim | None = None) -> Allocation:
    owner = Owner("u", "main", "default", "web")
    return replace(allocation("a", [uuid], resource=WHOLE, owner=owner, devices=(uuid,)), claim=claim)


def test_a_pod_that_has_another_card_than_was_chosen_for_it_is_told_with_both() -> None:
    it = pod(written("c0"))

    assert told(it, held("c1")) == ["acme.com/whole: container main has card c1; the scheduler chose card c0"]
    assert told(it, held("c0")) == []


def test_what_is_made_on_the_chosen_card_before_its_container_starts_is_told_only_where_it_was_not() -> None:
    snapshot = node(status("c0", 0), status("c1", 1))
    by_name = ContainerEdits(cdi_devices=("acme.com/slice=it",))
    vendor = Vendor("acme", "", WHOLE, lambda *_: by_name, makes=Slices())
    planned = plan([Offer("acme", (ResourceRule(WHOLE, placement="auto"),))], snapshot)
    it = pod(written("c0"))
    scene = Scene(
        planned,
        snapshot,
        topology(snapshot),
        {"acme": vendor},
        candidates=KnownPods.of([it]),
        schedulers=registered(),
    )
    claim = Claim("u", "default", "web", "main", ("c0",))
    started: set[str] = set()
    lookout = MismatchNotices(
        lambda: Promises(scene, grouped([held("c1", claim)])), lambda: frozenset(started)
    )

    assert not lookout.mismatches

    started.add("a")
    assert [one.why for one in lookout.mismatches] == [
        "acme.com/whole: container main has card c1; the scheduler chose card c0"
    ]
    assert lookout.moved_pods() == {"u"}


def test_containers_of_one_pod_that_have_each_others_cards_are_no_news() -> None:
    both = (PodContainer("main", ONE), PodContainer("side", ONE))
    it = replace(pod(written("c0", "c1")), containers=both)
    side = replace(held("c0"), id="b", owner=Owner("u", "side", "default", "web"))

    assert told(it, held("c1"), side) == []


def test_who_has_what_was_left_of_anothers_choice_is_told_with_both() -> None:
    left = Claim("u", "default", "web", "main", ("c1",))

    assert told(pod(written("c0")), held("c1", left)) == [
        "acme.com/whole: container main has card c1; the scheduler chose card c0"
    ]


def test_who_has_its_claim_is_as_chosen_whatever_the_annotation_says_by_now() -> None:
    assert told(pod("{{"), held("c1", Claim("u", "default", "web", "main", ("c1",)))) == []


def test_who_has_other_cards_than_were_chosen_is_told_from_who_can_not_be_heeded() -> None:
    snapshot = node(status("c0", 0), status("c1", 1))
    vendor = Vendor("acme", "", WHOLE, lambda *_: ContainerEdits())
    planned = plan([Offer("acme", (ResourceRule(WHOLE, placement="auto"),))], snapshot)
    pods = (
        pod(written("c0")),
        replace(pod("{{"), uid="senseless", name="senseless"),
        replace(pod("{{", CARD), uid="alone", name="alone"),
    )
    scene = Scene(
        planned,
        snapshot,
        topology(snapshot),
        {"acme": vendor},
        candidates=KnownPods.of(pods),
        schedulers=registered(),
    )
    lookout = MismatchNotices(lambda: Promises(scene, grouped([held("c1")])))

    assert len(lookout.mismatches) == 3
    assert lookout.moved_pods() == {"u"}


def _other_pods(it: Promises) -> Promises:
    return structs.replace(it, scene=replace(it.scene, candidates=KnownPods.of([pod(written("c0"))])))


def _other_plan(it: Promises) -> Promises:
    return structs.replace(it, scene=replace(it.scene, plan={}))


def _other_cards(it: Promises) -> Promises:
    return structs.replace(it, scene=replace(it.scene, snapshot=node(status("c7"))))


def _other_vendors(it: Promises) -> Promises:
    return structs.replace(it, scene=replace(it.scene, vendors={}))


def _other_locks(it: Promises) -> Promises:
    return structs.replace(it, scene=replace(it.scene, locked=frozenset([("default", "web")])))


def _other_ledger(it: Promises) -> Promises:
    return structs.replace(it, in_use=grouped([held("c0", Claim("u", "default", "web", "main", ("c0",)))]))


@pytest.mark.parametrize(
    "becomes", [_other_pods, _other_plan, _other_cards, _other_vendors, _other_locks, _other_ledger]
)
def test_what_is_not_heeded_is_looked_for_anew_whatever_of_it_changes(
    becomes: Callable[[Promises], Promises],
) -> None:
    snapshot = node(status("c0", 0), status("c1", 1))
    vendor = Vendor("acme", "", WHOLE, lambda *_: ContainerEdits())
    planned = plan([Offer("acme", (ResourceRule(WHOLE, placement="auto"),))], snapshot)
    its = {"acme": vendor}
    scene = Scene(
        planned,
        snapshot,
        topology(snapshot),
        its,
        candidates=KnownPods.of([pod(written("c7"))]),
        schedulers=registered(),
    )
    now = [Promises(scene, grouped())]
    lookout = MismatchNotices(lambda: now[0])

    before = lookout.mismatches
    assert len(before) == 1
    assert lookout.mismatches is before
    now[0] = becomes(now[0])
    assert lookout.mismatches == placement_mismatches(now[0])
    assert lookout.mismatches is not before


def test_nothing_is_read_again_while_nothing_has_changed() -> None:
    read: list[str] = []

    def claims(it: Candidate, resource: str, _: Cards) -> Sequence[Claim]:
        read.append(f"{it.name} {resource}")
        return ()

    snapshot = node(status("c0", 0))
    vendor = Vendor("acme", "", WHOLE, lambda *_: ContainerEdits(), dialects=(Dialect("acme", claims),))
    planned = plan([Offer("acme", (ResourceRule(WHOLE, placement="auto"),))], snapshot)
    its = {"acme": vendor}
    lookout = MismatchNotices(
        lambda: Promises(
            Scene(
                planned,
                snapshot,
                topology(snapshot),
                its,
                candidates=KnownPods.of([pod("{}", {WHOLE: 1})]),
                schedulers=registered(),
            ),
            grouped(),
        )
    )

    assert [lookout.mismatches for _ in range(3)] == [(), (), ()]
    assert read == [f"web {WHOLE}"]

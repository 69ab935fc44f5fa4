"""Cards in use by a scheduler's word alone: whose word counts, and when it is over."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from support import recorded_pods

from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.attribution.external_use_rules import ReleasedPod, external_changes
from agent.core.attribution.external_use_rules import external_allocations as of_schedulers
from agent.core.model import Allocation, AllocationSource, AllocationState
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, Cards, PodContainer
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from core.values import held_ids

GPU = "nvidia.com/gpu"
CORE, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"
CARDS = {"nvidia": {"GPU-a": 0, "GPU-b": 1}}


def external(
    pods: Iterable[Candidate], served: Collection[str], vendors: Mapping[str, Cards], now: float
) -> list[Allocation]:
    """What the registered schedulers gave to these pods."""
    return of_schedulers(registered(), KnownPods.of(pods), served, vendors, now)


def changes(
    known: Iterable[Allocation],
    annotated: Iterable[Allocation],
    pods: Iterable[Candidate],
    *,
    known_pods: bool = True,
) -> tuple[list[Allocation], list[ReleasedPod]]:
    """What changes in the ledger with these pods."""
    return external_changes(known, annotated, KnownPods.of(pods), pods_known=known_pods)


def pod(*uuids: str, limits: dict[str, int] | None = None, **more: Any) -> Candidate:
    said = {"gpu": [{"minor": n, "id": uuid} for n, uuid in enumerate(uuids)]}
    asked = {CORE: 100 * len(uuids), RATIO: 100 * len(uuids)} if limits is None else limits
    containers = (PodContainer("main", asked),)
    return Candidate("uid", "default", "web", containers, {ALLOCATED: json.dumps(said)}, **more)


@pytest.mark.parametrize(
    ("it", "devices"),
    [
        (pod("GPU-a"), ("GPU-a",)),
        (pod("GPU-b", "GPU-a"), ("GPU-b", "GPU-a")),
        (replace(pod("GPU-a"), over=True), ("GPU-a",)),
        (pod("GPU-a", scheduler="koord-scheduler"), ("GPU-a",)),
        (replace(pod("GPU-a"), ended=True), ()),
        (pod("GPU-a", scheduler="default-scheduler"), ()),
        (pod("GPU-z"), ()),
        (pod("GPU-a", limits={GPU: 1, CORE: 100}), ()),
        (pod("GPU-a", limits={"cpu": 1}), ()),
        (pod("GPU-a", "GPU-b", limits={CORE: 50}), ()),
        (replace(pod("GPU-a"), annotations={ALLOCATED: "{"}), ()),
        (replace(pod("GPU-a"), annotations={}), ()),
    ],
    ids=[
        "a card",
        "two",
        "being deleted",
        "of koord-scheduler",
        "ended",
        "of Kubernetes' own scheduler",
        "a card that is not here",
        "asks a device plugin",
        "asks for nothing",
        "more than it asks for",
        "no JSON",
        "nothing written",
    ],
)
def test_a_pod_that_asks_koordinator_alone_uses_what_was_written(
    it: Candidate, devices: tuple[str, ...]
) -> None:
    found = external([it], {GPU}, CARDS, 7.0)

    assert [one.devices for one in found] == ([devices] if devices else [])
    assert all(
        (one.source, one.state, one.ids) == (AllocationSource.ANNOTATION, AllocationState.DONE, ())
        for one in found
    )


def test_the_recorded_pods_use_the_cards_that_were_written() -> None:
    vendors = {"nvidia": recorded_pods.devices("nv1")}

    found = external([it.candidate for it in recorded_pods.cases("nv1")], {GPU}, vendors, 7.0)

    used = {it.owner.pod: [vendors["nvidia"][uuid] for uuid in it.devices] for it in found if it.owner}
    assert used == {"n-core-ratio": [1], "n-core-mem": [1], "n-shared2": [4, 5], "n-mem": [1]}


def test_how_much_of_a_card_is_used_is_known_too() -> None:
    cases = {it.name: it.candidate for it in recorded_pods.cases("nv1")}

    found = external(cases.values(), {GPU}, {"nvidia": recorded_pods.devices("nv1")}, 7.0)

    shares = {it.claim.pod: it.claim.parameters for it in found if it.claim is not None}
    assert shares["n-core-mem"] == {"core": "30", "memory": str(10 << 30)}
    assert {it.claim.dialect for it in found if it.claim is not None} == {"koordinator"}


def test_a_share_that_was_changed_on_the_same_card_is_news() -> None:
    [before] = external([pod("GPU-a")], (), CARDS, 7.0)
    less = {"gpu": [{"minor": 0, "id": "GPU-a", "resources": {CORE: "50", RATIO: "50"}}]}
    [after] = external([replace(pod("GPU-a"), annotations={ALLOCATED: json.dumps(less)})], (), CARDS, 8.0)

    assert changes([before], [after], [pod("GPU-a")]) == ([after], [])


def test_what_is_known_is_no_news_and_a_pod_that_is_missing_is_over_once_pods_are_known() -> None:
    [one] = external([pod("GPU-a")], (), CARDS, 7.0)
    [moved] = external([pod("GPU-b")], (), CARDS, 8.0)
    there = [pod("GPU-a")]

    assert changes([], [one], there) == ([one], [])
    assert changes([one], [replace(one, since=9.0)], there) == ([], [])
    assert changes([one], [moved], there) == ([moved], [])
    assert changes([one], [], [], known_pods=False) == ([], [])
    for pods in ([], [replace(there[0], ended=True)], [replace(there[0], uid="uid-next")]):
        _, [gone] = changes([one], [], pods)
        assert gone.allocation == one.id


def test_a_pod_that_runs_keeps_its_cards_whatever_becomes_of_them() -> None:
    its = pod("GPU-a", "GPU-b")
    [both] = external([its], (), CARDS, 7.0)
    ledger = [both]
    for pods, vendors in (
        ([its], {"nvidia": {"GPU-a": 0}}),
        ([its], {"nvidia": {"GPU-z": 0}}),
        ([its], {}),
        ([replace(its, annotations={})], CARDS),
        ([replace(its, annotations={ALLOCATED: "{"})], CARDS),
    ):
        assert changes(ledger, external(pods, (), vendors, 8.0), pods) == ([], [])


def test_cards_that_nobody_knows_yet_are_in_use_once_they_are_here() -> None:
    its = pod("GPU-a", "GPU-b")
    [one] = external([its], (), {"nvidia": {"GPU-a": 0}}, 7.0)
    [both] = external([its], (), CARDS, 8.0)

    assert one.devices == ("GPU-a",)
    assert changes([one], [both], [its]) == ([both], [])


def test_a_card_is_in_use_also_of_who_was_given_more_than_it_asks_for() -> None:
    much = {"gpu": [{"minor": 0, "id": "GPU-a", "resources": {CORE: "100", RATIO: "100"}}]}
    its = replace(pod("GPU-a", limits={CORE: 10, RATIO: 10}), annotations={ALLOCATED: json.dumps(much)})

    assert [it.devices for it in external([its], (), CARDS, 7.0)] == [("GPU-a",)]


def test_parts_of_one_card_for_two_containers_are_one_card_in_use() -> None:
    half = {CORE: 50, RATIO: 50}
    its = replace(pod("GPU-a"), containers=(PodContainer("a", half), PodContainer("b", half)))

    assert [it.devices for it in external([its], (), CARDS, 7.0)] == [("GPU-a",)]


def test_cards_are_counted_by_the_pods_sums() -> None:
    much = {CORE: 150, RATIO: 150}
    cards = {"nvidia": {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}}
    its = replace(pod(*cards["nvidia"]), containers=(PodContainer("a", much), PodContainer("b", much)))

    assert [it.devices for it in external([its], (), cards, 7.0)] == [(*cards["nvidia"],)]


def test_the_kubelet_holds_no_ids_of_it_and_the_card_is_in_use() -> None:
    [one] = external([pod("GPU-a")], (), CARDS, 7.0)

    ledger = Ledger([one])

    assert held_ids(ledger.usage()) == {}
    assert ledger.usage().vendors == {}
    assert ledger.devices_in_use() == {"GPU-a"}
    assert {uuid: it.id for uuid, it in ledger.external().items()} == {"GPU-a": one.id}

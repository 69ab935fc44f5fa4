"""Faults of Koordinator's programs that who honours its choice meets, and the list of all that are known."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from core.values import allocation, node, status
from support import recorded_pods
from support.read_annotations import READS

from agent.cluster.pods import candidate
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.node_lock_rules import EXPIRED, EXPIRES, parsed_lock, why_over
from agent.core.attribution.pod_attribution import attribute
from agent.core.attribution.waiting_pods import WaitingPods
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.model import Owner
from agent.core.reconciling.reconcile_evidence import Evidence, Pods
from agent.core.reconciling.reconcile_rules import reconcile
from agent.core.reconciling.recovered_allocations import recover_from_pods
from agent.scheduler_api import Candidate, PodContainer
from agent.schedulers.common.node_lock import LOCKS
from agent.schedulers.hami.pod_annotations import METAX, METAX_ALLOCATED, metax
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.schedulers.koordinator.dialect import KOORDINATOR, claims
from agent.vendor_api.agent import ResourceRule

ROOT = Path(__file__).parents[3]
GPU, SGPU, TRIGGER = "nvidia.com/gpu", "metax-tech.com/sgpu", "example.com/share"
NVIDIA, MXC = recorded_pods.devices("nv1"), recorded_pods.devices("metax1")
(KEY,) = LOCKS
TAKEN = 1795210449.0

#: Each fault, and the tests that it is neither triggered nor copied.
FAULTS: Mapping[int, tuple[str, tuple[str, ...]]] = {
    1: (
        "a condition's reason with a space has the whole Device refused",
        (
            "schedulers.koordinator.test_upstream.test_no_fault_has_a_reason_that_keeps_the_whole_device_from_being_written",
        ),
    ),
    2: (
        "a card without a minor ends koord-scheduler and koordlet",
        (
            "schedulers.koordinator.test_upstream.test_no_card_is_without_a_minor_which_ends_scheduler_and_koordlet",
        ),
    ),
    3: (
        "koordlet erases others' labels and annotations every three seconds",
        ("schedulers.koordinator.test_upstream.test_labels_and_annotations_of_others_are_not_erased",),
    ),
    4: (
        "a restart of koord-device-daemon takes the cards from the node for a while",
        ("schedulers.koordinator.test_upstream.test_a_restart_takes_no_card_from_the_node",),
    ),
    5: (
        "koord-device-daemon calls a vendor kunlun that the scheduler calls baidu",
        (
            "schedulers.koordinator.test_upstream.test_a_vendor_has_the_name_by_which_the_scheduler_looks_for_its_adapter",
        ),
    ),
    6: (
        "the manual's partition table has scores as text, and a size twice",
        (
            "schedulers.koordinator.test_upstream.test_the_groups_of_cards_are_written_so_that_the_scheduler_reads_all_of_them",
        ),
    ),
    7: (
        "the label of isolation is HAMi-core, older manuals say hami-core and gpu-shared",
        (
            "schedulers.koordinator.test_upstream_choice.test_limits_do_not_hang_on_how_a_pod_spells_the_label_of_isolation",
            "schedulers.koordinator.test_upstream_choice.test_the_label_of_isolation_is_written_as_koordinator_reads_it",
        ),
    ),
    8: (
        "koord-manager counts no gpu.shared unless a gate is on, though manuals need it",
        ("schedulers.koordinator.test_upstream_choice.test_a_share_is_understood_without_gpu_shared",),
    ),
    9: (
        "the adapter for MetaX writes the cards of all containers as those of the first",
        (
            "schedulers.koordinator.test_upstream_choice.test_cards_that_are_written_as_one_containers_are_split_over_all",
        ),
    ),
    10: (
        "a pod whose binding failed is locked out by its own lock for five minutes",
        (
            "schedulers.koordinator.test_upstream_choice.test_a_lock_of_a_pod_whose_binding_failed_ends_when_schedulers_take_it_themselves",
        ),
    ),
    11: (
        "koord-manager does not see a Device of which labels alone changed",
        (
            "schedulers.koordinator.test_upstream.test_a_new_driver_or_model_changes_a_card_so_that_the_node_gets_its_label",
        ),
    ),
    12: (
        "koord-manager waits five minutes with a tenth of the node or less",
        ("schedulers.koordinator.test_upstream.test_one_card_of_many_that_fails_is_written_at_once",),
    ),
    13: (
        "koordlet's proxy of PodResources calls every vendor's card nvidia.com/gpu",
        (
            "schedulers.koordinator.test_upstream_choice.test_a_card_that_is_listed_under_another_vendors_name_is_not_taken_for_one_of_its",
            "schedulers.koordinator.test_upstream_choice.test_a_card_that_is_listed_twice_is_held_once",
        ),
    ),
    14: (
        "a minor that is no number becomes 0",
        ("schedulers.koordinator.test_upstream.test_no_minor_is_one_that_koordlet_takes_for_zero",),
    ),
    15: (
        "an empty list wipes the node, what cannot be read keeps the last one",
        (
            "schedulers.koordinator.test_upstream.test_no_file_is_an_empty_list_which_koordlet_takes_at_its_word",
        ),
    ),
    16: (
        "the scheduler takes the least score of a group first",
        (
            "schedulers.koordinator.test_upstream.test_all_groups_of_a_size_have_one_score_so_that_it_chooses_nothing",
        ),
    ),
    17: (
        "koordlet writes a Device with conditions every three seconds",
        ("schedulers.koordinator.test_upstream.test_a_device_that_says_all_of_it_is_not_written_again",),
    ),
    18: (
        "v1.7.0 reads of a lock its time alone, and frees none whose pod is gone",
        (
            "schedulers.koordinator.test_upstream_choice.test_a_lock_of_any_release_is_read_and_freed_as_its_pod_goes",
            "core.allocation.test_node_lock_rules.test_a_lock_of_the_old_form_ends_by_time_alone",
        ),
    ),
}


def test_every_known_fault_has_a_test() -> None:
    assert [*FAULTS] == [*range(1, 19)]
    for sentence, tests in FAULTS.values():
        for name in tests:
            module, _, test = name.rpartition(".")
            found = getattr(importlib.import_module(module), test, None)
            assert inspect.isfunction(found), f"{sentence}: there is no {name}"


@pytest.mark.parametrize("value", [None, "HAMi-core", "hami-core", "anything"])
def test_limits_do_not_hang_on_how_a_pod_spells_the_label_of_isolation(value: str | None) -> None:
    (case,) = (it for it in recorded_pods.cases("nv1") if it.name == "n-core-mem")
    labels = {} if value is None else {"koordinator.sh/gpu-isolation-provider": value}
    limits = {name: str(count) for name, count in {**case.limits["a"], TRIGGER: 1}.items()}
    metadata = {"uid": "u", "namespace": "default", "name": "p", "labels": labels}
    spec = {"containers": [{"name": "a", "resources": {"limits": limits}}]}

    its = candidate({"metadata": {**metadata, "annotations": dict(case.annotations)}, "spec": spec}, READS)

    assert its is not None
    (claim,) = claims(its, TRIGGER, NVIDIA)
    assert claim.parameters == {"core": "30", "memory": str(10 << 30)}


def test_the_label_of_isolation_is_written_as_koordinator_reads_it() -> None:
    files = [it for room in ("agent", "deploy", "docs") for it in (ROOT / room).rglob("*") if it.is_file()]
    texts = [it.read_text() for it in files if it.suffix in (".md", ".py", ".yaml", ".tpl", ".json")]

    values = {
        value
        for it in texts
        for value in re.findall(r"gpu-isolation-provider['\"]?\s*[:=]\s*['\"]?([\w-]+)", it)
    }

    assert values - {"VALUE"} <= {"HAMi-core"}
    assert not [it for it in texts if "koordinator.sh/gpu-shared" in it]


def test_a_share_is_understood_without_gpu_shared() -> None:
    half = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}
    given = {name: str(percent) for name, percent in half.items()}
    text = json.dumps({"gpu": [{"minor": 1, "resources": given}]})
    for counted in ({}, {"koordinator.sh/gpu.shared": 1}):
        container = PodContainer("main", {TRIGGER: 1, **half, **counted})
        pod = Candidate("uid", "default", "web", (container,), {ALLOCATED: text})

        (claim,) = claims(pod, TRIGGER, NVIDIA)

        assert [NVIDIA[it] for it in claim.devices] == [1]
        assert claim.parameters == {"core": "50", "ratio": "50"}


def test_cards_that_are_written_as_one_containers_are_split_over_all() -> None:
    (case,) = (it for it in recorded_pods.cases("metax1") if it.name == "m-two-ctrs")
    assert case.annotations[METAX_ALLOCATED].count("[") == 2  # one list within one: of the first container
    alone = Candidate(
        "uid",
        "default",
        "web",
        case.candidate.containers,
        {METAX_ALLOCATED: case.annotations[METAX_ALLOCATED]},
    )

    found = {it.container: it.devices for it in metax(alone, SGPU, MXC)}

    assert [*found] == ["a", "b"]
    assert len({*found["a"], *found["b"]}) == 2
    for container, cards in found.items():
        its = attribute(
            SGPU, 1, set(cards), WaitingPods(KnownPods.of((alone,)), (METAX, KOORDINATOR), MXC)
        ).claim
        assert its is not None
        assert its.container == container


def test_a_lock_of_a_pod_whose_binding_failed_ends_when_schedulers_take_it_themselves() -> None:
    """Nobody here can tell it from one that is about to be bound."""
    mine = parsed_lock(KEY, "2026-11-20T21:34:09Z,default,web")
    another = Candidate("uid-job", "default", "job", (PodContainer("main", {SGPU: 1}),))
    assert mine is not None

    assert why_over(mine, [another], [], TAKEN + EXPIRES - 1) == ""
    assert why_over(mine, [another], [], TAKEN + EXPIRES) == EXPIRED


WEB = Candidate("uid-web", "default", "web", (PodContainer("main", {SGPU: 1}),))
SERVED = allocation("a1", ["MX-0"], resource=SGPU, owner=Owner("uid-web", "main", "default", "web"))


@pytest.mark.parametrize(
    ("value", "pods", "why"),
    [
        ("2026-11-20T21:34:09Z,default,web", (WEB,), "its pod has its devices"),
        ("2026-11-20T21:34:09+00:00,default,web", (WEB,), "its pod has its devices"),
        ("2026-11-20T21:34:09Z,default,job", (WEB,), ""),
        ("2026-11-20T21:34:09Z", (WEB,), ""),
    ],
    ids=["today's", "with an offset", "another pod's", "the time alone"],
)
def test_a_lock_of_any_release_is_read_and_freed_as_its_pod_goes(
    value: str, pods: tuple[Candidate, ...], why: str
) -> None:
    found = parsed_lock(KEY, value)

    assert found is not None
    assert found.taken == TAKEN
    assert why_over(found, pods, [SERVED], TAKEN + 1) == why


CARDS = node(status("GPU-0", 0, vendor="nvidia"), status("MX-0", 0, vendor="metax"))
PLAN = plan([Offer("nvidia", (ResourceRule(GPU),)), Offer("metax", (ResourceRule(SGPU),))], CARDS)


def test_a_card_that_is_listed_under_another_vendors_name_is_not_taken_for_one_of_its() -> None:
    shown: Pods = {("default", "web"): {"main": {GPU: frozenset({"MX-0"}), SGPU: frozenset({"MX-0"})}}}

    found = recover_from_pods(shown, PLAN, str, 1.0)

    assert [(it.allocation.resource, it.allocation.devices) for it in found] == [(SGPU, ("MX-0",))]


def test_a_card_that_is_listed_twice_is_held_once() -> None:
    shown: Pods = {("default", "web"): {"main": {SGPU: frozenset({"MX-0"}), GPU: frozenset({"MX-0"})}}}

    evidence = Evidence(granted=(), pods=shown, life="k1", settled=True)

    assert reconcile([SERVED], evidence, 1000.0, 60.0) == []

"""What containers use of the cards, and what is left, add up to what the library says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.usage.usage_report import Unattributed, VendorSample
from agent.vendor_api.agent import ProcessUsage, Usage

from .cards_in_use import (
    CARD,
    GIB,
    HEX,
    HIDDEN,
    ON_HOST,
    OTHER_CARD,
    account,
    balanced,
    by_name,
    by_uuid,
    card,
    device,
    held,
    in_pod,
    moment,
    pod,
    process,
)

MAIN = ("p", "main", CARD)


def test_the_memory_in_use_is_shared_out_to_containers_host_and_driver() -> None:
    """The worked sample of a card in four replicas, two pods and one process of the host."""
    sample = VendorSample(
        (card(21 * GIB),),
        (process(1, 12 * GIB, 0.41), process(2, 8 * GIB, None), process(3, GIB // 2, None)),
    )
    known = {1: in_pod("infer"), 2: in_pod("nb"), 3: ON_HOST}
    found = account(sample, known, moment(held("infer"), held("nb")))
    uses = by_name(found)
    assert (uses["infer", "main", CARD].memory, uses["infer", "main", CARD].utilization) == (12 * GIB, 0.41)
    assert (uses["nb", "main", CARD].memory, uses["nb", "main", CARD].utilization) == (8 * GIB, None)
    assert by_uuid(found)[CARD].unattributed == {
        Unattributed.HOST: GIB // 2,
        Unattributed.UNKNOWN_POD: 0,
        Unattributed.DRIVER: GIB // 2,
    }
    assert found.unknown == {"card": 0, "owner": 0, "memory": 0, "utilization": 2}
    assert balanced(found)


def test_a_container_has_the_sum_of_its_processes_and_never_more_than_the_card() -> None:
    sample = VendorSample((card(3 * GIB),), (process(1, GIB, 0.7), process(2, 2 * GIB, 0.6)))
    found = account(sample, {1: in_pod("p"), 2: in_pod("p")}, moment(held("p")))
    use = by_name(found)[MAIN]
    assert (use.processes, use.memory, use.utilization) == (2, 3 * GIB, 1.0)


def test_a_process_in_two_lists_of_the_library_counts_once() -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB, None), process(1, None, 0.5)))
    found = account(sample, {1: in_pod("p")}, moment(held("p")))
    use = by_name(found)[MAIN]
    assert (use.processes, use.memory, use.utilization) == (1, GIB, 0.5)
    assert by_uuid(found)[CARD].overcounted == 0


def test_processes_that_exceed_the_memory_in_use_are_overcounted_and_nothing_is_negative() -> None:
    sample = VendorSample((card(GIB),), (process(1, 3 * GIB),))
    found = account(sample, {1: in_pod("p")}, moment(held("p")))
    of_card = by_uuid(found)[CARD]
    assert (of_card.overcounted, of_card.unattributed[Unattributed.DRIVER]) == (2 * GIB, 0)
    assert balanced(found)


def test_the_rest_is_unmeasured_where_the_memory_of_a_process_is_not_known() -> None:
    sample = VendorSample((card(4 * GIB),), (process(1, GIB), process(2, None)))
    found = account(sample, {1: in_pod("p"), 2: in_pod("p")}, moment(held("p")))
    assert by_name(found)[MAIN].memory is None
    of_card = by_uuid(found)[CARD]
    assert of_card.unattributed[Unattributed.UNMEASURED] == 4 * GIB
    assert Unattributed.DRIVER not in of_card.unattributed
    assert found.unknown["memory"] == 1
    assert balanced(found)


def test_there_is_no_rest_where_the_memory_in_use_is_not_known() -> None:
    sample = VendorSample((card(None),), (process(1, GIB), process(2, GIB)))
    found = account(sample, {1: in_pod("p"), 2: ON_HOST}, moment(held("p")))
    of_card = by_uuid(found)[CARD]
    assert of_card.unattributed == {Unattributed.HOST: GIB, Unattributed.UNKNOWN_POD: 0}
    assert of_card.overcounted == 0
    assert by_name(found)[MAIN].memory == GIB


def test_all_memory_is_unmeasured_where_the_vendor_tells_no_processes() -> None:
    found = account(VendorSample((card(4 * GIB),), None), {}, moment(held("p")))
    assert by_uuid(found)[CARD].unattributed == {Unattributed.UNMEASURED: 4 * GIB}
    use = by_name(found)[MAIN]
    assert (use.processes, use.memory, use.utilization) == (0, None, None)


def test_a_card_without_figures_has_an_account_if_a_process_is_on_it() -> None:
    found = account(VendorSample(None, (process(1, GIB),)), {1: ON_HOST}, moment())
    assert by_uuid(found)[CARD].usage == Usage(CARD)
    assert by_uuid(found)[CARD].unattributed[Unattributed.HOST] == GIB


def test_a_container_that_holds_a_card_and_has_no_process_uses_nothing() -> None:
    found = account(VendorSample((card(GIB),), ()), {}, moment(held("p")))
    use = by_name(found)[MAIN]
    assert (use.processes, use.memory, use.utilization, use.resource) == (0, 0, 0.0, "example.com/gpu")


@pytest.mark.parametrize(("other", "expected"), [(0.3, 0.0), (None, None)])
def test_no_utilization_is_told_for_an_idle_container_where_the_library_tells_none(
    other: float | None, expected: float | None
) -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB, other),))
    found = account(sample, {1: in_pod("q")}, moment(held("p"), held("q")))
    assert by_name(found)[MAIN].utilization == expected


# Owners


def test_a_process_of_a_pod_without_an_allocation_is_charged_to_the_pod() -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB),))
    pods = [pod("p", "a", "b")]
    use = by_name(account(sample, {1: in_pod("p")}, moment(pods=pods)))["p", "", CARD]
    assert (use.namespace, use.resource, use.memory) == ("ns", "", GIB)


def test_the_only_container_of_a_pod_is_charged_without_an_allocation() -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB),))
    found = account(sample, {1: in_pod("p")}, moment(pods=[pod("p", "main")]))
    assert by_name(found)[MAIN].resource == ""


def test_of_several_containers_the_one_with_the_allocation_is_charged() -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB),))
    now = moment(held("p", container="a"), held("p", OTHER_CARD, container="b"), pods=[pod("p", "a", "b")])
    uses = by_name(account(sample, {1: in_pod("p")}, now))
    assert (uses["p", "a", CARD].memory, uses["p", "b", OTHER_CARD].memory) == (GIB, 0)


def test_of_several_containers_with_an_allocation_the_one_with_the_runtimes_id_is_charged() -> None:
    sample = VendorSample((card(3 * GIB),), (process(1, GIB), process(2, 2 * GIB)))
    other = "cd" * 32
    pods = [pod("p", "a", "b", ids={HEX: "a", other: "b"})]
    now = moment(held("p", container="a"), held("p", container="b"), pods=pods)
    uses = by_name(account(sample, {1: in_pod("p"), 2: in_pod("p", other)}, now))
    assert (uses["p", "a", CARD].memory, uses["p", "b", CARD].memory) == (GIB, 2 * GIB)


def test_a_container_that_uses_a_card_of_another_one_is_charged_itself() -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB),))
    pods = [pod("p", "main", "sidecar", ids={HEX: "sidecar"})]
    uses = by_name(account(sample, {1: in_pod("p")}, moment(held("p"), pods=pods)))
    assert (uses["p", "sidecar", CARD].memory, uses["p", "sidecar", CARD].resource) == (GIB, "")
    assert uses[MAIN].memory == 0


def test_the_pod_is_charged_where_its_container_is_not_known_and_its_containers_use_is_not_told() -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB),))
    found = account(sample, {1: in_pod("p")}, moment(held("p", container="a"), held("p", container="b")))
    uses = by_name(found)
    assert uses["p", "", CARD].memory == GIB
    assert (uses["p", "a", CARD].memory, uses["p", "a", CARD].utilization) == (None, None)
    assert balanced(found)


def test_a_pod_has_its_name_from_the_logs_where_nothing_else_names_it() -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB),))
    found = account(sample, {1: in_pod("p")}, moment(), logs={"uid-p": ("ns", "p")})
    assert by_name(found)["p", "", CARD].memory == GIB
    named = account(sample, {1: in_pod("p")}, moment(held("p", named=False)), logs={"uid-p": ("ns", "p")})
    assert by_name(named)[MAIN].memory == GIB


@pytest.mark.parametrize("known", [in_pod("p"), HIDDEN], ids=["a pod without a name", "a hidden cgroup"])
def test_memory_of_a_process_without_a_known_pod_is_counted_and_charged_to_no_container(
    known: object,
) -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB),))
    found = account(sample, {1: known}, moment(held("p", named=False)))  # type: ignore[dict-item]
    assert found.containers == ()
    assert by_uuid(found)[CARD].unattributed[Unattributed.UNKNOWN_POD] == GIB
    assert found.unknown["owner"] == 1


def test_a_process_that_ended_after_the_sample_is_left_out() -> None:
    sample = VendorSample((card(3 * GIB),), (process(1, GIB), process(2, 2 * GIB)))
    found = account(sample, {1: in_pod("p")}, moment(held("p")))
    assert by_name(found)[MAIN].memory == GIB
    assert by_uuid(found)[CARD].unattributed[Unattributed.UNMEASURED] == 2 * GIB
    assert [it.pid for it in found.processes] == [1]
    assert balanced(found)


def test_a_container_is_not_in_the_account_from_the_end_of_its_allocation_on() -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB),))
    then = moment(held("p"), pods=[pod("p")])
    assert MAIN in by_name(account(sample, {1: in_pod("p")}, then))
    found = account(sample, {1: in_pod("p")}, moment(pods=[pod("p")]), then=then)
    assert found.containers == ()
    assert by_uuid(found)[CARD].unattributed[Unattributed.UNKNOWN_POD] == GIB
    # The next sample shows the process of a pod without an allocation.
    assert MAIN in by_name(account(sample, {1: in_pod("p")}, moment(pods=[pod("p")])))


def test_the_end_of_one_containers_allocation_changes_no_other_container() -> None:
    other = "cd" * 32
    sample = VendorSample((card(3 * GIB),), (process(1, GIB), process(2, 2 * GIB)))
    known = {1: in_pod("p"), 2: in_pod("p", other)}
    pods = [pod("p", "a", "b", ids={HEX: "a", other: "b"})]
    then = moment(held("p", container="a"), held("p", container="b"), pods=pods)
    uses = by_name(account(sample, known, moment(held("p", container="b"), pods=pods), then=then))
    assert {key[1]: it.memory for key, it in uses.items()} == {"b": 2 * GIB}


def test_an_init_container_that_has_ended_holds_no_card() -> None:
    sample = VendorSample((card(GIB),), (process(1, GIB),))
    pods = [pod("p", "main", init=["load"])]
    in_use = (held("p", container="load"), held("p"))
    assert [*by_name(account(sample, {1: in_pod("p")}, moment(*in_use, pods=pods)))] == [MAIN]
    starting = [replace(it, pending=True) for it in pods]
    uses = by_name(account(VendorSample((card(GIB),), ()), {}, moment(*in_use, pods=starting)))
    assert {container for _, container, _ in uses} == {"load", "main"}


# Slices

SLICE = "MIG-1"


def test_a_card_has_the_memory_of_its_slices_apart() -> None:
    sample = VendorSample((card(6 * GIB), card(4 * GIB, SLICE, 5 * GIB)), (process(1, 3 * GIB, None, SLICE),))
    devices = (device(CARD), device(SLICE, 5 * GIB, parent=CARD))
    found = account(sample, {1: in_pod("p")}, moment(held("p", SLICE), devices=devices))
    assert by_name(found)["p", "main", SLICE].memory == 3 * GIB
    assert by_uuid(found)[SLICE].unattributed[Unattributed.DRIVER] == GIB
    parent = by_uuid(found)[CARD]
    assert (parent.in_slices, parent.unattributed[Unattributed.DRIVER]) == (4 * GIB, 2 * GIB)
    assert balanced(found)


def test_the_rest_of_a_card_is_unmeasured_where_the_memory_in_use_on_a_slice_is_not_known() -> None:
    sample = VendorSample((card(6 * GIB), card(None, SLICE)), (process(1, 3 * GIB, None, SLICE),))
    devices = (device(CARD), device(SLICE, 5 * GIB, parent=CARD))
    found = account(sample, {1: in_pod("p")}, moment(held("p", SLICE), devices=devices))
    parent = by_uuid(found)[CARD]
    assert (parent.in_slices, parent.unattributed[Unattributed.UNMEASURED]) == (3 * GIB, 3 * GIB)
    assert balanced(found)


def test_a_process_on_a_made_slice_without_figures_of_its_own_is_on_the_allocations_card() -> None:
    sample = VendorSample((card(4 * GIB),), (process(1, 3 * GIB, None, "sgpu-7"),))
    now = moment(held("p", partitions=("sgpu-7",)))
    found = account(sample, {1: in_pod("p")}, now)
    assert [*by_name(found)] == [MAIN]
    assert by_name(found)[MAIN].memory == 3 * GIB
    assert [*by_uuid(found)] == [CARD]
    assert [it.uuid for it in found.processes] == [CARD]
    assert balanced(found)


def test_a_slice_of_others_is_on_the_card_that_the_vendor_names() -> None:
    made = replace(card(4 * GIB, "sgpu-9", 5 * GIB), parent=CARD)
    sample = VendorSample((card(6 * GIB), made), (process(1, 3 * GIB, None, "sgpu-9"),))
    found = account(sample, {1: in_pod("p")}, moment(held("p", OTHER_CARD)))
    assert by_uuid(found)[CARD].in_slices == 4 * GIB
    assert by_uuid(found)[CARD].unattributed[Unattributed.DRIVER] == 2 * GIB
    assert balanced(found)


def test_a_made_slice_with_figures_has_an_account_of_its_own() -> None:
    sample = VendorSample(
        (card(6 * GIB), card(4 * GIB, "sgpu-7", 5 * GIB)), (process(1, 3 * GIB, None, "sgpu-7"),)
    )
    found = account(sample, {1: in_pod("p")}, moment(held("p", partitions=("sgpu-7",))))
    use = by_name(found)["p", "main", "sgpu-7"]
    assert (use.memory, use.memory_limit) == (3 * GIB, 5 * GIB)
    assert by_uuid(found)[CARD].in_slices == 4 * GIB
    assert balanced(found)


def test_cards_are_in_the_order_of_the_list_each_before_its_slices() -> None:
    devices = (device(CARD), device(OTHER_CARD), device(SLICE, parent=CARD))
    others = replace(card(GIB, "sgpu-9"), parent=OTHER_CARD)
    sample = VendorSample((others, card(GIB, SLICE), card(GIB, OTHER_CARD), card(GIB)), ())
    found = account(sample, {}, moment(devices=devices))
    assert [it.usage.uuid for it in found.cards] == [CARD, SLICE, OTHER_CARD, "sgpu-9"]


# All figures that a decoded sample can have (`isolation/sample_answers.py`)

PIDS = st.integers(1, 6)
MEMORY = st.none() | st.integers(0, 2**63 - 1) | st.integers(0, 20 * GIB)
UUIDS = st.sampled_from((CARD, OTHER_CARD, SLICE, "sgpu-7", "nothing known"))
PARTS = st.none() | st.floats(0, 1)
SAMPLES = st.builds(
    VendorSample,
    st.none() | st.lists(st.builds(Usage, UUIDS, MEMORY, MEMORY)).map(tuple),
    st.none() | st.lists(st.builds(ProcessUsage, UUIDS, PIDS, MEMORY, PARTS)).map(tuple),
)
NODES = st.dictionaries(
    PIDS, st.sampled_from((in_pod("p"), in_pod("q"), in_pod("stranger"), ON_HOST, HIDDEN))
)
HELD = st.lists(
    st.sampled_from(
        (
            held("p"),
            held("p", container="b"),
            held("q", SLICE),
            held("q", OTHER_CARD, partitions=("sgpu-7",)),
            held("q", OTHER_CARD, CARD, partitions=("sgpu-7", CARD)),
        )
    ),
    unique=True,
)


@given(SAMPLES, NODES, HELD, HELD, st.booleans())
def test_every_account_adds_up_whatever_the_figures_are(sample, known, now, then, cached) -> None:  # type: ignore[no-untyped-def]
    devices = (device(CARD), device(OTHER_CARD), device(SLICE, parent=CARD))
    pods = [pod("p", "main", "b")] if cached else []
    found = account(
        sample,
        known,
        moment(*now, pods=pods, devices=devices),
        then=moment(*then, pods=pods, devices=devices),
    )
    assert balanced(found)
    by_name(found)
    for of_card in found.cards:
        assert min((*of_card.unattributed.values(), of_card.overcounted, of_card.in_slices)) >= 0
    for use in found.containers:
        assert use.memory is None or use.memory >= 0
        assert use.utilization is None or 0.0 <= use.utilization <= 1.0

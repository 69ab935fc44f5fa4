"""Cards that a scheduler gave to a pod that asks nobody here, though another pod has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from agent.core.model import Allocation, AllocationSource, NodeSnapshot, Owner, Resource
from agent.core.placement.double_booking import double_bookings
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, Claim
from core.values import GPU, allocation, node, shared, status, whole

GIB = 1 << 30
PARENT = replace(status("c0"), device=replace(status("c0").device, memory=8 * GIB))
SLICE = status("s0", parent="c0")
SLICE = replace(SLICE, device=replace(SLICE.device, memory=2 * GIB))
HERE = node(PARENT, status("c1", 1), SLICE)
HALF = {"core": "50", "ratio": "50"}
#: Percent that add up, as floats, to a hair more than 1.
HAIR = {"a": "56", "b": "11", "c": "33"}


def external(name: str, *cards: str, **share: str) -> Allocation:
    """A pod that has them by its scheduler's word alone."""
    claim = Claim(name, "default", name, "", cards, share, dialect="koordinator")
    it = allocation(f"annotation-{name}", (), resource="koordinator.sh/gpu", devices=cards)
    return replace(
        it, source=AllocationSource.ANNOTATION, owner=Owner(name, "", "default", name), claim=claim
    )


def held(
    name: str,
    *ids: str,
    on: Sequence[str] = (),
    chosen: Sequence[str] = (),
    dialect: str = "koordinator",
    **share: str,
) -> Allocation:
    """A pod that asked the device plugin for these IDs, with its scheduler's choice if there was one."""
    it = allocation(name, ids, owner=Owner(name, "main", "default", name), devices=tuple(on or ids))
    claim = Claim(name, "default", name, "main", tuple(chosen), share, dialect=dialect)
    return replace(it, claim=claim if chosen else None)


def told(
    *in_use: Allocation,
    resource: Resource | None = None,
    ended: Sequence[str] = (),
    moved: Collection[str] = (),
    here: NodeSnapshot = HERE,
) -> list[str]:
    names = {it.owner.pod for it in in_use if it.owner} - {"gone"}
    pods = [Candidate(name, "default", name, ended=name in ended) for name in sorted(names)]
    plan = {GPU: resource or whole(["c0", "c1"])}
    return [
        f"{name}: {it}" for name, it in double_bookings(in_use, pods, plan, here, moved, registered()).items()
    ]


T = TypeVar("T")


class Looks(tuple[T, ...]):
    """Values that count how often somebody goes through them."""

    looks = 0

    def __iter__(self) -> Iterator[T]:
        self.looks += 1
        return super().__iter__()


REPLICAS = shared({"c0": 4, "c1": 4})
FIRST, SECOND = "c0::0", "c0::1"


@pytest.mark.parametrize(
    ("in_use", "expected"),
    [
        ([held("b", "c0"), external("c", "c0")], f"delete one of the pods: c0 is held by default/b as {GPU}"),
        ([held("b", "c0"), external("c", "c0", **HALF)], f"c0 is held by default/b as {GPU}"),
        (
            [external("a", "c0"), replace(external("c", "c0"), since=1.0)],
            "held by default/a, by its scheduler's word alone",
        ),
        (
            [replace(external("z", "c0"), since=1.0), replace(external("c", "c0"), since=2.0)],
            "c0 is held by default/z, by its scheduler's word alone",
        ),
        ([external("c", "c0"), external("a", "c0")], "held by default/a, by its scheduler's word alone"),
        ([held("b", "s0"), external("c", "c0")], f"c0 is held by default/b as {GPU}"),
        (
            [held("b", "c0"), held("d", "c1"), external("c", "c0", "c1")],
            f"c0 is held by default/b as {GPU}; c1 is held by default/d as {GPU}",
        ),
        (
            [held("b", "c0"), replace(held("b", "c0"), id="init"), external("c", "c0")],
            f"one of the pods: c0 is held by default/b as {GPU}",
        ),
        (
            [held("b", "c0"), external("b", "c0"), external("c", "c0")],
            f"one of the pods: c0 is held by default/b as {GPU}",
        ),
    ],
    ids=[
        "unclaimed",
        "a share of a whole one",
        "the later of two",
        "the later of two, whatever their names are",
        "two of one moment",
        "a slice of it",
        "two cards",
        "a pod with two allocations",
        "a pod by its scheduler's word and as it asked",
    ],
)
def test_a_card_that_another_pod_has_is_told_of_the_later_one(
    in_use: Sequence[Allocation], expected: str
) -> None:
    (said,) = told(*in_use)

    assert said.startswith("annotation-c: delete ")
    assert said.endswith(expected)


@pytest.mark.parametrize("claimed", [None, "first"])
def test_who_has_another_card_than_was_chosen_is_to_be_deleted_whatever_its_claim_is(
    claimed: str | None,
) -> None:
    it = held("b", "c0")
    claim = Claim(claimed, "default", claimed, "main", ("c0",)) if claimed else None
    # As the kubelet's checkpoint names it: without a name.
    it = replace(it, owner=Owner("b", "main"), claim=claim)
    named = held("b", "c1")

    (said,) = told(it, named, external("c", "c0"), moved=["b", "other"])

    held_by = f"c0 is held by default/b as {GPU}, for which others were chosen"
    assert said == f"annotation-c: delete default/b: {held_by}"


def test_all_that_are_to_be_deleted_stand_first() -> None:
    (said,) = told(
        *(held("b", "c0"), held("d", "c1"), external("c", "c0", "c1")),
        moved=["b", "d"],
    )

    assert said.startswith("annotation-c: delete default/b, default/d: c0 is held by ")


@pytest.mark.parametrize(
    "in_use",
    [
        [held("b", "c0"), external("c", "c1")],
        [held("gone", "c0"), external("c", "c0")],
        [replace(held("b", "c0"), owner=None), external("c", "c0")],
        [external("a", "c0", **HALF), external("c", "c0", **HALF)],
        [external("a", "c0", memory=str(4 * GIB)), external("c", "c0", core="100", ratio="50")],
        [held("b", "s0"), external("c", "c0", ratio="75")],
        [held("c", "c0"), external("c", "c0")],
        [external("c", "c0", core="150", ratio="100")],
        [external("c", "c0"), replace(external("c", "c0"), id="annotation-c2")],
        [external(name, "c0", core="33", memory=str(2 * GIB), ratio="34") for name in "abc"],
        [external(name, "c0", core=core, ratio=core) for name, core in HAIR.items()],
        [external("a", "c0", **HALF), external("c", "c0", core="50", ratio="50", memory="0")],
        [external("a", "c1", memory="1"), external("c", "c1", memory=str(1 << 50))],
        [held("b", "c1::0", on=["c1"], chosen=["c1"], memory="9"), external("c", "c1", core="1", ratio="9")],
    ],
    ids=[
        "another card",
        "is gone",
        "nobody's yet",
        "two halves",
        "half in bytes",
        "beside a slice",
        "its own",
        "more than a card, alone",
        "its own by two vendors' words",
        "three thirds",
        "parts that add up to a hair more than a card",
        "no bytes are no word",
        "bytes of unknown memory",
        "bytes of unknown memory, of an ID",
    ],
)
def test_a_card_with_room_or_of_nobody_is_no_news(in_use: Sequence[Allocation]) -> None:
    assert told(*in_use) == []


def test_a_pod_that_has_ended_uses_its_card_no_more_though_the_kubelet_lets_go_of_it_later() -> None:
    assert told(held("b", "c0"), external("c", "c0"), ended=["b"]) == []


OWN = Claim("b", "default", "b", "main", ("c0",), {"core": "1", "ratio": "1"}, dialect="acme")
THREE = [f"c0::{n}" for n in range(3)]


@pytest.mark.parametrize(
    ("its", "room"),
    [
        ([held("b", FIRST, on=["c0"], chosen=["c0"], **HALF)], True),
        ([held("b", FIRST, on=["c0"], chosen=["c0"], core="60", ratio="60")], False),
        ([held("b", FIRST, on=["c0"], chosen=["c0"], core="60", ratio="10")], False),
        ([held("b", FIRST, on=["c0"], chosen=["c0"], core="10", ratio="60")], False),
        ([held("b", FIRST, on=["c0"]), held("d", SECOND, on=["c0"])], True),
        ([held("b", *THREE, on=["c0"])], False),
        ([held("b", FIRST, on=["c0"], chosen=["c0"], memory="lots")], True),
        ([replace(held("b", FIRST, on=["c0"], chosen=["c0"], **HALF), id=name) for name in "xy"], True),
        (
            [
                replace(held("b", FIRST, on=["c0"], chosen=["c0"], core=core, ratio=ratio), id=core)
                for core, ratio in (("60", "10"), ("10", "10"))
            ],
            False,
        ),
        (
            [
                replace(held("b", FIRST, on=["c0"], chosen=["c0"], core="10", ratio=ratio), id=ratio)
                for ratio in ("60", "10")
            ],
            False,
        ),
        ([held("b", FIRST, SECOND, on=["c0"]), replace(held("b", *THREE[1:], on=["c0"]), id="x")], False),
        (
            [
                replace(held("b", FIRST, on=["c0"], chosen=["c0"], core="30"), id=it, resource=it)
                for it in (GPU, "other")
            ],
            False,
        ),
        ([held("b", *THREE, on=["c0"], chosen=["c0"], **HALF)], True),
        ([held("b", *THREE, on=["c0"], chosen=["c0"], core="51")], False),
        ([replace(held("b", FIRST, on=["c0"]), claim=OWN)], True),
        ([replace(held("b", *THREE, on=["c0"]), claim=OWN)], False),
        ([held("b", FIRST, SECOND, "c1::0", on=["c0", "c0", "c1"])], True),
        ([held("b", FIRST, "c1::0", SECOND, "c1::1", "c0::2", on=["c0", "c1"])], False),
        ([held("b", FIRST, "c1::0", SECOND, "c1::1", on=["c0", "c1"])], True),
    ],
    ids=[
        "half",
        "more",
        "of the cores alone too much",
        "of the memory alone too much",
        "two replicas of four",
        "three of four",
        "no number",
        "handed on by an init container",
        "of cores the most of what is handed on",
        "of memory the most of what is handed on",
        "three IDs in two allocations",
        "IDs of two resources",
        "half over three IDs",
        "more over three IDs",
        "one ID in a dialect of the vendor's own",
        "three IDs in a dialect of the vendor's own",
        "two of three IDs on it",
        "three of five IDs on it",
        "two of four IDs on it",
    ],
)
def test_of_shares_it_counts_whether_there_is_room(its: Sequence[Allocation], room: bool) -> None:
    said = told(*its, external("c", "c0", **HALF), resource=REPLICAS)

    assert (said == []) is room


def test_whom_pod_resources_alone_shows_is_the_pod_of_its_name() -> None:
    it = replace(
        held("b", "c0"), source=AllocationSource.POD_RESOURCES, owner=Owner("", "main", "default", "b")
    )

    assert len(told(it, external("c", "c0"))) == 1


def test_no_sentence_names_all_of_many() -> None:
    many = [replace(external(f"p{n}", "c0"), since=float(n)) for n in range(6)]

    said = told(*many)

    assert [one.count("default/") for one in said] == [1, 2, 3, 3, 3]
    assert said[-1].endswith("and 2 more")


def test_no_sentence_names_all_of_many_that_are_to_be_deleted() -> None:
    names = [f"p{n}" for n in range(5)]

    (said,) = told(*(held(it, "c0") for it in names), external("c", "c0"), moved=names)

    assert said.startswith("annotation-c: delete default/p0, default/p1, default/p2, and 2 more: c0 ")


def test_a_slice_of_unknown_memory_is_all_of_its_card() -> None:
    for unknown in ([status("c0"), SLICE], [PARENT, status("s0", parent="c0")]):
        here = node(*unknown)

        assert len(told(held("b", "s0"), external("c", "c0", core="1", ratio="1"), here=here)) == 1


def test_many_ids_are_counted_card_by_card_and_only_on_the_cards_in_question() -> None:
    """Where memory is counted in IDs, to look at each for itself took longer than others may wait."""
    devices, listed = Looks(HERE.devices), Looks(shared({"c0": 2000, "c1": 2000}).cards)
    resource = replace(REPLICAS, cards=listed)
    ids = [f"c{n % 2}::{n // 2}" for n in range(4000)]
    its = [held("b", *ids, on=["c0", "c1"]), external("c", "c0")]

    (said,) = told(*its, resource=resource, here=replace(HERE, devices=devices))

    assert "c0 is held by default/b" in said
    assert (devices.looks, listed.looks) == (1, 1)

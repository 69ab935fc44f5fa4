"""Cards that a scheduler gave to a pod that asks nobody here, though another pod has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent.core.claims import Candidate, Claim
from agent.core.model import Allocation, Owner, Resource, Source
from agent.core.overlaps import overlaps

from .values import GPU, allocation, node, shared, status, whole

GIB = 1 << 30
PARENT = replace(status("c0"), device=replace(status("c0").device, memory=8 * GIB))
SLICE = status("s0", parent="c0")
SLICE = replace(SLICE, device=replace(SLICE.device, memory=2 * GIB))
HERE = node(PARENT, status("c1", 1), SLICE)
HALF = {"core": "50", "ratio": "50"}


def external(name: str, *cards: str, **share: str) -> Allocation:
    """A pod that has them by its scheduler's word alone."""
    claim = Claim(name, "default", name, "", cards, share, dialect="koordinator")
    it = allocation(f"annotation-{name}", (), resource="koordinator.sh/gpu", devices=cards)
    return replace(it, source=Source.ANNOTATION, owner=Owner(name, "", "default", name), claim=claim)


def held(
    name: str, *ids: str, on: Sequence[str] = (), chosen: Sequence[str] = (), **share: str
) -> Allocation:
    """A pod that asked the device plugin for these IDs, with its scheduler's choice if there was one."""
    it = allocation(name, ids, owner=Owner(name, "main", "default", name), devices=tuple(on or ids))
    claim = Claim(name, "default", name, "main", tuple(chosen), share, dialect="koordinator")
    return replace(it, claim=claim if chosen else None)


def told(*in_use: Allocation, resource: Resource | None = None, ended: Sequence[str] = ()) -> list[str]:
    names = {it.owner.pod for it in in_use if it.owner} - {"gone"}
    pods = [Candidate(name, "default", name, ended=name in ended) for name in sorted(names)]
    plan = {GPU: resource or whole(["c0", "c1"])}
    return [f"{name}: {it}" for name, it in overlaps(in_use, pods, plan, HERE).items()]


SWAPPED = held("b", "c0", chosen=["c1"])
REPLICAS = shared({"c0": 4, "c1": 4})
FIRST, SECOND = "c0::0", "c0::1"


@pytest.mark.parametrize(
    ("in_use", "expected"),
    [
        (
            [SWAPPED, external("c", "c0")],
            f"c0 is held by default/b as {GPU}, for which c1 was chosen, and all use it: delete default/b",
        ),
        (
            [held("b", "c0"), external("c", "c0")],
            f"held by default/b as {GPU}, and all use it: delete one of",
        ),
        ([held("b", "c0"), external("c", "c0", **HALF)], "c0 is held by default/b"),
        (
            [external("a", "c0"), replace(external("c", "c0"), since=1.0)],
            "held by default/a, by its scheduler's word alone",
        ),
        ([held("b", "s0"), external("c", "c0")], "c0 is held by default/b"),
        (
            [held("b", "c0"), held("d", "c1"), external("c", "c0", "c1")],
            f"c0 is held by default/b as {GPU}, and all use it: delete one of them; c1 is held by default/d",
        ),
    ],
    ids=["swapped", "unclaimed", "a share of a whole one", "the later of two", "a slice of it", "two cards"],
)
def test_a_card_that_another_pod_has_is_told_of_the_later_one(
    in_use: Sequence[Allocation], expected: str
) -> None:
    (said,) = told(*in_use)

    assert said.startswith("annotation-c: ")
    assert expected in said


@pytest.mark.parametrize(
    "in_use",
    [
        [SWAPPED, external("c", "c1")],
        [held("gone", "c0"), external("c", "c0")],
        [replace(held("b", "c0"), owner=None), external("c", "c0")],
        [external("a", "c0", **HALF), external("c", "c0", **HALF)],
        [external("a", "c0", memory=str(4 * GIB)), external("c", "c0", core="100", ratio="50")],
        [held("b", "s0"), external("c", "c0", ratio="75")],
        [held("c", "c0"), external("c", "c0")],
    ],
    ids=[
        "another card",
        "is gone",
        "nobody's yet",
        "two halves",
        "half in bytes",
        "beside a slice",
        "its own",
    ],
)
def test_a_card_with_room_or_of_nobody_is_no_news(in_use: Sequence[Allocation]) -> None:
    assert told(*in_use) == []


def test_a_pod_that_has_ended_uses_its_card_no_more_though_the_kubelet_lets_go_of_it_later() -> None:
    assert told(held("b", "c0"), external("c", "c0"), ended=["b"]) == []


@pytest.mark.parametrize(
    ("its", "room"),
    [
        ([held("b", FIRST, on=["c0"], chosen=["c0"], **HALF)], True),
        ([held("b", FIRST, on=["c0"], chosen=["c0"], core="60", ratio="60")], False),
        ([held("b", FIRST, on=["c0"]), held("d", SECOND, on=["c0"])], True),
        ([held("b", *(f"c0::{n}" for n in range(3)), on=["c0"])], False),
        ([held("b", FIRST, on=["c0"], chosen=["c0"], memory="lots")], True),
        ([replace(held("b", FIRST, on=["c0"], chosen=["c0"], **HALF), id=name) for name in "xy"], True),
    ],
    ids=[
        "half",
        "more",
        "two replicas of four",
        "three of four",
        "no number",
        "handed on by an init container",
    ],
)
def test_of_shares_it_counts_whether_there_is_room(its: Sequence[Allocation], room: bool) -> None:
    said = told(*its, external("c", "c0", **HALF), resource=REPLICAS)

    assert (said == []) is room


def test_whom_pod_resources_alone_shows_is_the_pod_of_its_name() -> None:
    it = replace(held("b", "c0"), source=Source.POD_RESOURCES, owner=Owner("", "main", "default", "b"))

    assert len(told(it, external("c", "c0"))) == 1


def test_no_sentence_names_all_of_many() -> None:
    many = [replace(external(f"p{n}", "c0"), since=float(n)) for n in range(6)]

    said = told(*many)

    assert [one.count("default/") for one in said] == [1, 2, 3, 3, 3]
    assert "and 2 more, and all use it" in said[-1]

"""Which IDs the kubelet is asked to take, and which pods are known to ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from agent.core.attribution.pod_attribution import is_awaited, is_promised, suspected_pod
from agent.core.model import Allocation
from agent.scheduler_api import Candidate, Claim
from agent.vendor_api.agent import Placement
from core.promising import TOGETHER, counted, prefer, promises, share
from core.scenes import SHARE, UNCUT, WHOLE, bound, held

# Which IDs are preferred


@pytest.mark.parametrize(
    ("pods", "asked", "expected"),
    [
        pytest.param([bound("web", "c1")], (["c0", "c1"], [], 1), ["c1"], id="its card"),
        pytest.param(
            [bound("web", "c1", "c0", count=2)], (["c0", "c1"], [], 2), ["c1", "c0"], id="its cards"
        ),
        pytest.param(
            [bound("web", "c1"), bound("job")],
            (["c0", "c1"], [], 1),
            ["c1"],
            id="beside a pod without a promise",
        ),
        pytest.param(
            [bound("pair", "c0", "c1", count=2), bound("job")],
            (["c0", "c1"], [], 1),
            ["c0"],
            id="none is left but promised ones",
        ),
        pytest.param(
            [bound("other", "c0", created=9), bound("web", "c1", created=1)],
            (["c0", "c1"], [], 1),
            ["c1"],
            id="bound first",
        ),
        pytest.param(
            [bound("gone", "c1", over=True), bound("web", "c0")], (["c0", "c1"], [], 1), ["c0"], id="over"
        ),
        pytest.param(
            [bound("taken", "c1", created=1), bound("web", "c0", created=2)],
            (["c0"], [], 1),
            ["c0"],
            id="the first one's is not to be had",
        ),
        pytest.param([bound("web", "c1")], (["c0"], [], 1), ["c0"], id="its card is not to be had"),
        pytest.param(
            [bound("web", "c1", "c0", count=2)],
            (["c0", "c1"], ["c0"], 2),
            ["c0", "c1"],
            id="it has one already",
        ),
        pytest.param(
            [bound("runs", "c0", pending=False), bound("job")],
            (["c0", "c1"], [], 1),
            ["c0"],
            id="one that runs waits for no card",
        ),
        pytest.param([], (["c0", "c1"], [], 1), ["c0"], id="no pod waits"),
    ],
)
def test_the_kubelet_is_steered_to_the_cards_of_the_pod_that_asks_next(
    pods: Sequence[Candidate], asked: tuple[list[str], list[str], int], expected: list[str]
) -> None:
    assert prefer(promises(*pods), WHOLE, *asked) == expected


@pytest.mark.parametrize("more", [{"placement": "local"}, {"left_out": True}], ids=str)
def test_the_kubelet_is_not_steered_where_no_scheduler_is_heeded(more: Mapping[str, Any]) -> None:
    its = promises(bound("web", "c1"), **more)

    assert prefer(its, WHOLE, ["c0", "c1"], [], 1) == ["c0"]
    assert prefer(its, WHOLE, ["c0", "c1"], ["c1"], 1) == ["c1"]
    assert prefer(its, WHOLE, ["c0"], [], 2) == []


def test_a_pod_that_a_lock_of_the_node_names_asks_next() -> None:
    pods = bound("early", "c0", created=1), bound("late", "c1", created=2)

    its = promises(*pods, locked=frozenset({("default", "late")}))

    assert prefer(its, WHOLE, ["c0", "c1"], [], 1) == ["c1"]


def test_a_pod_that_was_refused_asks_next_no_more() -> None:
    pods = bound("early", "c0", created=1), bound("late", "c1", created=2)

    assert prefer(promises(*pods, refused={"uid-early"}), WHOLE, ["c0", "c1"], [], 1) == ["c1"]


def test_a_card_that_went_to_another_resource_a_moment_ago_is_preferred_last() -> None:
    """The kubelet asks before it has heard of it."""
    taken = held("web", "c4::0", resource=SHARE)
    its = promises(in_use=[taken], dynamic=True, placement="local")

    assert prefer(its, UNCUT, ["c2", "c4"], [], 1) == ["c2"]
    assert prefer(its, UNCUT, ["c4", "c5"], [], 1) == ["c5"]
    assert prefer(its, UNCUT, ["c4", "c5"], ["c4"], 1) == ["c4"]
    assert prefer(its, UNCUT, ["c4"], [], 1) == ["c4"]
    assert {*prefer(its, UNCUT, ["c4", "c5"], [], 2)} == {"c4", "c5"}
    assert prefer(its, SHARE, ["c4::1", "c5::0"], [], 1)


def test_an_id_that_a_pod_has_which_is_there_is_preferred_last() -> None:
    """The kubelet may take it for free (manager.go:577), and the pod that gets it is refused."""
    web, runs = share("web", "c4"), share("runs", pending=False)
    has = held("runs", "c4::0", resource=SHARE)
    its = promises(web, runs, in_use=[has])
    claim = Claim("uid-runs", "default", "runs", "main", ("c4",))
    answered = promises(web, runs, in_use=[replace(has, owner=None, claim=claim)])
    ended = promises(web, replace(runs, over=True, ended=True), in_use=[has])

    assert prefer(its, SHARE, ["c4::0", "c4::1", "c5::0"], [], 1) == ["c4::1"]
    assert prefer(answered, SHARE, ["c4::0", "c4::1", "c5::0"], [], 1) == ["c4::1"]
    assert prefer(its, SHARE, ["c4::0", "c5::0"], [], 1) == ["c5::0"]
    assert prefer(its, SHARE, ["c4::0", "c4::1"], ["c4::0"], 1) == ["c4::0"]
    assert {*prefer(its, SHARE, ["c4::0", "c4::1"], [], 2)} == {"c4::0", "c4::1"}
    assert prefer(ended, SHARE, ["c4::0", "c4::1", "c5::0"], [], 1) == ["c4::0"]


def test_a_whole_card_that_a_pod_has_which_is_there_is_preferred_last_unless_it_was_chosen() -> None:
    web, runs = bound("web", "c0"), bound("runs", pending=False)
    its = promises(web, runs, in_use=[held("runs", "c0")])
    local = promises(web, runs, in_use=[held("runs", "c0")], placement="local")

    assert prefer(its, WHOLE, ["c0", "c1"], [], 1) == ["c0"]
    assert prefer(local, WHOLE, ["c0", "c1"], [], 1) == ["c1"]


def test_what_a_pod_has_which_is_there_takes_room_though_the_kubelet_gives_it_out() -> None:
    runs = share("runs", pending=False)
    its = promises(runs, in_use=[held("runs", "c4::0", resource=SHARE, on=["c5"])], placement="local")
    its = structs.replace(its, scene=counted(its.scene, TOGETHER))

    assert prefer(its, SHARE, ["c4::0", "c4::1", "c5::0", "c5::1"], [], 2) == ["c4::0", "c4::1"]
    assert prefer(its, SHARE, ["c4::0", "c5::0", "c5::1"], [], 1) == ["c5::0"]


@pytest.mark.parametrize(
    ("in_use", "available", "expected"),
    [
        pytest.param([], "c4::0 c4::1 c5::0 c5::1", ["c4::0", "c4::1"], id="nothing is in use"),
        pytest.param(
            [held("a", "c5::0", resource=SHARE, on=["c4"])], "c4::0 c4::1 c5::1", [], id="by the ledger"
        ),
        pytest.param(
            [held("a", "c4::0", resource=SHARE)],
            "c4::0 c4::1 c5::0 c5::1",
            ["c4::0", "c4::1"],
            id="IDs that are given out again take none",
        ),
    ],
)
@pytest.mark.parametrize("placement", ["auto", "local"])
def test_what_lies_on_one_card_is_preferred_where_that_card_has_room(
    in_use: list[Allocation], available: str, expected: list[str], placement: Placement
) -> None:
    its = promises(in_use=in_use, placement=placement)
    its = structs.replace(its, scene=counted(its.scene, TOGETHER))

    assert prefer(its, SHARE, available.split(), [], 2) == expected


# Which pods are known to ask


@pytest.mark.parametrize(
    ("pods", "asked", "refused", "asks", "promised"),
    [
        pytest.param((), 1, (), False, False, id="no pod"),
        pytest.param((bound("job"),), 1, (), True, False, id="a pod without claim"),
        pytest.param((bound("web", "c1"),), 1, (), True, True, id="a pod with a claim"),
        pytest.param((bound("web", "c1"),), 2, (), False, False, id="another count"),
        pytest.param((bound("web", "c1", pending=False),), 1, (), False, False, id="one that runs"),
        pytest.param((bound("web", "c1"),), 1, ("uid-web",), False, False, id="one that was refused"),
        pytest.param(
            (bound("web", "c1"), bound("job", "c0")), 1, ("uid-web",), True, True, id="beside a refused one"
        ),
    ],
)
def test_a_pod_is_known_to_ask_that_waits_for_as_many_and_was_not_refused(
    pods: tuple[Candidate, ...], asked: int, refused: tuple[str, ...], asks: bool, promised: bool
) -> None:
    its = promises(*pods, refused=refused)

    assert (is_awaited(its, WHOLE, asked), is_promised(its, WHOLE, asked)) == (asks, promised)


def test_a_pod_that_has_its_allocation_asks_no_more() -> None:
    its = promises(bound("web", "c1"), in_use=[held("web", "c1")])

    assert not is_awaited(its, WHOLE, 1)
    assert not is_promised(its, WHOLE, 1)


@pytest.mark.parametrize(
    ("resource", "more", "uid"),
    [
        pytest.param(WHOLE, {}, "uid-web", id="by its card"),
        pytest.param("acme.com/none", {}, "", id="resource that is not served"),
        pytest.param(WHOLE, {"left_out": True}, "", id="vendor that is left out"),
    ],
)
def test_the_pod_whose_card_was_asked_for_is_the_one_that_is_refused(
    resource: str, more: Mapping[str, Any], uid: str
) -> None:
    its = promises(bound("other", "c0", created=1), bound("web", "c1", created=2), **more)

    assert suspected_pod(its, resource, ["c1", "c1", "unknown"]) in (uid, "")
    assert suspected_pod(its, resource, ["c1", "c1"]) == uid


def test_who_asks_and_finds_no_id_of_its_card_is_refused_and_not_the_pod_whose_card_it_is_given() -> None:
    web, job = share("web", "c4", appeared=1), share("job", "c5", appeared=2)
    full = [held("a", "c4::0", resource=SHARE), held("b", "c4::1", resource=SHARE)]

    assert suspected_pod(promises(web, job, in_use=full), SHARE, ["c5::0"]) == "uid-web"
    assert suspected_pod(promises(web, job, in_use=full, refused={"uid-web"}), SHARE, ["c5::0"]) == "uid-job"

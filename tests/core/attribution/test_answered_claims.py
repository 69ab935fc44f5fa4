"""Whose an allocation was by the promises of now, and what its container was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.core.allocation.holder_texts import holder_name
from agent.core.allocation.vendor_requests import devices_of, request_of
from agent.core.attribution.answered_claims import (
    astray_allocations,
    claims_after_swaps,
    kept_parameters,
    shown_claim,
)
from agent.core.attribution.dialects_of_resource import cards_by_minor, dialects
from agent.core.model import Allocation, AllocationSource, Owner
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, Claim, Dialect
from agent.scheduler_api.scheduler import common_dialects
from agent.vendor_api.agent import ContainerEdits, Edits, Placement, Request
from core.promising import promises, share
from core.scenes import LIMITED, PLAIN, SHARE, SLICE, UNCUT, WHOLE, bound, edits, held, limits, scene, shown
from core.values import node, status

# Whose an allocation was


def test_a_promise_of_another_card_is_no_claim_on_this_one_where_no_scheduler_is_heeded() -> None:
    claim = Claim("uid-early", "default", "early", "main", ("c0",))
    its = promises(bound("late", "c1"), in_use=[held("a", "c0", owner=None, claim=claim)], placement="local")

    assert claims_after_swaps(its, [CheckpointAnswer("a", "uid-late", "main", WHOLE, ("c0",))]) == {"a": None}


def test_a_promise_of_another_card_is_borne_as_it_was_made_where_the_answer_was_another() -> None:
    """What it takes of the card that it has is counted, and its pod is told of the other."""
    claim = Claim("uid-early", "default", "early", "main", ("c0",), {"priority": "low"})
    its = promises(bound("late", "c1"), in_use=[held("a", "c0", owner=None, claim=claim)])

    after = claims_after_swaps(its, [CheckpointAnswer("a", "uid-late", "main", WHOLE, ("c0",))])

    assert after == {"a": Claim("uid-late", "default", "late", "main", ("c1",))}


def test_a_promise_of_a_like_card_is_a_claim_on_this_one() -> None:
    claim = Claim("uid-early", "default", "early", "main", ("c0",))
    its = promises(bound("late", "c1"), in_use=[held("a", "c0", owner=None, claim=claim)])

    after = claims_after_swaps(its, [CheckpointAnswer("a", "uid-late", "main", WHOLE, ("c0",))])

    assert after == {"a": Claim("uid-late", "default", "late", "main", ("c0",))}


@pytest.mark.parametrize(
    ("pod", "known", "more"),
    [
        pytest.param(bound("web", "c1"), shown("web", "c0", WHOLE), {}, id="a whole card"),
        pytest.param(share("web", "c5"), shown("web", "c4::0"), {"placement": "local"}, id="not heeded"),
        pytest.param(share("web", "c0"), shown("web", "c4::0"), {}, id="a card of another resource"),
        pytest.param(
            share("web", "c5"),
            replace(shown("web", "c4::0"), source=AllocationSource.KUBELET),
            {},
            id="known better",
        ),
        pytest.param(share("web", "c5", over=True), shown("web", "c4::0"), {}, id="over"),
        pytest.param(share("job", "c5"), shown("web", "c4::0"), {}, id="another pod's"),
        pytest.param(share("web", "c5"), replace(shown("web", "c4::0"), owner=None), {}, id="no owner"),
        pytest.param(share("web", "c5"), shown("web", "c4::0"), {"left_out": True}, id="no vendor"),
    ],
)
def test_an_allocation_is_not_where_its_pod_names_a_card_that_it_cannot_have(
    pod: Candidate, known: Allocation, more: Mapping[str, Any]
) -> None:
    assert shown_claim(promises(pod, in_use=[known], **more), known) is None


def test_an_allocation_is_not_on_a_card_that_is_full() -> None:
    known = shown("web", "c4::0")
    others = [held("a", "c5::0", resource=SHARE), held("b", "c5::1", resource=SHARE)]

    assert shown_claim(promises(share("web", "c5"), in_use=[*others, known]), known) is None
    assert shown_claim(promises(share("web", "c5"), in_use=[others[0], known]), known) is not None


def test_an_allocation_is_on_the_card_that_its_pod_names_also_where_that_is_unhealthy_by_now() -> None:
    known = shown("web", "c4::0")

    claim = shown_claim(promises(share("web", "c6"), in_use=[known]), known)

    assert claim is not None
    assert claim.devices == ("c6",)


def test_an_allocation_that_has_a_claim_keeps_it() -> None:
    known = replace(shown("web", "c4::0"), claim=Claim("uid-web", "default", "web", "main", ("c4",)))

    assert shown_claim(promises(share("web", "c5"), in_use=[known]), known) is None


def test_of_two_pods_of_one_name_the_newest_is_shown() -> None:
    old, new = share("web", "c4", created=1), replace(share("web", "c5", created=2), uid="uid-new")
    known = shown("web", "c5::0")

    claim = shown_claim(promises(old, new, in_use=[known]), known)

    assert claim is not None
    assert (claim.uid, claim.devices) == ("uid-new", ("c5",))


# What a container was given, where its claim says otherwise


LOW = Claim("uid-low", "default", "low", "main", ("c4",), LIMITED["low"])
HIGH = Claim("uid-high", "default", "high", "main", ("c4",), LIMITED["high"])


def broken(devices: object, request: Request) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("container_edits", "before", "after", "handed"),
    [
        pytest.param(limits, LOW, HIGH, LIMITED["low"], id="other limits"),
        pytest.param(limits, None, HIGH, {}, id="no limits"),
        pytest.param(limits, LOW, None, LIMITED["low"], id="limits without claim"),
        pytest.param(limits, LOW, replace(LOW, pod="other"), None, id="the same limits"),
        pytest.param(edits, LOW, HIGH, None, id="an answer without limits"),
        pytest.param(broken, LOW, HIGH, LIMITED["low"], id="a vendor that cannot say"),
    ],
)
def test_what_was_handed_out_is_known_where_the_claim_of_now_has_another_answer(
    container_edits: Edits, before: Claim | None, after: Claim | None, handed: Mapping[str, str] | None
) -> None:
    known = held("a", "c4::0", resource=SHARE, claim=before)

    assert kept_parameters(promises(in_use=[known], container_edits=container_edits), known, after) == handed


def test_what_was_handed_out_before_counts_and_not_the_claim_since() -> None:
    known = replace(held("a", "c4::0", resource=SHARE, claim=HIGH), handed=LIMITED["low"])
    its = promises(in_use=[known], container_edits=limits)

    assert kept_parameters(its, known, HIGH) == LIMITED["low"]
    assert kept_parameters(its, known, LOW) is None


def test_without_its_vendor_an_answer_differs_where_the_parameters_do() -> None:
    known = held("a", "c4::0", resource=SHARE, claim=LOW)
    its = promises(in_use=[known], left_out=True)

    assert kept_parameters(its, known, HIGH) == LIMITED["low"]
    assert kept_parameters(its, known, LOW) is None


# Words and views of one allocation


OWNED = held("web", "c0")


@pytest.mark.parametrize(
    ("known", "name"),
    [
        pytest.param(OWNED, "default/web", id="its owner"),
        pytest.param(replace(OWNED, owner=None, claim=LOW), "default/low", id="its claim"),
        pytest.param(
            replace(OWNED, owner=Owner("u", "main"), claim=LOW), "default/low", id="a nameless owner"
        ),
        pytest.param(replace(OWNED, owner=None), "allocation web", id="neither"),
        pytest.param(replace(OWNED, resource=SLICE), f"default/web as {SLICE}", id="another resource"),
        pytest.param(
            replace(OWNED, resource=SLICE, source=AllocationSource.ANNOTATION),
            "default/web, by its scheduler's word alone",
            id="a scheduler's word",
        ),
    ],
)
def test_a_holder_is_named_by_its_pod_and_by_what_else_it_has(known: Allocation, name: str) -> None:
    assert holder_name(known, WHOLE) == name


@pytest.mark.parametrize(
    ("known", "parameters"),
    [
        pytest.param(replace(OWNED, claim=LOW, handed=LIMITED["high"]), LIMITED["low"], id="its claim"),
        pytest.param(replace(OWNED, handed=LIMITED["high"]), LIMITED["high"], id="what it was answered with"),
        pytest.param(OWNED, {}, id="neither"),
    ],
)
def test_a_request_has_the_parameters_of_the_claim_or_else_of_the_answer(
    known: Allocation, parameters: Mapping[str, str]
) -> None:
    assert request_of(known) == Request("web", WHOLE, ("c0",), parameters)


COMMON = common_dialects(registered())


@pytest.mark.parametrize(("placement", "common"), [("local", ()), ("auto", COMMON), ("claim", COMMON)])
def test_a_vendors_dialect_is_heard_before_those_of_all_schedulers(
    placement: Placement, common: tuple[Dialect, ...]
) -> None:
    known = scene(placement=placement, dialects=(PLAIN,))

    assert tuple(dialects(known.schedulers, known.vendors["acme"], known.plan[WHOLE])) == (PLAIN, *common)


def test_a_slice_has_no_minor_of_its_own() -> None:
    snapshot = node(status("card", minor=3), status("slice", minor=3, parent="card"))

    assert cards_by_minor(snapshot, "acme") == {"card": 3, "slice": None}


def test_devices_that_are_not_there_are_left_out() -> None:
    assert [it.uuid for it in devices_of(scene(), ["c1", "gone", "c0"])] == ["c1", "c0"]


def test_a_share_is_not_brought_to_its_card_where_that_has_gone_to_another_resource() -> None:
    """Of which the plan has not heard yet."""
    claim = Claim("uid-web", "default", "web", "main", ("c4",))
    astray, whole = held("web", "c5::0", resource=SHARE, claim=claim), held("job", "c4", resource=UNCUT)
    by_name: dict[str, Any] = {
        "dynamic": True,
        "prepares": True,
        "container_edits": lambda *_: ContainerEdits(cdi_devices=("acme.com/slice=it",)),
    }

    free = promises(in_use=[astray], **by_name)
    taken = promises(in_use=[astray, whole], **by_name)

    assert astray_allocations(free, SHARE, {"web"}) == [(astray, ("c4",))]
    assert astray_allocations(taken, SHARE, {"web"}) == []

"""Claims follow what the kubelet did, and return to pods of which PodResources alone tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from core.scenes import (
    CHOSEN,
    HIGH,
    LIMITED,
    LOW,
    PLAIN,
    SHARE,
    SLICE,
    WAITING,
    WHOLE,
    bound,
    granted,
    held,
    limited,
    limits,
    scene,
    shown,
)

from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.attribution.scheduler_promises import Promises
from agent.core.model import Allocation
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.allocation.claim_swaps import MAX_SHOWN_SWAPS, ClaimSwaps
from agent.scheduler_api import Claim, Dialect


@dataclass
class Claims:
    """A ledger, the node as of now, and the claims that change hands between them."""

    scene: Scene
    ledger: Ledger

    def __post_init__(self) -> None:
        self.swaps = ClaimSwaps(self.ledger)

    def swap(self, granted: Sequence[CheckpointAnswer]) -> Sequence[str]:
        return self.swaps.swap(Promises(self.scene, self.ledger.in_use()), granted)

    def recognise(self) -> Sequence[str]:
        return self.swaps.recognise(Promises(self.scene, self.ledger.in_use()))

    def borne(self) -> list[Claim | None]:
        return [it.claim for it in self.ledger.all()]


def claims(known: Scene, *allocations: Allocation) -> Claims:
    return Claims(known, Ledger(allocations))


def answered(
    name: str, device_id: str, claim: Claim | None, resource: str = SLICE, **more: Any
) -> Allocation:
    """An allocation that was answered with this claim, and whose owner is not known yet."""
    return held(name, device_id, resource=resource, owner=None, claim=claim, **more)


def swapped() -> tuple[Claims, Sequence[CheckpointAnswer]]:
    """Two equal pods were answered in one order, and the kubelet gave them the answers in the other."""
    one, other = answered("a", "c2::0", LOW), answered("b", "c2::1", HIGH)
    its = claims(scene(*WAITING, dialects=(PLAIN,)), one, other)
    return its, [granted(one, "high"), granted(other, "low")]


def test_claims_follow_what_the_kubelet_did() -> None:
    its, grants = swapped()

    assert set(its.swap(grants)) == {"a", "b"}
    assert its.borne() == [HIGH, LOW]
    assert its.swap(grants) == ()


def test_the_last_swaps_are_shown_with_what_was_before_and_after() -> None:
    its, grants = swapped()

    its.swap(grants)

    last = sorted(its.swaps.last, key=lambda it: it.allocation)
    assert [(it.allocation, it.resource, it.before, it.after) for it in last] == [
        ("a", SLICE, LOW, HIGH),
        ("b", SLICE, HIGH, LOW),
    ]
    assert sorted(it.number for it in last) == [1, 2]


def test_a_number_of_the_last_swaps_is_shown_and_their_numbers_go_on() -> None:
    its, grants = swapped()
    back = [replace(grants[0], uid="uid-low"), replace(grants[1], uid="uid-high")]

    for _ in range(MAX_SHOWN_SWAPS):
        its.swap(grants)
        its.swap(back)

    assert [it.number for it in its.swaps.last] == [*range(3 * MAX_SHOWN_SWAPS + 1, 4 * MAX_SHOWN_SWAPS + 1)]


def test_a_pod_that_was_not_attributed_is_given_its_promise_once_the_kubelet_names_it() -> None:
    unattributed = answered("a", "c2::0", None)
    its = claims(scene(*WAITING, dialects=(PLAIN,)), unattributed)

    its.swap([granted(unattributed, "high"), CheckpointAnswer("other", "uid-low", "main")])

    assert its.borne() == [HIGH]
    assert its.swaps.last == ()


def test_a_pod_that_has_an_equal_pods_card_is_known_by_its_claim_on_the_card_that_it_has() -> None:
    """The kubelet took them in another order than they were bound; who waits is to have what is left."""
    first = answered("a", "c0", Claim("uid-early", "default", "early", "main", ("c0",)), WHOLE)
    pods = bound("early", "c0", created=1), bound("late", "c1", created=2)
    its = claims(scene(*pods, dialects=(CHOSEN,), placement="auto"), first)
    grants = [CheckpointAnswer("a", "uid-late", "main", WHOLE, ("c0",))]

    assert its.swap(grants) == ("a",)

    [known] = its.ledger.all()
    assert known.claim is not None
    assert (known.claim.pod, known.claim.devices, known.handed) == ("late", ("c0",), None)
    assert its.swap(grants) == ()


# Containers whose limits cannot be changed


def limiting(*names: str) -> Scene:
    pods = (bound(it, resource=SHARE, created=created) for created, it in enumerate(names))
    return scene(*pods, container_edits=limits, dialects=(Dialect("plain", limited),), placement="auto")


def claim(name: str) -> Claim:
    return Claim(f"uid-{name}", "default", name, "main", ("c4",), LIMITED[name])


def test_a_container_that_has_another_pods_limits_is_known_by_them_until_its_claim_is_back() -> None:
    one, other = (answered(it, f"c4::{n}", claim(it), SHARE) for n, it in enumerate(("low", "high")))
    its = claims(limiting("low", "high"), one, other)

    its.swap([granted(one, "high"), granted(other, "low")])

    assert its.borne() == [claim("high"), claim("low")]
    assert [it.handed for it in its.ledger.all()] == [LIMITED["low"], LIMITED["high"]]
    its.swap([granted(one, "low"), granted(other, "high")])
    assert [it.handed for it in its.ledger.all()] == [None, None]


def test_a_container_that_was_served_before_its_promise_was_heard_has_no_limits() -> None:
    early = answered("a", "c4::0", None, SHARE)
    its = claims(limiting("low"), early)

    its.swap([granted(early, "low")])

    [known] = its.ledger.all()
    assert (known.claim and known.claim.parameters, known.handed) == (LIMITED["low"], {})


# Pods of which PodResources alone tells


def test_a_pod_that_pod_resources_alone_shows_has_the_card_that_its_pod_names() -> None:
    pods = bound("web", "c5", resource=SHARE), bound("job", "c4", resource=SHARE)
    its = claims(
        scene(*pods, dialects=(CHOSEN,), placement="auto"),
        shown("web", "c4::0"),
        shown("job", "c4::1"),
        shown("unknown", "c6::0"),
    )

    assert set(its.recognise()) == {"shown-web", "shown-job"}

    known = {it.id: (it.diverged, it.claim and it.claim.uid) for it in its.ledger.all()}
    assert known == {
        "shown-web": (("c5",), "uid-web"),
        "shown-job": ((), "uid-job"),
        "shown-unknown": ((), None),
    }
    assert its.recognise() == ()


def test_each_pod_is_recognised_beside_those_that_were_before_it() -> None:
    """Two pods name the one place that is left on a card."""
    pods = bound("web", "c5", resource=SHARE), bound("job", "c5", resource=SHARE)
    its = claims(
        scene(*pods, dialects=(CHOSEN,), placement="auto"),
        held("other", "c5::0", resource=SHARE),
        shown("web", "c4::0"),
        shown("job", "c4::1"),
    )

    assert its.recognise() == ("shown-web",)


@pytest.mark.parametrize("more", [{"placement": "local"}, {"dialects": ()}])
def test_nothing_is_recognised_where_no_scheduler_is_heeded(more: Mapping[str, Any]) -> None:
    known = scene(bound("web", "c5", resource=SHARE), **{"dialects": (CHOSEN,), "placement": "auto", **more})

    assert claims(known, shown("web", "c4::0")).recognise() == ()

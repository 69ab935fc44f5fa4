"""Who holds what is read from the kubelet, and nothing is released on its word before it can know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
from core.values import node, status

from agent.confirm import Confirmer
from agent.core.allocator import ALLOCATION
from agent.core.ledger import Ledger
from agent.core.model import Allocation, AllocationState, Owner, Plan
from agent.core.plan import Offer, plan
from agent.core.reconcile import Pods
from agent.core.vendor import ContainerEdits, ResourceRule, Sharing
from agent.kubelet.checkpoint import Entry, KubeletCheckpoint
from agent.kubelet.errors import KubeletError

XPU = "example.com/xpu"


@dataclass
class Kubelet:
    """What the kubelet would say."""

    granted: Sequence[str] = ()
    pods: Pods = field(default_factory=dict)
    broken: str = ""

    def read(self, prove: bool) -> KubeletCheckpoint:
        if self.broken:
            raise KubeletError(self.broken)
        edits = (ContainerEdits(annotations={ALLOCATION: it}) for it in self.granted)
        return KubeletCheckpoint(tuple(Entry("uid", "main", XPU, ("a",), it) for it in edits))

    async def in_use(self) -> Pods:
        return self.pods


def confirmer(ledger: Ledger, kubelet: Kubelet, *, settled: bool = True) -> Confirmer:
    return Confirmer(ledger, kubelet.read, kubelet.in_use, lambda: 1000.0, lambda: settled, grace=60.0)


def held(owner: Owner | None = None) -> Ledger:
    return Ledger(
        [
            Allocation(
                "a1", XPU, "acme", ("a",), ("a",), AllocationState.DONE, 1.0, owner=owner, seen_alive=True
            )
        ]
    )


def state(ledger: Ledger) -> AllocationState:
    return ledger.all()[0].state


async def test_the_owner_is_the_one_whose_answer_the_kubelet_kept() -> None:
    ledger = held()
    alive = {("default", "p"): {"main": {XPU: frozenset({"a"})}}}

    await confirmer(ledger, Kubelet(["a1"], alive)).once()

    assert ledger.all()[0].owner == Owner("uid", "main", "default", "p")


async def test_a_pod_that_a_settled_kubelet_does_not_know_is_gone() -> None:
    ledger = held(Owner("uid", "main", "default", "p"))

    await confirmer(ledger, Kubelet()).once()

    assert state(ledger) is AllocationState.RELEASED


async def test_a_kubelet_that_has_just_begun_releases_nothing() -> None:
    ledger = held(Owner("uid", "main", "default", "p"))

    await confirmer(ledger, Kubelet(), settled=False).once()

    assert state(ledger) is AllocationState.DONE


async def test_a_source_that_can_not_be_read_releases_nothing_and_is_said_once() -> None:
    ledger = held(Owner("uid", "main", "default", "p"))
    it = confirmer(ledger, Kubelet(broken="torn"))

    with structlog.testing.capture_logs() as told:
        await it.once()
        await it.once()

    assert state(ledger) is AllocationState.DONE
    assert [entry["error"] for entry in told] == ["torn"]
    assert it.actions["unreadable"] == 2


# Pods that another plugin served


BEFORE_US = Entry("uid-1", "main", XPU, ("a::1",), ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": "a"}))
OF_OTHERS = Entry("uid-2", "main", "amd.com/gpu", ("0",))
PLAN = plan([Offer("acme", (ResourceRule(XPU, sharing=Sharing("replicas", 4)),))], node(status("a")), {}, {})


def taking_over(ledger: Ledger, entries: Sequence[Entry], plans: Sequence[Plan], pods: Pods) -> Confirmer:
    """A confirmer of an agent without a checkpoint; the plan is another one at each look."""
    now = iter(plans)
    checkpoint = KubeletCheckpoint(tuple(entries))

    async def in_use() -> Pods:
        return pods

    return Confirmer(
        ledger, lambda _: checkpoint, in_use, lambda: 1000.0, lambda: True, 0.0, lambda: next(now)
    )


async def test_a_pod_that_another_plugin_served_is_taken_over_with_its_owner() -> None:
    ledger = Ledger()
    pods: Pods = {("default", "p"): {"main": {XPU: frozenset({"a::1"})}}}

    await taking_over(ledger, [BEFORE_US], [PLAN], pods).once()

    (it,) = ledger.all()
    assert (it.ids, it.devices, it.source) == (("a::1",), ("a",), "kubelet")
    assert it.owner == Owner("uid-1", "main", "default", "p")


async def test_a_pod_that_another_plugin_served_is_released_when_it_is_gone() -> None:
    ledger = Ledger()
    pods: dict[tuple[str, str], dict[str, dict[str, frozenset[str]]]] = {
        ("default", "p"): {"main": {XPU: frozenset({"a::1"})}}
    }
    it = taking_over(ledger, [BEFORE_US], [PLAN], pods)
    await it.once()

    pods.clear()
    await it.once()

    assert state(ledger) is AllocationState.RELEASED


async def test_what_another_plugin_serves_under_a_name_of_its_own_is_not_ours() -> None:
    ledger = Ledger()
    it = taking_over(ledger, [OF_OTHERS], [PLAN], {})

    await it.once()
    await it.once()  # there is no second plan: it has stopped to look for them

    assert ledger.all() == ()


async def test_taking_over_waits_until_the_devices_are_known() -> None:
    ledger = Ledger()
    it = taking_over(ledger, [BEFORE_US, OF_OTHERS], [{}, PLAN], {})

    await it.once()
    assert ledger.all() == ()
    await it.once()

    assert [it.ids for it in ledger.all()] == [("a::1",)]

"""The loop that keeps the ledger true: what it reads before it acts, in which order, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog
from core.values import allocation, node, status
from support.waiting import eventually

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import FORGOTTEN, Ledger
from agent.core.allocation.scene import Scene
from agent.core.cell import Cell
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.devices.topology import Topology
from agent.core.errors import VendorError
from agent.core.model import Allocation, AllocationSource, AllocationState, NodeSnapshot, Owner, Plan
from agent.core.reconciling.reconcile_changes import (
    AskKubelet,
    Change,
    Confirm,
    RecoveredAllocation,
    Release,
    Remove,
)
from agent.core.reconciling.reconcile_evidence import Pods
from agent.core.reconciling.reconcile_rules import TAKEN_WITHIN, reconcile
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.reconciling.evidence_sources import EvidenceSources
from agent.daemon.reconciling.ledger_updates import LedgerUpdates
from agent.daemon.reconciling.reconcile_loop import Reconciler, ReconcileTiming, jittered
from agent.daemon.reconciling.recovery import Recovery
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint
from agent.kubelet.kubelet_errors import KubeletError
from agent.scheduler_api import Candidate, Claim, Dialect, PodContainer
from agent.vendor_api.agent import ContainerEdits, Partition, Request, ResourceRule, Sharing, Slices, Vendor

XPU = "example.com/xpu"
GRACE, DOUBT_AGAIN = 60.0, 300.0
WEB = Owner("uid-web", "main", "default", "web")
PLAN = plan([Offer("acme", (ResourceRule(XPU, sharing=Sharing("replicas", 4)),))], node(status("a")))
ALIVE: Pods = {("default", "web"): {"main": {XPU: frozenset({"a::1"})}}}


def vendor(*, prepares: bool) -> Vendor:
    return Vendor(
        "acme", "", XPU, lambda devices, request: ContainerEdits(), makes=Slices() if prepares else None
    )


def entry(
    name: str, uid: str = "uid-web", ids: Sequence[str] = ("a::1",), resource: str = XPU
) -> CheckpointEntry:
    """An answer of ours as the kubelet keeps it; "" is another plugin's."""
    edits = ContainerEdits(annotations={ALLOCATION: name} if name else {"other/plugin": "it"})
    return CheckpointEntry(uid, "main", resource, tuple(ids), edits)


def held(name: str = "a1", *, since: float = 1.0, owner: Owner | None = WEB, **fields: Any) -> Allocation:
    it = allocation(name, ["a::1"], since=since, resource=XPU, owner=owner, life="k1")
    return replace(it, **fields)


@dataclass
class Node:
    """A reconciler between sources that say what they are told to and hands that write down what they do."""

    allocations: Sequence[Allocation] = ()
    entries: Sequence[CheckpointEntry] | None = ()
    pods: Pods | None = field(default_factory=dict)
    slices: list[Partition] = field(default_factory=list)
    prepares: bool = False
    ledger_is_short: bool = False
    now: float = 1000.0
    life: str = "k1"
    settled: bool = True
    #: Whether the checksum of the kubelet's file is right, and what is found once it is proven.
    proves: bool = True
    proven: Sequence[CheckpointEntry] | None = None
    release_fails: bool = False
    release_error: str = "the driver is away"
    rebooted: bool = False
    every: float = 0.001
    written_within: float = 10.0
    #: What the kubelet does when it is asked to write its checkpoint.
    ask: Callable[[], object] = lambda: None
    #: What happens before the kubelet's file is read, before PodResources answers, while it does, and before
    #: an allocation is released.
    before_read: Callable[[], object] = lambda: None
    before_pods: Callable[[], object] = lambda: None
    during_pods: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint
    before_release: Callable[[str], object] = lambda allocation: None
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.allocations)
        if self.rebooted:
            self.ledger.mark_rebooted()
        self.plan: Cell[Plan] = Cell(PLAN)
        sources = EvidenceSources(
            self.read, self.in_use, self.partitions, life=lambda: self.life, settled=lambda life: self.settled
        )
        self.scene = Scene({}, NodeSnapshot(), Topology(), {})
        self.allocator = Allocator(
            lambda: self.scene, self.ledger, self, lambda: self.now, self.prepare, self.release, sources
        )
        self.reconciler = Reconciler(
            self.ledger,
            sources,
            self.allocator,
            Recovery(self.ledger, sources, self.plan, lambda: self.now, ledger_is_short=self.ledger_is_short),
            LedgerUpdates(
                self.ledger,
                self.allocator,
                lambda: [vendor(prepares=self.prepares)],
                self.release,
                self.ask_again,
                lambda: self.now,
                DOUBT_AGAIN,
            ),
            self.changed,
            lambda: self.now,
            ReconcileTiming(self.every, GRACE, self.written_within, burst=0.0, heard_within=0.0),
        )

    def ask_again(self, resource: str) -> None:
        self.log.append(f"ask again for {resource}")
        self.ask()

    def read(self, prove: bool) -> KubeletCheckpoint | None:
        self.log.append("prove" if prove else "read")
        self.before_read()
        if prove and not self.proves:
            raise KubeletError("its checksum is wrong")
        entries = self.proven if prove and self.proven is not None else self.entries
        return None if entries is None else KubeletCheckpoint(tuple(entries))

    async def in_use(self) -> Pods:
        self.before_pods()
        pods = self.pods
        await self.during_pods()
        if pods is None:
            raise KubeletError("no PodResources")
        return pods

    async def partitions(self, vendor: str) -> Sequence[Partition]:
        return tuple(self.slices)

    async def prepare(self, vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        raise AssertionError("the reconciler makes no hardware")

    async def release(self, vendor: str, mark: str) -> None:
        self.before_release(mark)
        known = self.ledger.get(mark)
        self.log.append(f"release {mark}, {known.state if known else 'unknown'}")
        if self.release_fails:
            raise VendorError(self.release_error)
        self.slices[:] = [it for it in self.slices if it.allocation != mark]

    async def save(self, *, durable: bool) -> None:
        raise AssertionError("who is told of a change saves")

    async def changed(self) -> None:
        self.log.append("changed")

    async def full(self) -> Sequence[Change | RecoveredAllocation]:
        return await self.reconciler.reconcile()

    async def quick(self) -> Sequence[Change | RecoveredAllocation]:
        return await self.reconciler.reconcile(full=False)

    def states(self) -> dict[str, str]:
        return {it.id: it.state for it in self.ledger.all()}


#: The mark of an allocation that nobody knows any more.
LOST = "00000000000001ff"


def here(*marks: str | None) -> list[Partition]:
    return [Partition(f"{it}/0", "a", it) for it in marks]


# A pass


async def test_what_gets_its_owner_while_the_evidence_is_read_is_not_judged_by_it() -> None:
    """An Allocate reads the kubelet's checkpoint, too, and may read a newer one than the pass has."""
    its = Node([held(since=999.0, owner=None)])
    its.before_pods = lambda: its.ledger.confirm("a1", Owner("uid-web", "main"), "k1")

    await its.reconciler.reconcile()

    assert [it.state for it in its.ledger.all()] == [AllocationState.DONE]
    its.before_pods = lambda: None
    await its.reconciler.reconcile()
    assert [it.state for it in its.ledger.all()] == [AllocationState.RELEASED]


async def test_the_owner_is_the_one_whose_answer_the_kubelet_kept() -> None:
    it = Node([held(owner=None)], [entry("a1")], ALIVE)

    assert await it.quick() == [Confirm("a1", WEB, "k1")]
    assert tuple(it.ledger.in_use()) == (held(),)
    assert +it.reconciler.actions == {"confirm": 1}


def admit(node: Node, number: int) -> None:
    """A pod is admitted: the ledger, file and list of the kubelet have one more, with an ID of its own."""
    name, ids = f"a{number}", (f"a::{number}",)
    node.ledger.record(
        allocation(name, ids, since=node.now, resource=XPU, life=node.life, owner=None),
    )
    node.entries = (*(node.entries or ()), entry(name, f"uid-{number}", ids))
    node.pods = {**(node.pods or {}), ("default", f"pod-{number}"): {"main": {XPU: frozenset(ids)}}}


def counted(judged: list[int]) -> Callable[..., list[Change]]:
    """The rules, which write down how many allocations they judge."""

    def judge(allocations: Sequence[Allocation], *more: Any) -> list[Change]:
        judged.append(len(allocations))
        return reconcile(allocations, *more)

    return judge


@pytest.mark.parametrize("pods", [50, 500])
async def test_a_quick_pass_after_an_admission_judges_as_few_allocations_on_a_full_node(
    pods: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    its, judged = Node(), list[int]()
    for number in range(pods):
        admit(its, number)
    await its.full()
    await its.quick()
    monkeypatch.setattr("agent.daemon.reconciling.reconcile_loop.reconcile", counted(judged))
    admit(its, pods)
    done = await its.quick()

    assert done == [Confirm(f"a{pods}", Owner(f"uid-{pods}", "main", "default", f"pod-{pods}"), "k1")]
    # The new one, and the newest of the others.
    assert judged == [2]
    await its.full()
    assert judged == [2, pods + 1]


async def test_quick_passes_after_admissions_compute_no_checksum() -> None:
    its = Node()
    admit(its, 1)
    await its.full()
    its.log.clear()

    for number in range(2, 9):
        its.now += TAKEN_WITHIN  # an answer with an owner is not waited for
        admit(its, number)
        await its.quick()

    assert [it for it in its.log if it != "changed"] == ["read"] * 7


@pytest.mark.parametrize(
    ("waits", "log", "expected"),
    [
        pytest.param(False, ["read", "prove", "changed"], [2, 6], id="the file is read again"),
        pytest.param(True, ["prove", "changed"], [3, 7], id="the file was verified for another reason"),
    ],
)
async def test_a_pod_that_ends_between_two_quick_passes_is_judged_by_the_next_with_all_others(
    waits: bool, log: list[str], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No allocation is released by what a part of the allocations shows."""
    its, judged = Node(), list[int]()
    for number in range(6):
        admit(its, number)
    await its.full()
    await its.quick()
    if waits:  # an answer whose owner no source shows
        its.ledger.record(
            allocation("late", ["b::0"], since=its.now, resource=XPU, life=its.life, owner=None)
        )
        its.now += TAKEN_WITHIN
    its.log.clear()
    monkeypatch.setattr("agent.daemon.reconciling.reconcile_loop.reconcile", counted(judged))

    its.entries, its.pods = (its.entries or ())[1:], dict([*(its.pods or {}).items()][1:])

    assert Release("a0", "pod gone") in await its.quick()
    assert (its.log, judged) == (log, expected)


async def test_a_pod_that_ends_between_two_quick_passes_is_doubted_by_the_next() -> None:
    its = Node()
    for number in range(4):
        admit(its, number)
    await its.full()
    await its.quick()

    its.pods = dict([*(its.pods or {}).items()][1:])

    assert await its.quick() == [AskKubelet("a0", XPU)]


async def test_a_pod_that_a_settled_kubelet_does_not_know_is_gone() -> None:
    it = Node([held()])

    assert await it.full() == [Release("a1", "pod gone")]
    assert it.states() == {"a1": "released"}
    assert +it.reconciler.actions == {"release": 1}


async def test_a_kubelet_that_had_granted_it_before_the_agent_began_is_asked_and_believed_at_once() -> None:
    it = Node([held()], [entry("a1")], settled=False)

    assert await it.quick() == [AskKubelet("a1", XPU)]
    it.entries = []
    assert await it.quick() == [Release("a1", "pod gone")]
    assert it.log == ["prove", "read", f"ask again for {XPU}", "read", "prove", "changed"]


@pytest.mark.parametrize(
    "it",
    [
        pytest.param(Node([held()], life="k2", settled=False), id="a kubelet that has just begun"),
        pytest.param(Node([held()], entries=None), id="no checkpoint of the kubelet"),
        pytest.param(Node([held()], proves=False), id="a checkpoint that proves wrong"),
        pytest.param(Node([held()], pods=None), id="no PodResources"),
    ],
)
async def test_what_can_not_be_known_releases_nothing(it: Node) -> None:
    await it.full()
    await it.quick()

    assert it.states() == {"a1": "done"}
    assert "changed" not in it.log


async def test_what_changed_is_told_once_after_all_of_it_and_nothing_where_nothing_did() -> None:
    it = Node([held("a1"), held("a2", ids=("a::2",)), held("a3", ids=("a::3",))], [entry("a3", ids=["a::3"])])

    await it.full()
    await it.full()

    assert it.log == ["prove", "read", f"ask again for {XPU}", "changed", "prove"]


async def test_a_node_without_anything_asks_nobody() -> None:
    it = Node()
    await it.full()
    it.log.clear()

    assert await it.full() == ()
    assert it.log == []


async def test_passes_come_again_and_again() -> None:
    it = Node([held(owner=None)], [entry("a1")], ALIVE)

    async with anyio.create_task_group() as group:
        group.start_soon(it.reconciler.run)
        await eventually(lambda: it.log.count("prove") >= 3)
        group.cancel_scope.cancel()

    assert tuple(it.ledger.in_use()) == (held(),)


async def test_a_pass_follows_each_news_of_the_kubelets_checkpoint() -> None:
    it = Node([held(owner=None)], [], ALIVE)
    news = Cell(0)

    async with anyio.create_task_group() as group:
        group.start_soon(it.reconciler.follow, news, anyio.lowlevel.checkpoint)
        await eventually(lambda: it.log)
        it.entries = [entry("a1")]
        news.set(1)
        await eventually(lambda: it.reconciler.actions["confirm"])
        group.cancel_scope.cancel()

    assert tuple(it.ledger.in_use()) == (held(),)


def test_the_agents_of_many_nodes_do_not_march_in_step() -> None:
    times = {jittered(30.0) for _ in range(20)}

    assert len(times) > 1
    assert all(27 <= it <= 33 for it in times)


# What a scheduler gave to pods that ask no device plugin


@pytest.mark.parametrize("pods", [{}, ALIVE], ids=["nothing is listed", "another pod is"])
async def test_what_the_kubelet_never_granted_is_not_over_because_it_knows_nothing_of_it(pods: Pods) -> None:
    given = held(ids=(), source=AllocationSource.ANNOTATION)
    it = Node([given, held("a2", owner=None)], [entry("a2")], pods)

    await it.full()
    it.now += 1000
    await it.full()

    assert it.ledger.get("a1") == given
    assert it.ledger.get("a2") != held("a2", owner=None)


async def test_a_slice_that_a_scheduler_gave_by_itself_is_not_missed_on_the_hardware() -> None:
    given = held(ids=(), source=AllocationSource.ANNOTATION, partitions=("a1/0",))
    it = Node([given], prepares=True)

    await it.full()

    assert it.ledger.all() == (given,)


# Proof


async def test_a_file_that_the_kubelet_just_wrote_is_proven_before_anything_is_let_go() -> None:
    it = Node([held()], [entry("a1")], ALIVE)
    await it.full()
    it.entries, it.pods = (), {}
    it.log.clear()

    await it.quick()

    assert it.log == ["read", "prove", "changed"]
    assert it.states() == {"a1": "released"}


async def test_what_only_an_unproven_file_lacks_is_kept() -> None:
    it = Node([held()], [entry("a1")], ALIVE)
    await it.full()
    it.entries, it.pods, it.proven = (), {}, [entry("a1")]

    assert await it.quick() == [AskKubelet("a1", XPU)]
    it.proves = False
    assert await it.quick() == []
    assert it.states() == {"a1": "done"}


async def test_the_first_look_at_a_new_life_of_the_kubelet_is_proven() -> None:
    """What it has kept is told from what it forgot while it still lists all of it."""
    it = Node([held()], [entry("a1")], ALIVE)
    await it.full()
    it.life, it.settled = "k2", False
    it.log.clear()

    assert await it.quick() == [Confirm("a1", WEB, "k2")]
    await it.quick()

    assert it.log == ["prove", "changed", "read"]
    assert +it.reconciler.actions == {}


async def test_a_new_life_whose_file_can_not_be_proven_is_looked_at_again() -> None:
    it = Node([held()], [entry("a1")], ALIVE)
    await it.full()
    it.life, it.proves = "k2", False

    await it.quick()
    it.proves = True

    assert await it.quick() == [Confirm("a1", WEB, "k2")]


async def test_what_a_new_life_of_the_kubelet_has_kept_is_known_as_it_begins() -> None:
    """It may be asked for devices at once, and writes its file without who is over then."""
    it = Node([held()], [entry("a1")], ALIVE)
    await it.full()
    it.life, it.settled = "k2", False

    await it.reconciler.confirm_in_new_life()
    it.entries, it.pods = (), {}

    assert await it.full() == [Release("a1", "pod gone")]


async def test_a_look_that_began_before_the_kubelet_knows_nothing_of_what_that_has_kept() -> None:
    it = Node([held()], [entry("a1")], ALIVE)
    await it.full()

    async def begins_anew() -> None:
        it.life, it.settled, it.during_pods = "k2", False, anyio.lowlevel.checkpoint
        await it.reconciler.confirm_in_new_life()

    it.during_pods = begins_anew
    await it.full()
    it.entries, it.pods = (), {}

    assert await it.full() == [Release("a1", "pod gone")]


@pytest.mark.parametrize("proves", [True, False], ids=["another began meanwhile", "it cannot be proven"])
async def test_what_a_kubelet_has_kept_is_not_known_from_a_file_that_may_be_anothers(proves: bool) -> None:
    it = Node([held()], [entry("a1")], ALIVE)
    await it.full()
    it.life, it.settled, it.proves = "k2", False, proves
    it.before_read = lambda: setattr(it, "life", "k3")

    await it.reconciler.confirm_in_new_life()
    it.entries, it.pods, it.proves, it.life = (), {}, True, "k2"
    it.before_read = lambda: None

    assert await it.full() == []
    assert it.states() == {"a1": "done"}


async def test_a_pod_that_ended_while_its_kubelet_began_anew_is_not_taken_for_a_forgotten_one() -> None:
    """Kubelets up to 1.33 list it until it is deleted."""
    it = Node([held()], [entry("a1")], ALIVE)
    await it.full()
    it.life, it.settled = "k2", False
    await it.quick()
    it.settled, it.entries, it.pods = True, (), {("default", "web"): {"main": {}}}

    assert await it.full() == [Release("a1", "pod gone")]


# Remarks


async def test_a_pod_that_the_kubelet_forgot_is_kept_and_said_once() -> None:
    it = Node([held()], [], {("default", "web"): {"main": {}}}, life="k2")

    with structlog.testing.capture_logs() as told:
        for _ in range(3):
            await it.full()

    assert it.ledger.usage().forgotten == {XPU: {"a::1"}}
    assert [one["event"] for one in told] == ["allocation forgotten by the kubelet"]
    assert +it.reconciler.actions == {"forget": 1}
    assert it.log.count("changed") == 1


async def test_a_forgotten_pod_that_lost_its_slice_is_said_to_be_forgotten_and_no_more() -> None:
    it = Node([held(partitions=("a1/0",))], [], {("default", "web"): {"main": {}}}, life="k2", prepares=True)

    for _ in range(3):
        await it.full()

    assert [one.reason for one in it.ledger.all()] == [FORGOTTEN]
    assert +it.reconciler.actions == {"forget": 1}


async def test_a_slice_that_a_reboot_took_is_said_and_one_lost_later_is_another_matter() -> None:
    it = Node([held(partitions=("a1/0",))], [entry("a1")], ALIVE, prepares=True, rebooted=True)
    said = []

    for slices in (here(), here("a1"), here()):
        it.slices[:] = slices
        await it.full()
        said.append(it.ledger.all()[0].reason.partition(";")[0])

    assert said == ["the reboot took a1/0", "", "a1/0 is gone from the hardware"]


async def test_a_quick_pass_asks_no_vendor_and_says_nothing_of_slices() -> None:
    it = Node([held(partitions=("a1/0",))], [entry("a1")], ALIVE, prepares=True)

    assert await it.quick() == []


# Release


@pytest.mark.parametrize("state", [AllocationState.INTENT, AllocationState.PREPARED, AllocationState.DONE])
async def test_the_hardware_is_freed_before_the_ledger_forgets_it(state: AllocationState) -> None:
    it = Node([held(state=state, owner=None)], slices=here("a1"), prepares=True)

    await it.full()

    assert it.log == ["prove", f"release a1, {state}", "changed"]
    assert it.states() == {"a1": "released"}
    assert it.slices == []


async def test_slices_that_can_not_be_removed_are_told_once_for_each_reason() -> None:
    it = Node([held()], slices=here("a1"), prepares=True, release_fails=True)

    with structlog.testing.capture_logs() as told:
        await it.full()
        await it.full()
        it.release_error = "the vendor is not in service"
        await it.full()
        await it.full()

    failed = [line for line in told if line["event"] == "slices not removed, tried again"]
    assert [line["error"] for line in failed] == ["the driver is away", "the vendor is not in service"]
    assert it.reconciler.actions["release_failed"] == 4


async def test_what_the_vendor_can_not_free_now_is_kept_counted_and_tried_again() -> None:
    it = Node([held()], slices=here("a1"), prepares=True, release_fails=True)

    assert await it.full() == []
    kept = it.states()
    it.release_fails = False
    await it.full()

    assert kept == {"a1": "done"}
    assert it.states() == {"a1": "released"}
    assert +it.reconciler.actions == {"release_failed": 1, "release": 1}
    assert it.log.count("changed") == 1


async def test_slices_are_freed_also_where_their_vendor_makes_none_any_more() -> None:
    it = Node([held(partitions=("a1/0",)), held("a2", ids=("a::2",))])

    await it.full()

    assert [line for line in it.log if line.startswith("release")] == ["release a1, done"]
    assert it.states() == {"a1": "released", "a2": "released"}


async def test_what_an_undone_allocate_left_on_the_hardware_goes_with_its_intent() -> None:
    """The vendor was away when the Allocate was undone: the ledger kept it."""
    it = Node([held(state=AllocationState.INTENT, owner=None, since=990.0)], slices=here("a1"), prepares=True)

    assert await it.full() == []
    it.now += GRACE
    await it.full()

    assert it.slices == []
    assert it.states() == {"a1": "released"}


# What others gave before


def given(text: str) -> Sequence[CheckpointEntry]:
    """The kubelet's file: what another plugin gave of the card, and what ended since."""
    return [entry("", f"uid-{it}", ids=[f"a::{number}"]) for number, it in enumerate(text.split())]


async def test_of_what_others_gave_that_is_recorded_which_the_proven_file_holds() -> None:
    node = Node(entries=given("web gone"), proven=given("web"))

    await node.reconciler.recover_at_start()

    assert [it.ids for it in node.ledger.all()] == [("a::0",)]


# Doubt


async def test_a_pod_that_nobody_shows_has_the_kubelet_write_what_it_knows_once_in_a_while() -> None:
    it = Node([held()], [entry("a1")])
    asked = []

    for seconds in (0.0, 1.0, DOUBT_AGAIN - 2, 1.0):
        it.now += seconds
        await it.full()
        asked.append(it.log.count(f"ask again for {XPU}"))

    assert asked == [1, 1, 1, 2]
    assert +it.reconciler.actions == {"doubt": 2}
    assert "changed" not in it.log
    assert it.states() == {"a1": "done"}


async def test_owners_that_the_next_file_may_lack_are_read_before_the_kubelet_is_asked_for_it() -> None:
    """Both pods ended as soon as they were admitted; the second one after the pass had read the file."""
    node = Node([held("a1", owner=None), held("a2", owner=None, ids=("a::2",), since=999.0)], [entry("a1")])
    node.before_pods = lambda: setattr(node, "entries", [entry("a1"), entry("a2", "uid-2", ["a::2"])])
    node.ask = lambda: setattr(node, "entries", [])
    await node.quick()
    node.before_pods = lambda: None
    assert [it.owner and it.owner.uid for it in node.ledger.in_use()] == ["uid-web", "uid-2"]

    await node.quick()

    assert node.states() == {"a1": "released", "a2": "released"}


@pytest.mark.parametrize("owner", [None, WEB])
async def test_a_doubt_that_the_kubelet_has_ended_by_a_list_may_come_again_at_once(
    owner: Owner | None,
) -> None:
    """A kubelet that has just started lists the pods of the API server some seconds later."""
    node = Node([held(owner=owner)], [entry("a1")])
    await node.quick()
    node.pods = ALIVE
    await node.quick()
    node.pods = {}
    await node.quick()

    assert node.log.count(f"ask again for {XPU}") == 2


async def test_a_question_about_a_young_answer_does_not_use_up_the_one_after_the_grace() -> None:
    """A plain init container is in no list while it runs."""
    node = Node([held(since=999.0, owner=Owner("uid-web", "main"))], [entry("a1")])
    asked = []

    for seconds in (0.0, 1.0, GRACE, 1.0):
        node.now += seconds
        await node.quick()
        asked.append(node.log.count(f"ask again for {XPU}"))

    assert asked == [1, 1, 2, 2]


# When a pass comes


async def test_an_answer_without_an_owner_is_looked_at_as_soon_as_its_age_allows_to_release_it() -> None:
    """A later answer is in the file, and this one never was in one that a pass has read."""
    short = held("a1", owner=None, since=1000.0 - TAKEN_WITHIN + 0.001)
    node = Node([short, held("a2", ids=("a::2",), since=999.0)], [entry("a2", ids=["a::2"])])
    node.pods = {("default", "web"): {"main": {XPU: frozenset({"a::2"})}}}

    async with anyio.create_task_group() as group:
        group.start_soon(node.reconciler.follow, Cell(0), anyio.lowlevel.checkpoint)
        await eventually(lambda: node.log.count("read") >= 2)
        assert node.states()["a1"] == "done"
        node.now += 1.0
        await eventually(lambda: node.states()["a1"] == "released")
        group.cancel_scope.cancel()

    assert node.states()["a2"] == "done"


async def test_without_an_answer_that_lacks_an_owner_no_pass_comes_by_itself() -> None:
    node = Node([held(since=999.0)], [entry("a1")], ALIVE)

    async with anyio.create_task_group() as group:
        group.start_soon(node.reconciler.follow, Cell(0), anyio.lowlevel.checkpoint)
        await eventually(lambda: node.log)
        await anyio.wait_all_tasks_blocked()
        timers = [it for it in asyncio.get_running_loop()._scheduled if not it.cancelled()]  # type: ignore[attr-defined]
        group.cancel_scope.cancel()

    assert timers == []


@pytest.mark.parametrize("uid", ["uid-web", "uid-2"])
async def test_a_pass_follows_the_end_of_a_pod_that_has_an_allocation_and_of_no_other(uid: str) -> None:
    node = Node([held()], [entry("a1")], ALIVE)
    alive = Candidate("uid-web", "default", "web"), Candidate("uid-2", "default", "other")
    pods = Cell(KnownPods.of(alive))

    async with anyio.create_task_group() as group:
        group.start_soon(node.reconciler.follow, Cell(0), anyio.lowlevel.checkpoint)
        group.start_soon(node.reconciler.follow_pods, pods)
        await eventually(lambda: node.log)
        await anyio.wait_all_tasks_blocked()
        node.log.clear()
        node.pods, node.ask = {}, lambda: setattr(node, "entries", [])
        pods.set(pods.value.after([uid], ()))
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()

    passed = ["read", "read", f"ask again for {XPU}"]
    assert [it for it in node.log if it != "changed"] == (passed if uid == "uid-web" else [])


# Slices without an owner


async def test_room_is_made_of_what_the_kubelet_writes_down_as_over_when_it_is_asked() -> None:
    node = Node([held(since=999.0)], entries=[entry("a1")], prepares=True)
    node.ask = lambda: setattr(node, "entries", ())

    assert await node.reconciler.make_room()

    assert node.states() == {"a1": "released"}
    assert not await node.reconciler.make_room()


class Slow(Node):
    """Its kubelet has written its checkpoint anew when that is read for the third time."""

    def read(self, prove: bool) -> KubeletCheckpoint | None:
        if sum(it in ("prove", "read") for it in self.log) >= 2:
            self.entries = ()
        return super().read(prove)


async def test_room_is_waited_for_where_a_pass_before_has_asked_the_kubelet_already() -> None:
    node = Slow([held(since=999.0)], entries=[entry("a1")], prepares=True)
    await node.full()
    assert +node.reconciler.actions == {"doubt": 1}

    assert await node.reconciler.make_room()

    assert node.states() == {"a1": "released"}


async def test_room_is_waited_for_again_where_something_else_was_let_go_of_first() -> None:
    others = held("a0", since=1.0, ids=("a::0",), owner=Owner("uid-job", "main", "default", "job"))
    node = Node([others, held("a1", since=999.0)], entries=[entry("a1")], prepares=True)

    assert await node.reconciler.make_room()
    assert node.states() == {"a0": "released", "a1": "done"}
    node.before_pods = lambda: setattr(node, "entries", ())
    assert await node.reconciler.make_room()

    assert node.states() == {"a0": "released", "a1": "released"}


class Stuck(Node):
    """Its hardware lets go of the second allocation only once it is told to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gate, self.reached, self.told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def release(self, vendor: str, mark: str) -> None:
        if any(it.startswith("release") for it in self.log):
            self.reached.set()
            await self.gate.wait()
        await super().release(vendor, mark)

    async def changed(self) -> None:
        self.told.set()


async def test_room_that_nobody_waits_for_any_more_is_made_and_told_all_the_same() -> None:
    node = Stuck([held("a1"), held("a2")], prepares=True)
    node.now += GRACE * 2
    making = asyncio.ensure_future(node.reconciler.make_room())
    await node.reached.wait()

    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    node.gate.set()
    async with asyncio.timeout(10):
        await node.told.wait()

    assert node.states() == {"a1": "released", "a2": "released"}


async def test_no_room_is_made_of_whom_the_kubelet_shows_or_goes_on_to_grant() -> None:
    alive = Node([held(since=999.0)], entries=[entry("a1")], pods=ALIVE, written_within=0.01)
    granted = Node([held(since=999.0)], entries=[entry("a1")], written_within=0.01)

    assert not await alive.reconciler.make_room()
    assert not await granted.reconciler.make_room()

    assert alive.states() == granted.states() == {"a1": "done"}


async def test_a_slice_without_an_owner_is_removed_after_the_grace_and_foreign_ones_never() -> None:
    it = Node(slices=here(LOST, None), prepares=True)

    first = await it.full()
    it.now += GRACE - 1
    within = await it.full()
    it.now += 1
    after = await it.full()

    assert (first, within, after) == ([], [], [Remove("acme", LOST)])
    assert it.slices == here(None)
    assert +it.reconciler.actions == {"remove": 1}


async def test_a_slice_that_found_an_owner_begins_anew_when_it_loses_it() -> None:
    it = Node(slices=here(LOST), prepares=True)
    await it.full()
    it.entries = [entry(LOST, resource="other.com/x")]
    it.now += GRACE
    await it.full()
    it.entries = ()

    assert await it.full() == []
    it.now += GRACE
    assert await it.full() == [Remove("acme", LOST)]


async def test_quick_passes_between_leave_the_age_of_a_slice_without_an_owner() -> None:
    it = Node([held(owner=WEB)], [entry("a1")], ALIVE, here(LOST), prepares=True)
    await it.full()
    await it.quick()
    it.now += GRACE

    assert await it.full() == [Remove("acme", LOST)]


async def test_a_slice_that_can_not_be_removed_is_tried_again() -> None:
    it = Node(slices=here(LOST), prepares=True, release_fails=True)
    await it.full()
    it.now += GRACE

    assert await it.full() == []
    it.release_fails = False
    assert await it.full() == [Remove("acme", LOST)]
    assert +it.reconciler.actions == {"release_failed": 1, "remove": 1}


async def test_no_slice_is_removed_before_it_is_known_what_the_kubelet_has() -> None:
    it = Node(entries=None, slices=here("a1", LOST), prepares=True)
    await it.full()
    it.now += GRACE
    waiting = await it.full()

    it.entries = [entry("a1")]
    await it.full()
    it.now += GRACE
    await it.full()

    assert waiting == []
    assert it.slices == here("a1")


async def test_an_answer_that_can_not_be_taken_back_keeps_its_own_slice_and_no_other() -> None:
    """Its resource may have left the config for good."""
    it = Node(entries=[entry("a1")], slices=here("a1", LOST), prepares=True)
    it.plan.set({})
    await it.full()
    it.now += GRACE

    assert await it.full() == [Remove("acme", LOST)]
    assert it.slices == here("a1")


async def test_slices_of_an_allocation_that_was_read_back_are_found() -> None:
    it = Node([held(partitions=())], [entry("a1")], ALIVE, slices=here("a1"), prepares=True)

    await it.full()

    assert it.ledger.all()[0].partitions == ("a1/0",)
    assert it.reconciler.actions["find"] == 1


@pytest.mark.parametrize("owner", [WEB, None], ids=["with its owner", "before it had one"])
async def test_what_was_released_wrongly_is_taken_back(owner: Owner | None) -> None:
    """An answer may reach the kubelet's file after our look at it; on a slow node long after the grace."""
    it = Node([held(owner=owner)])
    await it.full()
    assert it.states() == {"a1": "released"}  # and nothing else is in use

    it.entries, it.pods = [entry("a1")], ALIVE
    await it.full()
    await it.full()

    assert it.states() == {"a1": "done"}
    assert it.ledger.all()[0].owner == WEB
    assert it.reconciler.actions["revive"] == 1


async def test_what_was_released_wrongly_stays_so_where_another_has_its_ids_by_now() -> None:
    it = Node([held()])
    await it.full()
    it.ledger.record(held("a2", owner=None, since=it.now))

    it.entries, it.pods = [entry("a1")], ALIVE
    await it.full()

    assert it.states() == {"a1": "released", "a2": "done"}


async def test_what_was_allocated_after_the_kubelets_file_was_read_is_as_young_as_that_look() -> None:
    """PodResources may let us wait for longer than the grace."""
    it = Node([held("a1", owner=None), held("a2", ids=("a::2",), owner=None, since=999.0)])
    it.before_pods = lambda: setattr(it, "now", it.now + GRACE)
    await it.full()

    assert it.states() == {"a1": "released", "a2": "done"}


async def test_an_allocation_that_changes_while_another_is_freed_is_looked_at_again() -> None:
    it = Node([held(), held("a2", ids=("a::2",))], slices=here("a1", "a2"), prepares=True)

    def starts(allocation: str) -> None:
        if allocation == "a1":
            it.allocator.busy.add("a2")  # a container starts on it just now

    it.before_release = starts
    await it.full()

    assert it.states() == {"a1": "released", "a2": "done"}


@pytest.mark.parametrize(("ended", "state"), [(True, "released"), (False, "done")])
async def test_what_a_pod_that_has_ended_was_given_is_let_go_of_though_its_owner_was_never_seen(
    ended: bool, state: str
) -> None:
    """The kubelet had let go of it before the first look; a scheduler gives the card away at once."""
    claim = Claim("uid-web", "default", "web", "main", ("a",))
    it = Node([held(owner=None, claim=claim, life="k1", since=1000.0 - TAKEN_WITHIN)], life="k1", now=1000.0)
    web = Candidate("uid-web", "default", "web", ended=ended, over=ended)
    it.scene = replace(it.scene, candidates=KnownPods.of([web]))
    await it.full()

    assert it.states() == {"a1": state}


async def test_what_needs_no_hardware_is_let_go_of_before_what_does() -> None:
    """Hardware takes its time, and somebody may wait for the room."""
    it = Node([held(partitions=("a1/0",)), held("a2", ids=("a::2",))], slices=here("a1"))
    seen: list[dict[str, str]] = []
    it.before_release = lambda allocation: seen.append(it.states())
    await it.full()

    assert seen == [{"a1": "done", "a2": "released"}]


async def test_a_slice_made_by_an_allocate_that_is_in_flight_is_left_alone() -> None:
    it = Node(slices=here("a9"), prepares=True)
    it.allocator.busy.add("a9")
    await it.full()
    it.now += GRACE

    assert await it.full() == []


# Claims


async def test_claims_follow_the_kubelet_and_that_alone_is_a_change() -> None:
    claims = [Claim(f"uid-{name}", "default", name, "main") for name in ("web", "job")]
    job = Owner("uid-job", "main", "default", "job")
    its = [held("a1", claim=claims[1]), held("a2", ids=("a::2",), owner=job, claim=claims[0])]
    pods = {**ALIVE, ("default", "job"): {"main": {XPU: frozenset({"a::2"})}}}
    it = Node(its, [entry("a1"), entry("a2", "uid-job", ["a::2"])], pods)

    with structlog.testing.capture_logs() as told:
        await it.full()
        await it.full()

    assert [one.claim for one in it.ledger.all()] == claims
    assert [(one["allocation"], one["claim"]) for one in told] == [
        ("a1", "default/web"),
        ("a2", "default/job"),
    ]
    assert +it.reconciler.actions == {"exchange": 2}
    assert it.log.count("changed") == 1


# What only the kubelet knows


async def test_what_a_lost_checkpoint_knew_is_taken_back_with_its_owner() -> None:
    it = Node(entries=[entry("a1")], pods=ALIVE)

    await it.quick()
    await it.quick()

    assert tuple(it.ledger.in_use()) == (held(since=1000.0, source=AllocationSource.KUBELET),)
    assert +it.reconciler.actions == {"recall": 1, "confirm": 1}


async def test_what_an_older_copy_of_our_checkpoint_lacks_is_taken_back_too() -> None:
    it = Node([held()], [entry("a1"), entry("a2", "uid-2", ["a::2"])], ALIVE)

    await it.full()

    assert [(one.id, one.source) for one in it.ledger.in_use()] == [
        ("a1", "allocate"),
        ("a2", AllocationSource.KUBELET),
    ]


async def test_after_the_first_look_the_kubelet_has_nothing_that_is_not_in_the_ledger() -> None:
    """What it then names was released: its file is written late."""
    it = Node([held()], [entry("a1")], ALIVE)
    await it.full()
    it.entries = [entry("a1"), entry("late", "uid-2", ["a::2"])]

    assert await it.full() == []


async def test_nothing_is_taken_back_from_a_file_that_proves_wrong() -> None:
    it = Node(entries=[entry("a1")], proves=False)
    it.life = ""  # so that a quick pass need not prove it

    assert await it.quick() == []
    assert it.ledger.all() == ()
    it.proves = True
    await it.quick()
    assert [one.id for one in it.ledger.in_use()] == ["a1"]


async def test_a_pod_that_another_plugin_served_is_taken_over_and_released_when_it_is_gone() -> None:
    it = Node(entries=[entry("")], pods=ALIVE)
    await it.full()
    (taken,) = it.ledger.in_use()

    it.entries, it.pods = (), {}
    it.now += GRACE
    await it.full()

    assert (taken.ids, taken.devices, taken.source, taken.owner) == (
        ("a::1",),
        ("a",),
        AllocationSource.KUBELET,
        WEB,
    )
    assert it.states() == {taken.id: "released"}


async def test_what_another_plugin_serves_under_a_name_of_its_own_is_not_ours_and_not_looked_for() -> None:
    it = Node(entries=[entry("", resource="amd.com/gpu")])
    await it.full()
    it.log.clear()

    assert await it.full() == ()
    assert it.log == []


@pytest.mark.parametrize("name", ["a1", ""])
async def test_taking_back_waits_until_the_devices_are_known(name: str) -> None:
    it = Node(entries=[entry(name), entry("", "uid-2", ["0"], "amd.com/gpu")])
    it.plan.set({})

    await it.full()
    none = it.ledger.all()
    it.plan.set(PLAN)
    await it.full()

    assert none == ()
    assert [one.ids for one in it.ledger.all()] == [("a::1",)]


async def test_what_is_gone_before_its_devices_are_known_is_not_waited_for() -> None:
    it = Node(entries=[entry("a1")])
    it.plan.set({})
    await it.full()
    it.entries = ()
    it.plan.set(PLAN)
    await it.full()
    it.log.clear()

    assert await it.full() == ()
    assert it.log == []


# Where the kubelet's checkpoint is not there either


async def test_without_any_checkpoint_pod_resources_says_what_is_in_use() -> None:
    it = Node(entries=None, pods=ALIVE)

    for _ in range(3):
        await it.full()

    (one,) = it.ledger.in_use()
    assert (one.ids, one.devices, one.source) == (("a::1",), ("a",), AllocationSource.POD_RESOURCES)
    assert one.owner == Owner("", "main", "default", "web")
    assert +it.reconciler.actions == {"recall": 1}


async def test_of_devices_found_one_vendor_after_another_each_is_taken_back_once() -> None:
    other = "example.com/other"
    shown: Pods = {**ALIVE, ("default", "job"): {"main": {other: frozenset({"b"})}}}
    it = Node(entries=None, pods=shown)
    await it.full()

    it.plan.set({**PLAN, **plan([Offer("b", (ResourceRule(other),))], node(status("b", vendor="b")))})
    await it.full()
    await it.full()

    assert [one.ids for one in it.ledger.in_use()] == [("a::1",), ("b",)]


async def test_where_our_checkpoint_is_there_pod_resources_adds_nothing_to_it() -> None:
    it = Node([held(owner=None)], entries=None, pods=ALIVE)

    await it.full()

    assert [one.id for one in it.ledger.in_use()] == ["a1"]


async def test_where_some_of_our_checkpoint_was_lost_pod_resources_adds_what_it_lacks() -> None:
    other = {"main": {XPU: frozenset({"a::2"})}}
    shown = {**ALIVE, ("default", "job"): other}
    it = Node([held(owner=None)], entries=None, pods=shown, ledger_is_short=True)

    for _ in range(3):
        await it.full()

    assert [(one.ids, one.source) for one in it.ledger.in_use()] == [
        (("a::1",), AllocationSource.ALLOCATE),
        (("a::2",), AllocationSource.POD_RESOURCES),
    ]


async def test_one_known_id_of_a_container_says_nothing_of_its_others() -> None:
    """The kubelet gives the IDs of an init container to the main container once more."""
    shown = {("default", "web"): {"main": {XPU: frozenset({"a::1", "a::2"})}}}
    it = Node([held(owner=None)], entries=None, pods=shown, ledger_is_short=True)

    await it.full()

    assert [one.ids for one in it.ledger.in_use()] == [("a::1",), ("a::1", "a::2")]


async def test_what_a_scheduler_gave_by_itself_keeps_nothing_from_being_taken_back() -> None:
    it = Node([held("given", ids=(), source=AllocationSource.ANNOTATION)], entries=None, pods=ALIVE)

    await it.full()

    assert [one.source for one in it.ledger.in_use()] == [
        AllocationSource.ANNOTATION,
        AllocationSource.POD_RESOURCES,
    ]


async def test_whom_pod_resources_alone_shows_is_known_with_its_claim_once_its_pod_is_heard_of() -> None:
    it = Node(entries=None, pods=ALIVE)
    await it.full()
    said: dict[str, Any] = {"devices": ("a",), "parameters": {"core": "30"}}
    claim = Claim("uid-web", "default", "web", "main", **said)
    its = replace(vendor(prepares=False), dialects=(Dialect("plain", lambda pod, resource, cards: [claim]),))
    web = Candidate("uid-web", "default", "web", (PodContainer("main", {XPU: 1}),))
    it.scene = Scene(PLAN, node(status("a")), Topology(), {"acme": its}, candidates=KnownPods.of([web]))
    it.log.clear()

    await it.full()
    await it.full()

    (one,) = it.ledger.in_use()
    assert (one.claim, one.cards) == (claim, ("a",))
    assert it.log.count("changed") == 1
    assert it.reconciler.actions["recognise"] == 1


async def test_what_pod_resources_said_gives_way_once_the_kubelets_checkpoint_can_be_read() -> None:
    it = Node(entries=None, pods=ALIVE)
    await it.full()
    it.entries = [entry("a1")]
    for _ in range(2):
        it.now += GRACE
        await it.full()

    assert [(one.id, one.owner) for one in it.ledger.in_use()] == [("a1", WEB)]


async def test_a_full_pass_that_is_wanted_does_not_wait_for_its_time() -> None:
    it = Node([held()], [entry("a1")], ALIVE, every=3600.0)

    async with anyio.create_task_group() as group:
        group.start_soon(it.reconciler.run)
        await anyio.wait_all_tasks_blocked()
        before = len(it.log)
        it.reconciler.look_again()
        with anyio.fail_after(30):
            while len(it.log) == before:
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()

    assert (before, it.log[0]) == (0, "prove")


async def test_the_first_full_pass_after_a_start_comes_with_the_first_resource() -> None:
    """An agent that begins anew each few seconds must release what has slices, too."""
    gone = held(partitions=("a1/0",))
    it = Node([gone], slices=here("a1"), prepares=True, every=3600.0)

    async with anyio.create_task_group() as group:
        group.start_soon(it.reconciler.run)
        await it.reconciler.recover_at_start()
        await eventually(lambda: it.states() == {"a1": "released"})
        group.cancel_scope.cancel()

    assert it.slices == []


# Bursts of answers


async def test_the_first_answers_after_a_pause_cost_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("a1", "a2", "a3")
    shown: Pods = {("default", name): {"main": {XPU: frozenset({f"{name}::1"})}} for name in names}
    node = Node([held(name, since=999.0, owner=None, ids=(f"{name}::1",)) for name in names], pods=shown)
    written, waits, goes_on = Cell(0), asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        waits.set()
        await goes_on.wait()

    paused = SimpleNamespace(**{**vars(anyio), "sleep": pause})
    monkeypatch.setattr("agent.daemon.reconciling.reconcile_loop.anyio", paused)
    following = asyncio.create_task(node.reconciler.follow(written, anyio.lowlevel.checkpoint))
    await waits.wait()
    for number in range(1, len(names) + 1):
        node.entries = [entry(name, f"uid-{name}", (f"{name}::1",)) for name in names[:number]]
        written.set(number)
        await asyncio.sleep(0)
    goes_on.set()
    await eventually(lambda: all(it.owner for it in node.ledger.in_use()))
    following.cancel()

    assert node.log == ["prove", "changed"]


async def test_answers_close_together_cost_one_pass_that_confirms_them_all() -> None:
    names = ("a1", "a2", "a3")
    shown: Pods = {("default", name): {"main": {XPU: frozenset({f"{name}::1"})}} for name in names}
    node = Node([held(name, since=999.0, owner=None, ids=(f"{name}::1",)) for name in names], pods=shown)
    written, passed, listable = Cell(0), asyncio.Event(), asyncio.Event()

    async def pods_listable() -> None:
        passed.set()
        await listable.wait()

    following = asyncio.create_task(node.reconciler.follow(written, pods_listable))
    await passed.wait()
    node.log.clear()
    for number in range(1, len(names) + 1):
        node.entries = [entry(name, f"uid-{name}", (f"{name}::1",)) for name in names[:number]]
        written.set(number)
        await asyncio.sleep(0)
    listable.set()
    await eventually(lambda: all(it.owner for it in node.ledger.in_use()))
    following.cancel()

    assert node.log == ["read", "changed"]

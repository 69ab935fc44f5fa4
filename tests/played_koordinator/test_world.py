"""Koordinator's scheduler and manager, a kubelet, and the agent's rules: one node, day after day.

The scheduler knows of the cards what our Device says and nothing else, and of the pods what it wrote on them.
After every admission, every end of a pod and every fault the Device says all that it needs, its book, the
annotations and the agent's ledger are one, and no card is given twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from schedulers.koordinator.cards import report
from schedulers.koordinator.koordlet import refused

from agent.cluster.pod_state import PodState
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.cell import Cell
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.devices.topology import topology
from agent.core.errors import AllocationError
from agent.core.model import DeviceStatus, Health, NodeSnapshot, Plan, VendorState, VendorStatus
from agent.core.reconciling.reconcile_evidence import Pods
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.allocation.pod_waiter import PodWaiter
from agent.daemon.external_use import ExternalUseKeeper
from agent.daemon.publishing.wanted_scheduler_report import withheld
from agent.daemon.reconciling.evidence_sources import EvidenceSources
from agent.daemon.reconciling.ledger_updates import LedgerUpdates
from agent.daemon.reconciling.reconcile_loop import Reconciler, ReconcileTiming
from agent.daemon.reconciling.recovery import Recovery
from agent.daemon.scheduler_plugins import registered
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint
from agent.scheduler_api import Candidate, PodContainer
from agent.scheduler_api.node_report import Report
from agent.schedulers.koordinator.device_object import device, report_in
from agent.state.checkpoint import SavedState
from agent.state.file_envelope import opened, sealed
from agent.vendor_api.agent import (
    ContainerEdits,
    Device,
    Partition,
    Request,
    ResourceRule,
    Sharing,
    State,
    Vendor,
)

from .manager import Manager
from .scheduler import ALLOCATED, Asking, Bound, Scheduler, booked
from .wishes import CORE, MEMORY, RATIO, SHARED, Unschedulable

CARDS = 6
GIB = 1 << 30
GRACE, SETTLE = 60.0, 120.0
GPU, TOKEN, CARDS_OF = "nvidia.com/gpu", "nvidia.com/gpu.share", "CARDS"
WHOLE = ResourceRule(GPU, placement="auto")
TOKENS = ResourceRule(TOKEN, sharing=Sharing("replicas", 20), placement="claim")
VENDOR = Vendor(
    "nvidia", "", GPU, lambda cards, request: ContainerEdits({CARDS_OF: ",".join(it.uuid for it in cards)})
)
#: Not ours, and to stay in the Device.
PORT = {"type": "rdma", "id": "0000:02:00.0", "minor": 0, "health": True, "resources": {}}

Limits = tuple[dict[str, str], ...]


def share(core: int, memory: str = "", *, cards: int = 1, token: int = 0) -> dict[str, str]:
    """What a container asks for that wants so much of each of these cards, as the webhook completes it."""
    much = {MEMORY: memory} if memory else {RATIO: str(core * cards)}
    asked = {SHARED: str(cards), CORE: str(core * cards), **much}
    return asked | {TOKEN: str(token)} if token else asked


#: What pods ask for, by what the node serves.
ASKED: dict[str, list[Limits]] = {
    "whole cards": [
        ({GPU: "1"},),
        ({GPU: "2"},),
        ({GPU: "1"}, {GPU: "1"}),
        ({GPU: "4"},),
    ],
    "cards beside shares that ask no plugin": [
        ({GPU: "1"},),
        ({GPU: "2"},),
        (share(30),),
        (share(50, "10Gi"),),
        (share(20, cards=2),),
        (share(100),),
        (share(100, cards=2),),
    ],
    "shares": [
        (share(10, token=1),),
        (share(50, token=1),),
        (share(30, "24Gi", token=1),),
        (share(100, token=1),),
        (share(100, cards=2, token=2),),
        (share(25, cards=2, token=2),),
        (share(20, token=1), share(20, token=1)),
    ],
}
#: Kubelets take the pods of one round as they like; only where cards are whole nobody is misled by that.
UNORDERED = "whole cards"


@dataclass
class Pod:
    uid: str
    bound: Bound
    candidate: Candidate
    #: Container to the allocation that was answered for it.
    answers: dict[str, CheckpointEntry] = field(default_factory=dict)
    waits: bool = True

    @property
    def name(self) -> str:
        return self.bound.asking.name

    @property
    def asks_us(self) -> bool:
        return any({GPU, TOKEN} & its.keys() for its in self.bound.asking.containers)

    @property
    def promised(self) -> list[str]:
        return [it["id"] for it in json.loads(self.bound.annotations[ALLOCATED])["gpu"]]

    @property
    def cards(self) -> list[str]:
        """Those that its containers are told of."""
        return [uuid for it in self.answers.values() for uuid in it.edits.env[CARDS_OF].split(",")]


class Agent:
    """One life of the agent: its rules over a Device, a kubelet, pods and a disk of the machine."""

    def __init__(self, world: World) -> None:
        self._world = world
        allocations = opened(world.disk, SavedState).allocations if world.disk else ()
        self.ledger = Ledger(allocations, world.now)
        self.scheduled = PodState()
        self.plan: Cell[Plan] = Cell({})
        self.snapshot: Cell[NodeSnapshot] = Cell(world.snapshot)
        self.told: Report | None = None
        sources = EvidenceSources(
            lambda prove: KubeletCheckpoint(tuple(world.books)),
            world.pod_resources,
            self._partitions,
            lambda: frozenset(it.uid for it in world.pods if not it.waits),
            lambda: f"k{world.life}",
            lambda life: world.now - world.registered >= SETTLE,
        )
        self.allocator = Allocator(
            self._scene,
            self.ledger,
            self,
            lambda: world.now,
            self._prepare,
            self._release,
            sources,
        )
        self.askers = PodWaiter(self.plan, lambda: self.allocator.promises, self.scheduled, within=0.01)
        self.reconciler = Reconciler(
            self.ledger,
            sources,
            self.allocator,
            Recovery(self.ledger, sources, self.plan, lambda: world.now),
            LedgerUpdates(
                self.ledger,
                self.allocator,
                lambda: [VENDOR],
                self._release,
                lambda resource: None,
                lambda: world.now,
            ),
            self._changed,
            lambda: world.now,
            ReconcileTiming(grace=GRACE),
        )
        self._schedulers = ExternalUseKeeper(
            self.scheduled,
            self.ledger,
            self.plan,
            self.snapshot,
            self._changed,
            lambda: world.now,
            schedulers=registered(),
        )

    async def looks(self) -> None:
        """Take in what there is to see, and write the Device."""
        self.snapshot.set(self._world.snapshot)
        self.refresh()
        self.scheduled.pods.set(KnownPods.of(tuple(it.candidate for it in self._world.pods)))
        await self._schedulers.once()
        self.refresh()
        self._write()

    def refresh(self) -> None:
        offers = [Offer(VENDOR.name, (self._world.rule,))]
        self.plan.set(plan(offers, self.snapshot.value, before=self.plan.value, usage=self.ledger.usage()))

    @property
    def healthy(self) -> list[str]:
        """The IDs that the kubelet may give out, and those that it has given out."""
        resource = self.plan.value.get(self._world.rule.name)
        return (
            [it for card in resource.cards for it in (card if card.healthy else card.held)]
            if resource
            else []
        )

    def fresh_device(self) -> dict[str, Any] | None:
        there = self._world.device
        before = self.told or report_in(there)
        less = withheld(self.snapshot.value, self.plan.value)
        self.told = report(self.snapshot.value, before=before, withheld=less)
        assert self.told is not None
        return device("node", "uid", self.told, there, self._world.now)

    def _write(self) -> None:
        fresh = self.fresh_device()
        if fresh is not None:
            self._world.device = json.loads(json.dumps(fresh))

    def _scene(self) -> Scene:
        return Scene(
            self.plan.value,
            self.snapshot.value,
            topology(self.snapshot.value),
            {VENDOR.name: VENDOR},
            candidates=self.scheduled.pods.value,
            schedulers=registered(),
        )

    async def save(self, *, durable: bool) -> None:
        self._world.disk = sealed(SavedState(allocations=self.ledger.all()))

    async def _changed(self) -> None:
        await self.save(durable=False)

    async def _prepare(self, vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        return ()

    async def _release(self, vendor: str, mark: str) -> None:
        return

    async def _partitions(self, vendor: str) -> Sequence[Partition]:
        return ()


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.now = 1_700_000_000.0
        self.count = 0
        self.device: dict[str, Any] | None = {
            "metadata": {"name": "node", "labels": {"theirs": "yes"}},
            "spec": {"devices": [PORT]},
        }
        self.manager = Manager()
        self.pods: list[Pod] = []
        self.kept: list[Bound] = []
        #: The kubelet: what it gave out, and since when it is in this life.
        self.books: list[CheckpointEntry] = []
        self.life, self.registered = 1, self.now
        self.disk = b""
        #: Whether each request came from the pod that was to ask next.
        self.is_ordered = True
        self.snapshot = NodeSnapshot(
            (VendorStatus("nvidia", VendorState.OPEN),), tuple(map(card, range(CARDS)))
        )

    def teardown(self) -> None:
        self.loop.close()

    @initialize(
        serves=st.sampled_from(sorted(ASKED)),
        adapts=st.booleans(),
        numa=st.booleans(),
        kept=st.lists(st.integers(0, CARDS - 1), max_size=2, unique=True),
    )
    def starts(self, serves: str, adapts: bool, numa: bool, kept: Sequence[int]) -> None:
        self.serves = serves
        self.rule = TOKENS if serves == "shares" else WHOLE
        self.scheduler = Scheduler(adapts=adapts, numa=numa)
        self.kept = [reservation(it) for it in kept]
        self.agent = Agent(self)
        self.looks()

    def looks(self) -> None:
        self.now += 1
        self.loop.run(self.agent.looks())
        self.manager.sees(self.device)

    async def pod_resources(self) -> Pods:
        return {
            ("default", pod.name): {
                name: {it.resource: frozenset(it.ids)} for name, it in pod.answers.items()
            }
            for pod in self.pods
            if pod.answers
        }

    @property
    def booked(self) -> list[Bound]:
        return [*self.kept, *(it.bound for it in self.pods)]

    @property
    def well(self) -> list[str]:
        return [it.uuid for it in self.snapshot.devices if it.told_healthy]

    # Pods

    @rule(which=st.integers(0, 6))
    def a_pod_is_bound(self, which: int) -> None:
        choices = ASKED[self.serves]
        limits = choices[which % len(choices)]
        self.count += 1
        asking = Asking(f"pod-{self.count}", limits)
        there = {self.rule.name: len(self.agent.healthy), **self.manager.resources}
        try:
            bound = self.scheduler.bind(asking, self.device, self.booked, allocatable=there, now=self.now)
        except Unschedulable:
            assert not self.has_room(asking), f"{asking} finds no room in {self.device}"
            return
        containers = [PodContainer(f"c{n}", Asking("", (its,)).total) for n, its in enumerate(limits)]
        uid, said = f"uid-{self.count}", bound.annotations
        candidate = Candidate(
            uid, "default", asking.name, tuple(containers), said, self.now, scheduler="koord-scheduler"
        )
        assert candidate.annotations, "left to the kubelet, though the node has a Device"
        self.pods.append(Pod(uid, bound, candidate, waits=True))
        if not self.pods[-1].asks_us:
            self.pods[-1].waits = False
        self.looks()

    def has_room(self, asking: Asking) -> bool:
        """Whether there are whole cards for it that nothing of the book is on, none of that being broken."""
        book = booked(self.booked).get("gpu", {})
        free = [n for n, it in enumerate(self.snapshot.devices) if it.told_healthy]
        if not set(book) <= set(free):
            return False  # what is in use of a broken card is missing in the Node's sums
        wanted = sum(int(its.get(GPU, 0)) for its in asking.containers)
        return bool(wanted) and len([it for it in free if it not in book]) >= wanted

    @precondition(lambda self: any(it.waits for it in self.pods))
    @rule(data=st.data())
    def the_kubelet_admits(self, data: Any) -> None:
        waiting = [it for it in self.pods if it.waits]
        pod = waiting[0]
        if self.serves == UNORDERED:
            pod = data.draw(st.sampled_from(waiting), "admits")
        self.is_ordered &= pod is waiting[0]
        if self.loop.run(self.admitted(pod)):
            pod.waits = False
            if data.draw(st.booleans(), "looks"):
                self.loop.run(self.agent.reconciler.reconcile())
            self.looks()
        else:
            assert self.was_to_be_refused(pod), f"{pod.name} is refused"
            self.ends(pod)

    async def admitted(self, pod: Pod) -> bool:
        alive = {it.uid for it in self.pods if it.answers or it is pod}
        self.books = [it for it in self.books if it.pod_uid in alive]
        resource = self.rule.name
        for it in pod.candidate.containers:
            taken = {one for entry in self.books for one in entry.ids}
            free = [one for one in self.agent.healthy if one not in taken]
            count = it.limits[resource]
            if len(free) < count:
                return False
            await self.agent.askers.expect(resource, count)
            ids = self.agent.allocator.preferred(resource, free, [], count) or free[:count]
            assert len(ids) == count
            assert set(ids) <= set(free)
            await self.agent.askers.wait(resource, [ids])
            try:
                (answer,) = await self.agent.allocator.allocate(resource, [ids])
            except AllocationError:
                return False
            entry = CheckpointEntry(pod.uid, it.name, resource, tuple(ids), answer.edits)
            pod.answers[it.name] = entry
            self.books.append(entry)
        return True

    def was_to_be_refused(self, pod: Pod) -> bool:
        """Only for a card that failed after the scheduler chose it."""
        return not (self.is_ordered and set(pod.promised) <= set(self.well))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_ends(self, data: Any) -> None:
        self.ends(data.draw(st.sampled_from(self.pods), "ends"))

    def ends(self, pod: Pod) -> None:
        self.pods.remove(pod)
        self.is_ordered |= not self.pods
        self.looks()

    # Faults

    @rule(index=st.integers(0, CARDS - 1))
    def a_card_fails_or_is_back(self, index: int) -> None:
        its = list(self.snapshot.devices)
        its[index] = card(index, healthy=not its[index].told_healthy)
        self.snapshot = replace(self.snapshot, devices=tuple(its))
        self.looks()

    @rule()
    def the_agent_restarts(self) -> None:
        self.agent = Agent(self)
        self.looks()

    @rule()
    def the_kubelet_restarts(self) -> None:
        self.life += 1
        self.registered = self.now
        self.looks()

    @rule(seconds=st.sampled_from([1.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.loop.run(self.agent.reconciler.reconcile())
        self.looks()

    # What holds at any time

    @invariant()
    def the_device_says_all_that_the_scheduler_needs(self) -> None:
        if not hasattr(self, "agent"):
            return
        assert self.device is not None
        entries = self.device["spec"]["devices"]
        cards = [it for it in entries if it["type"] == "gpu"]
        assert [it for it in entries if it["type"] != "gpu"] == [PORT]
        assert self.device["metadata"]["labels"]["theirs"] == "yes"
        assert [_refused(json.dumps(it)) for it in cards] == [""] * CARDS
        assert {it["minor"]: (it["id"], it["health"]) for it in cards} == {
            n: (it.uuid, it.told_healthy) for n, it in enumerate(self.snapshot.devices)
        }
        for it in cards:
            assert it["resources"] == {CORE: "100", MEMORY: "48Gi", RATIO: "100"}
            assert it["topology"]["nodeID"] == it["minor"] // 4
        assert self.agent.fresh_device() is None, "the same is written anew"
        well = len(self.well)
        assert self.manager.resources.get(CORE, 0) == self.manager.resources.get(RATIO, 0) == 100 * well
        assert self.manager.resources.get(MEMORY, 0) == 48 * GIB * well

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        book = booked(self.booked).get("gpu", {})
        for used in book.values():
            assert used.get(CORE, 0) <= 100
            assert used[RATIO] <= 100
            assert used[MEMORY] <= 48 * GIB

    @invariant()
    def what_is_promised_is_what_containers_are_told_and_what_the_ledger_says(self) -> None:
        if not self.is_ordered:
            return
        for pod in self.pods:
            if pod.waits:
                continue
            if pod.asks_us:
                assert sorted(pod.cards) == sorted(pod.promised), pod.name
            assert sorted(self.of(pod)) == sorted(pod.promised), pod.name

    @invariant()
    def no_card_is_given_to_two(self) -> None:
        whole = [uuid for it in self.pods if it.answers and self.rule is WHOLE for uuid in it.cards]
        assert len(whole) == len(set(whole))
        external = {uuid for it in self.pods if not it.asks_us for uuid in it.promised}
        assert external.isdisjoint(whole)

    def of(self, pod: Pod) -> list[str]:
        """The pod's cards by the ledger."""
        known = self.agent.ledger.in_use()
        its = [it for it in known if (place := it.owner or it.claim) is not None and place.uid == pod.uid]
        return [uuid for it in its for uuid in dict.fromkeys(it.cards)]


def reservation(index: int) -> Bound:
    """A card that the scheduler keeps for a pod to come; of that the kubelet knows nothing."""
    resources = {CORE: "100", MEMORY: "48Gi", RATIO: "100"}
    said = {"gpu": [{"minor": index, "resources": resources, "id": f"GPU-{index:08x}"}]}
    return Bound(Asking(f"reservation-{index}", (share(100),)), {ALLOCATED: json.dumps(said)})


@cache
def _refused(entry: str) -> str:
    return refused(json.loads(entry))


def card(index: int, healthy: bool = True) -> DeviceStatus:
    """Two under a PCIe root, four of a NUMA node."""
    told_ = Device(
        f"GPU-{index:08x}",
        index,
        minor=index,
        pci=f"0000:{0x10 + index:02x}:00.0",
        numa=index // 4,
        memory=48 * GIB,
        model="NVIDIA A40",
        attributes={"pcie-root": f"pci0000:{0x10 + index // 2:02x}", "driver-version": "570.1"},
    )
    health = Health(State.HEALTHY) if healthy else Health(State.UNHEALTHY, "xid-79", "fell off the bus")
    return DeviceStatus("nvidia", told_, health, healthy)


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=settings().max_examples, stateful_step_count=30)

"""Ledger, checkpoint, allocator and reconciler against a model of a kubelet, its node and its mishaps.

Nothing that lives is released, no slice is taken from it, no ID is given twice; in the end the dead are over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.steps import Step

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.cell import Cell
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.devices.topology import Topology
from agent.core.errors import AllocationError, VendorError
from agent.core.model import Plan
from agent.core.reconciling.reconcile_evidence import Pods
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.reconciling.evidence_sources import EvidenceSources
from agent.daemon.reconciling.ledger_updates import LedgerUpdates
from agent.daemon.reconciling.reconcile_loop import Reconciler, ReconcileTiming
from agent.daemon.reconciling.recovery import Recovery
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint
from agent.kubelet.kubelet_errors import KubeletError
from agent.state.checkpoint import SavedState
from agent.state.file_envelope import opened, sealed
from agent.vendor_api.agent import ContainerEdits, Partition, Request, ResourceRule, Slices, Vendor
from core.values import GPU, node, status

GRACE, SETTLE, DOUBT_AGAIN = 60.0, 120.0, 300.0
IDS = ("a", "b", "c", "d")
CARDS = node(*(status(it, n) for n, it in enumerate(IDS)))
FOREIGN = Partition("theirs", "a")
VENDOR = Vendor("acme", "", GPU, lambda devices, request: ContainerEdits(), makes=Slices())
#: Where the agent dies during an Allocate.
STEPS = ("intent", "prepare", "prepared", "done")


class Killed(Exception):
    """The agent is dead: what it would do now, it does not do."""


@dataclass
class Pod:
    name: str
    uid: str
    #: Container to the allocation that was answered for it.
    answers: dict[str, CheckpointEntry] = field(default_factory=dict)
    alive: bool = True
    listed: bool = True


class Agent:
    """One life of the agent, between a disk, a kubelet and hardware of the machine."""

    def __init__(self, world: World, saved: bytes, *, rebooted: bool) -> None:
        self._world = world
        self.dies_at = ""
        self.dead = False
        allocations = opened(saved, SavedState).allocations if saved else ()
        self.ledger = Ledger(allocations, world.now)
        if rebooted:
            self.ledger.mark_rebooted()
        self.sources = EvidenceSources(
            world.checkpoint,
            world.pod_resources,
            self._partitions,
            world.cgroups,
            lambda: f"k{world.life}",
            world.is_settled,
        )
        self.allocator = Allocator(
            self._scene, self.ledger, self, lambda: world.now, self._prepare, self._release, self.sources
        )
        self.reconciler = Reconciler(
            self.ledger,
            self.sources,
            self.allocator,
            Recovery(self.ledger, self.sources, Cell[Plan](self._scene().plan), lambda: world.now),
            LedgerUpdates(
                self.ledger,
                self.allocator,
                lambda: [VENDOR],
                self._release,
                lambda resource: world.write(),
                lambda: world.now,
                DOUBT_AGAIN,
            ),
            self._changed,
            lambda: world.now,
            ReconcileTiming(grace=GRACE),
        )

    def _scene(self) -> Scene:
        planned = plan([Offer("acme", (ResourceRule(GPU),))], CARDS, usage=self.ledger.usage())
        return Scene(planned, CARDS, Topology(), {"acme": VENDOR})

    def healthy(self) -> Collection[str]:
        resource = self._scene().plan[GPU]
        return {it for card in resource.cards for it in (card if card.healthy else card.held)}

    async def save(self, *, durable: bool) -> None:
        self._die_at(self.ledger.all()[-1].state if self.ledger.all() else "")
        if not self.dead:
            self._world.saved.append(sealed(SavedState(allocations=self.ledger.all())))

    async def _changed(self) -> None:
        await self.save(durable=False)

    async def _prepare(self, vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        self._world.reachable()
        made = [Partition(f"{request.allocation}/{n}", it, request.allocation) for n, it in enumerate(uuids)]
        kept = [it for it in self._world.slices if it.allocation != request.allocation]
        self._world.slices = [*kept, *made]
        self._die_at("prepare")
        return made

    async def _release(self, vendor: str, mark: str) -> None:
        if self.dead:
            return
        self._world.reachable()
        assert mark not in self._world.living(), "a slice is taken from under a container"
        self._world.slices = [it for it in self._world.slices if it.allocation != mark]

    async def _partitions(self, vendor: str) -> Sequence[Partition]:
        self._world.reachable()
        return tuple(self._world.slices)

    def _die_at(self, step: str) -> None:
        """At a save, before it is on disk, but where the step comes after it."""
        if self.dies_at and step == self.dies_at and not self.dead:
            if step in ("intent", "prepared", "done"):
                self._world.saved.append(sealed(SavedState(allocations=self.ledger.all())))
            self.dead = True
            raise Killed


class World(RuleBasedStateMachine):
    """Frees devices late, writes that later, hides init containers, rejects pods half-way, forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Step()
        self.now = 1000.0
        self.count = 0
        self.pods: list[Pod] = []
        self.slices = [FOREIGN]
        self.vendor_away = False
        #: The kubelet: its books, what it wrote of them last (None: torn), and how far it has come.
        self.life = 1
        self.books: list[CheckpointEntry] = []
        self.disk: list[CheckpointEntry] | None = []
        self.written: list[list[CheckpointEntry]] = []
        self.knows_pods = True
        self.registered_since: float | None = 0.0
        #: Every state of our checkpoint so far, and whether the agent has not looked around since an old one.
        self.saved: list[bytes] = [b""]
        self.is_behind = False
        self.no_pod_resources = self.no_checkpoint = False
        #: What PodResources listed last: what has not changed is the same value again.
        self.listed: Pods = {}
        self.looks = False
        self.agent = Agent(self, b"", rebooted=False)

    def teardown(self) -> None:
        self.run.close()

    @initialize(lists_ended=st.booleans(), sees_cgroups=st.booleans())
    def version(self, lists_ended: bool, sees_cgroups: bool) -> None:
        self.lists_ended = lists_ended  # kubelets up to 1.33 do
        self.sees_cgroups = sees_cgroups

    # The kubelet, as the agent meets it

    def checkpoint(self, prove: bool) -> KubeletCheckpoint | None:
        if self.no_checkpoint or self.disk is None:
            raise KubeletError("torn")
        return KubeletCheckpoint(tuple(self.disk))

    async def pod_resources(self) -> Pods:
        if self.no_pod_resources:
            raise KubeletError("away")
        self.free_devices()
        kept = {(it.pod_uid, it.container): frozenset(it.ids) for it in self.books}
        listed = {
            ("default", pod.name): {
                name: {GPU: kept.get((pod.uid, name), frozenset())} for name in pod.answers if name != "setup"
            }
            for pod in self.pods
            if pod.listed and self.knows_pods
        }
        before = self.listed
        self.listed = {name: before[name] if before.get(name) == it else it for name, it in listed.items()}
        return self.listed

    def cgroups(self) -> frozenset[str] | None:
        return frozenset(pod.uid for pod in self.pods if pod.alive) if self.sees_cgroups else None

    def is_settled(self, life: str) -> bool:
        assert life == f"k{self.life}"
        return self.registered_since is not None and self.now - self.registered_since >= SETTLE

    def free_devices(self) -> None:
        """Done by List and by each admission, once the API server was heard."""
        if self.knows_pods:
            alive = {pod.uid for pod in self.pods if pod.alive}
            self.books = [it for it in self.books if it.pod_uid in alive]

    def write(self) -> None:
        self.disk = list(self.books)
        self.written.append(self.disk)

    def reachable(self) -> None:
        if self.vendor_away:
            raise VendorError("the driver is away")

    # Pods

    @precondition(lambda self: self.knows_pods and self.registered_since is not None and not self.is_behind)
    @rule(
        names=st.lists(st.sampled_from(["web-0", "web-1", "job"]), min_size=1, max_size=3),
        wants=st.lists(
            st.tuples(st.sampled_from(["main", "main", "setup", "side"]), st.sampled_from([1, 1, 1, 2])),
            min_size=1,
            max_size=3,
            unique_by=lambda it: it[0],
        ),
        rejected=st.sampled_from([False] * 4 + [True]),
        dies_at=st.sampled_from([""] * 12 + [*STEPS]),
        looks=st.booleans(),
    )
    def admit(
        self, names: list[str], wants: list[tuple[str, int]], rejected: bool, dies_at: str, looks: bool
    ) -> None:
        # PodResources names no pod of which a plain init container alone has devices.
        wants = sorted({"main": 1, **dict(wants)}.items(), key=lambda it: it[0] != "setup")
        self.agent.dies_at, self.looks = dies_at, looks
        for name in names:
            if not any(pod.name == name and (pod.alive or pod.listed) for pod in self.pods):
                self.admit_pod(name, wants, rejected)
        self.agent.dies_at = ""

    def admit_pod(self, name: str, wants: list[tuple[str, int]], rejected: bool) -> None:
        self.free_devices()
        self.count += 1
        pod = Pod(name, f"uid-{self.count}")
        self.pods.append(pod)
        pod.alive = pod.listed = self.allocate_all(pod, wants, not rejected) and not rejected
        if self.agent.dead:
            self.agent_restarts()

    def allocate_all(self, pod: Pod, wants: list[tuple[str, int]], writes: bool) -> bool:
        reusable: list[str] = []
        for container, count in wants:
            taken = {device_id for entry in self.books for device_id in entry.ids}
            free = [it for it in IDS if it not in taken and it in self.agent.healthy()]
            ids = (reusable + free)[:count]
            if len(ids) < count or not self.allocate(pod, container, ids):
                return False
            reusable = ids if container == "setup" else [it for it in reusable if it not in ids]
            if writes:
                self.write()
        return True

    def allocate(self, pod: Pod, container: str, ids: list[str]) -> bool:
        self.now += 1
        try:
            (answer,) = self.run(self.agent.allocator.allocate(GPU, [ids]))
        except (AllocationError, VendorError, Killed):
            return False
        entry = CheckpointEntry(pod.uid, container, GPU, tuple(ids), answer.edits)
        held = {
            it: one.uid for one in self.pods if one.alive for its in one.answers.values() for it in its.ids
        }
        assert {held.get(it, pod.uid) for it in ids} == {pod.uid}, "an ID is given to two pods"
        pod.answers[container] = entry
        if self.looks:
            self.reconcile()
        self.books.append(entry)
        return True

    @precondition(lambda self: any(pod.alive for pod in self.pods))
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        pod = data.draw(st.sampled_from([pod for pod in self.pods if pod.alive]), "ends")
        pod.alive = False
        pod.listed = self.lists_ended

    @rule()
    def delete_ended(self) -> None:
        for pod in self.pods:
            pod.listed = pod.alive

    @precondition(lambda self: self.knows_pods and not self.is_behind and not self.vendor_away)
    @rule()
    def containers_start_anew(self) -> None:
        """Of those that the kubelet still knows; others it refuses itself."""
        for pod in self.pods:
            for entry in pod.answers.values():
                if pod.alive and entry in self.books:
                    self.run(self.agent.allocator.pre_start(GPU, entry.ids))
                    assert mark(entry) in {it.allocation for it in self.slices}

    # Mishaps

    @rule(seconds=st.sampled_from([1.0, 30.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(away=st.booleans())
    def vendor(self, away: bool) -> None:
        self.vendor_away = away

    @rule(data=st.data())
    def mishap(self, data: Any) -> None:
        """One of several, so that more of a node's life is the life of pods."""
        kinds = [self.a_slice_is_lost, self.agent_restarts, self.kubelet_restarts]
        if self.disk is not None and not self.forgotten():
            kinds += [self.our_checkpoint_is_replaced_by_an_older_one, self.node_is_rebooted]
        data.draw(st.sampled_from(kinds), "mishap")(data)

    def a_slice_is_lost(self, data: Any) -> None:
        self.slices.remove(data.draw(st.sampled_from(self.slices), "is lost"))
        if FOREIGN not in self.slices:
            self.slices.append(FOREIGN)

    def agent_restarts(self, data: Any = None) -> None:
        self.begin_agent(self.saved[-1])

    def begin_agent(self, saved: bytes, *, rebooted: bool = False) -> None:
        self.agent = Agent(self, saved, rebooted=rebooted)
        if self.registered_since is not None:
            self.register()

    def our_checkpoint_is_replaced_by_an_older_one(self, data: Any) -> None:
        self.write()
        self.is_behind = True
        self.saved = self.saved[: data.draw(st.integers(1, len(self.saved)), "older")]
        self.begin_agent(self.saved[-1])

    def kubelet_restarts(self, data: Any) -> None:
        self.begin_kubelet(list(self.books) if self.disk is None else self.disk, data)

    def knows_all_that_live(self) -> bool:
        """Whether the agent has seen whose everything is: what nobody remembers is nobody's."""
        self.reconcile()
        its = [it for it in self.agent.ledger.in_use() if it.id in self.living()]
        return all(it.owner and it.owner.pod for it in its)

    @precondition(lambda self: self.living() and not self.forgotten())
    @precondition(lambda self: self.knows_pods and not self.is_behind)
    @rule(data=st.data())
    def kubelet_loses_its_memory(self, data: Any) -> None:
        """All of it, or what came after a backup of its file."""
        if self.knows_all_that_live():
            self.disk = data.draw(st.sampled_from([None, *self.written]), "its file")
            self.begin_kubelet(list(self.disk or ()), data)

    def begin_kubelet(self, books: list[CheckpointEntry], data: Any) -> None:
        self.life += 1
        self.books = books
        self.registered_since = None
        self.knows_pods = data.draw(st.sampled_from([True, True, False]), "the API server answers")
        # Two faults at once, an API server away and a lost memory, are seen through where cgroups are.
        self.knows_pods = self.knows_pods or bool(self.forgotten() and not self.sees_cgroups)
        if data.draw(st.sampled_from([True, True, False]), "registered at once"):
            self.register()

    def node_is_rebooted(self, data: Any) -> None:
        """It takes the slices, but not what is on disk; a pod is taken back as it was."""
        self.slices = [FOREIGN]
        self.kubelet_restarts(data)
        self.begin_agent(self.saved[-1], rebooted=True)

    @rule()
    def api_server_answers(self) -> None:
        self.knows_pods = True

    @precondition(lambda self: self.registered_since is None)
    @rule()
    def register(self) -> None:
        self.registered_since = self.now
        self.write()

    # The loop

    @rule(full=st.booleans(), no_pod_resources=st.booleans(), no_checkpoint=st.booleans())
    def reconcile(
        self, full: bool = True, no_pod_resources: bool = False, no_checkpoint: bool = False
    ) -> None:
        self.no_pod_resources, self.no_checkpoint = no_pod_resources, no_checkpoint
        self.run(self.agent.reconciler.reconcile(full=full))
        self.no_pod_resources = self.no_checkpoint = False
        if self.disk is not None and not no_checkpoint:
            self.is_behind = False

    @rule()
    def in_the_end_all_that_ended_is_over_and_all_that_lives_is_known(self) -> None:
        self.delete_ended()
        self.knows_pods, self.vendor_away = True, False
        if self.registered_since is None:
            self.register()
        self.now += SETTLE
        for _ in range(3):  # see; have the kubelet write and see again; what nobody owns is old by then
            self.now += max(GRACE, DOUBT_AGAIN)
            self.reconcile()

        assert self.in_use() == self.living()
        assert {it.allocation for it in self.slices} <= self.living() | {None}
        names = {mark(it): pod.name for pod in self.pods for it in pod.answers.values()}
        for it in self.agent.ledger.in_use():
            assert it.owner is not None
            assert it.owner.pod in ("", names[it.id])

    @invariant()
    def nothing_that_lives_is_released(self) -> None:
        assert self.is_behind or self.living() <= self.in_use()

    @invariant()
    def owners_are_true(self) -> None:
        answered = {mark(it): it for pod in self.pods for it in pod.answers.values()}
        names = {pod.uid: pod.name for pod in self.pods}
        for it in self.agent.ledger.all():
            if it.owner is not None and it.owner.uid:  # PodResources knows no uids
                assert (it.owner.uid, it.owner.container) == (
                    answered[it.id].pod_uid,
                    answered[it.id].container,
                )
                # One that has ended may bear the name of who has its IDs, until it is released.
                lives = it.id in self.living() and not self.lists_ended
                assert not lives or it.owner.pod in ("", names[it.owner.uid])

    @invariant()
    def foreign_slices_stay(self) -> None:
        assert FOREIGN in self.slices

    @invariant()
    def nothing_is_busy_between_two_calls(self) -> None:
        assert self.agent.allocator.busy == set()

    def living(self) -> set[str]:
        return {mark(it) for pod in self.pods if pod.alive for it in pod.answers.values()}

    def in_use(self) -> set[str]:
        return {it.id for it in self.agent.ledger.in_use()}

    def forgotten(self) -> set[str]:
        """Allocations of pods that live and that the kubelet knows no more."""
        return self.living() - {mark(it) for it in self.books}


def mark(entry: CheckpointEntry) -> str:
    return entry.edits.annotations[ALLOCATION]


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=5 * settings().max_examples, stateful_step_count=30)

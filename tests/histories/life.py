"""One life of the agent between a kubelet, cards and a disk that are a test's: all of it but the wires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from agent.cluster.pod_state import PodState
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.devices.inventory import Inventory
from agent.core.model import Allocation, AllocationSource, Command, Resource, VendorState, VendorStatus, Verb
from agent.core.reconciling.reconcile_evidence import Pods
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.external_use import ExternalUseKeeper
from agent.daemon.node_state import NodeState
from agent.daemon.reconciling.evidence_sources import EvidenceSources
from agent.daemon.reconciling.ledger_updates import LedgerUpdates
from agent.daemon.reconciling.reconcile_loop import Reconciler, ReconcileTiming
from agent.daemon.reconciling.recovery import Recovery
from agent.daemon.scheduler_plugins import registered
from agent.kubelet.decoded_checkpoint import DecodedCheckpoint
from agent.kubelet.kubelet_checkpoint import KubeletCheckpoint
from agent.kubelet.kubelet_errors import KubeletError
from agent.scheduler_api import Candidate
from agent.state.checkpoint import SavedState
from agent.state.file_envelope import opened, sealed
from agent.vendor_api.agent import ContainerEdits, Partition, Request, Sharing

from . import configs
from .cards import Cards
from .kubelet import Kubelet

#: Seconds: how long an allocation may go unconfirmed, a kubelet is not believed, and nothing is asked again.
GRACE, SETTLE, DOUBT_AGAIN = 60.0, 120.0, 300.0


class Killed(Exception):
    """The agent is dead: what it would do now, it does not do."""


class World(Protocol):
    """What an agent lives in."""

    now: float
    cards: Cards
    kubelet: Kubelet
    saved: list[bytes]

    def pod_resources(self) -> Pods: ...
    def running(self) -> frozenset[str] | None: ...
    def candidates(self) -> tuple[Candidate, ...]: ...


@dataclass
class Life:
    """`dies_at`: the state of the newest allocation at whose save the agent dies, before or after it."""

    world: World
    dies_at: str = ""
    dies_after: bool = False
    is_dead: bool = False
    registered: set[str] = field(default_factory=set)

    @property
    def vendor(self) -> str:
        return self.world.cards.vendor

    def begin(self, saved: bytes, *, rebooted: bool = False) -> None:
        """Read what lies on the disk."""
        known = opened(saved, SavedState) if saved else SavedState()
        self.ledger = Ledger(map(_loaded, known.allocations), self.world.now)
        if rebooted:
            self.ledger.mark_rebooted()
        self.inventory = Inventory(known.health, None, self.world.now, known.devices, known.cordons)
        self.scheduled = PodState(clock=self.clock, wall=self.clock, lists_after=0.0)
        self.scheduled.first.set(known.first)
        self.node = NodeState(self.inventory, self.ledger, self.clock, self.scheduled, registered())
        self.schedulers = ExternalUseKeeper(
            self.scheduled,
            self.ledger,
            self.node.plan,
            self.node.snapshot,
            self._changed,
            self.clock,
            schedulers=registered(),
        )
        self._decoded = DecodedCheckpoint()
        self.sources = EvidenceSources(
            self._checkpoint,
            self._pod_resources,
            self._partitions,
            lambda: self.world.running(),
            lambda: f"k{self.world.kubelet.life}",
            lambda life: self._is_settled(),
        )
        self.allocator = Allocator(
            self.node.scene,
            self.ledger,
            self,
            self.clock,
            self._prepare,
            self._release,
            self.sources,
            lambda: self.reconciler.make_room(),
        )
        self.recaller = Recovery(
            self.ledger, self.sources, self.node.plan, self.clock, self.node.answer_reader
        )
        self.reconciler = Reconciler(
            self.ledger,
            self.sources,
            self.allocator,
            self.recaller,
            LedgerUpdates(
                self.ledger,
                self.allocator,
                self.node.all_vendors,
                self._release,
                lambda resource: self.world.kubelet.write(),
                self.clock,
                DOUBT_AGAIN,
            ),
            self._changed,
            self.clock,
            ReconcileTiming(grace=GRACE, written_within=0.0),
        )

    def configure(self, text: str) -> None:
        _, wishes = configs.read(text)
        its = [it for it in wishes if it.vendor.name == self.vendor]
        status = VendorStatus(self.vendor, VendorState.STARTING)
        self.node.configure({it.vendor.name: it.vendor for it in its}, its, [status])

    def discover(self) -> None:
        self.node.discovered(self.vendor, self.world.cards.devices)

    def command(self, verb: Verb, card: str) -> None:
        """What an operator says of a card."""
        self.node.apply(Command(verb, card, "somebody"))

    async def kubelet_began(self) -> None:
        self.scheduled.pods.set(KnownPods.of(self.world.candidates()))
        self.scheduled.followed.set(True)
        await self.scheduled.kubelet_began(int(self.world.kubelet.began * 1e9))

    async def speak(self) -> None:
        """Register what is new, tell the kubelet of all that is served, leave what is no more."""
        self.scheduled.pods.set(KnownPods.of(self.world.candidates()))
        await self.schedulers.once()
        kubelet = self.world.kubelet
        while fresh := self.plan.keys() - self.registered:
            await self.reconciler.recover_at_start()  # which may have more planned
            self.registered |= fresh
        for name in self.registered & self.plan.keys():
            kubelet.hears(name, listed(self.plan[name]), self.world.now)
        for name in [*self.registered]:
            its = self.plan.get(name)
            if its is None or (its.retired and not its.cards):
                kubelet.lists.pop(name, None)
                self.registered.discard(name)
                self.node.ended(name)

    @property
    def plan(self) -> Mapping[str, Resource]:
        return self.node.plan.value

    def sharing(self, resource: str) -> Sharing:
        return self.plan[resource].rule.sharing

    def makes(self, resource: str) -> bool:
        return self.node.makes(self.plan[resource])

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerEdits:
        self.scheduled.pods.set(KnownPods.of(self.world.candidates()))
        (answer,) = await self.allocator.allocate(resource, [ids])
        lists = listed(self.plan[resource])
        if not all(lists.get(one) for one in ids):
            self.node.refresh()  # as the pass does that follows the kubelet's write: the IDs are listed then
        return answer.edits

    # What it is wired to

    def clock(self) -> float:
        return self.world.now

    async def save(self, *, durable: bool) -> None:
        its = self.ledger.all()
        dies = bool(self.dies_at) and bool(its) and its[-1].state == self.dies_at
        if self.is_dead or (dies and not self.dies_after):
            self._die()
        saved = SavedState(
            "",
            its,
            self.inventory.records(),
            self.inventory.remembered_devices(),
            self.inventory.cordons(),
            first=self.scheduled.first.value,
        )
        self.world.saved.append(sealed(saved))
        if dies:
            self._die()

    def _die(self) -> None:
        self.is_dead = True
        raise Killed

    async def _changed(self) -> None:
        self.node.refresh()
        await self.save(durable=False)

    def _checkpoint(self, prove: bool) -> KubeletCheckpoint | None:
        raw = self.world.kubelet.disk
        if not raw:
            return None
        try:
            self._decoded = self._decoded.next(raw).proven()
            return self._decoded.content
        except ValueError as exc:
            raise KubeletError("torn") from exc

    async def _pod_resources(self) -> Pods:
        return self.world.pod_resources()

    async def _partitions(self, vendor: str) -> Sequence[Partition]:
        return self.world.cards.partitions()

    async def _prepare(self, vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        if self.is_dead:
            raise Killed
        return self.world.cards.prepare(request, uuids)

    async def _release(self, vendor: str, mark: str) -> None:
        if self.is_dead:
            raise Killed
        self.world.cards.release(mark)

    def _is_settled(self) -> bool:
        since = self.world.kubelet.registered
        return since is not None and self.world.now - since >= SETTLE


def listed(resource: Resource) -> Mapping[str, bool]:
    """Each ID, and whether it is told healthy."""
    return {one: card.healthy or one in card.held for card in resource.cards for one in card}


def _loaded(it: Allocation) -> Allocation:
    """As the checkpoint's file gives an allocation of the agent before."""
    return replace(it, source=AllocationSource.CHECKPOINT) if it.source is AllocationSource.ALLOCATE else it

"""The composition root: builds the line from hardware to kubelet and owns every task of the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog

from agent.allocating import TimedAllocator
from agent.cdi import CdiDirectory
from agent.config import ConfigState
from agent.core.allocator import Allocator
from agent.core.cell import Cell
from agent.core.claims import Candidate
from agent.core.errors import NoSuchDevice, NotOnDisk
from agent.core.health import Timing
from agent.core.inventory import Inventory
from agent.core.ledger import Ledger
from agent.core.model import Word
from agent.core.vendor import Partition, Request, Vendor
from agent.core.view import Counters, View
from agent.evidence import Sources, running_pods
from agent.features import FeaturesFile
from agent.fleet import Fleet
from agent.isolation.supervisor import Deadlines, VendorProcess
from agent.kubelet import checkpoint as kubelet_checkpoint
from agent.kubelet.checkpoint import KubeletCheckpoint
from agent.kubelet.directory import KUBELET_CHECKPOINT, KubeletDirectory
from agent.kubelet.podresources import PodResources
from agent.kubelet.session import Intervals, sweep
from agent.node import Node
from agent.reconciler import Reconciler
from agent.sessions import Sessions
from agent.state.aside import SetAside
from agent.state.checkpoint import CheckpointFile, Saved, boot_id
from agent.state.lock import AgentLock
from agent.state.store import LedgerStore
from agent.version import version

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pace:
    """Every interval of the process, seconds; doubles run with small ones."""

    discover: float = 10.0
    reconcile: float = 30.0
    grace: float = 60.0
    #: Until the kubelet is asked again to write down what it knows of a pod that nobody shows.
    doubt_again: float = 300.0
    #: How long the same kubelet must have served before its word that pods are gone is taken.
    settle: float = 120.0
    standby: float = 0.1
    #: Between two saves of health, so that a storm of faults is a few writes.
    save: float = 0.1
    directory: float = 5.0
    #: Between two calls of PodResources, whose limit all its clients on the node share.
    pod_resources: float = 1.0
    #: Between two looks at the CDI specs and the labels on disk.
    specs: float = 60.0
    backoff: tuple[float, float] = (0.1, 30.0)
    #: Instead of what the config says.
    health: Timing | None = None
    session: Intervals = field(default_factory=Intervals)
    deadlines: Deadlines = field(default_factory=Deadlines)


def steady_clock() -> Callable[[], float]:
    """Unix time that never jumps: read once, then carried by the monotonic clock."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


class Agent:
    """One node's agent, from the lock to the last goodbye."""

    def __init__(
        self,
        config: Cell[ConfigState],
        node_name: str,
        pace: Pace | None = None,
        *,
        in_process: bool = False,
    ) -> None:
        self._config = config
        self._node_name = node_name
        self._pace = pace or Pace()
        self._in_process = in_process
        self._settings = config.value.config.agent
        self._lock = AgentLock(self._settings.state_dir / "agent.lock")
        self._standby = "starting"
        #: Whether this is the node's one agent, and whether the kubelet has taken a resource of it.
        self.serving = Cell(False)
        self.registered = Cell(False)
        #: The pods bound to this node; whoever hears of them sets it.
        self.pods: Cell[tuple[Candidate, ...]] = Cell(())
        self._line: Line | None = None

    async def run(self) -> None:
        """Serve until cancelled."""
        with self._lock:
            await self._take_lock()
            self._line = Line(
                self._config, self._pace, self.registered, self.pods, in_process=self._in_process
            )
            self._standby = ""
            self.serving.set(True)
            await self._line.run()

    async def _take_lock(self) -> None:
        """Be the node's one agent; a second one stands by, ready to take over."""
        while holder := self._lock.take():
            if holder != self._standby:
                log.info(
                    "standing by, another agent serves this node", lock=str(self._lock.path), holder=holder
                )
            self._standby = holder
            await anyio.sleep(self._pace.standby)

    async def told(self, word: Word) -> str:
        """An operator says something of a device; returns what came of it, which is on disk then.

        Raises:
            NoSuchDevice: No device is called so, or several are.
            NotOnDisk: It holds, and could not be written.
        """
        if self._line is None:
            raise NoSuchDevice(word.device, (), ())
        return await self._line.told(word)

    def view(self) -> View:
        """What is known now."""
        state = self._config.value
        base = View(
            node=self._node_name,
            version=version(),
            required_vendors=frozenset(
                name for name, it in state.config.vendors.items() if it.enabled is True
            ),
            config_source=state.source,
            config_error=state.error,
            config_awaited=state.waiting,
            standby=self._standby,
        )
        return self._line.seen(base) if self._line else base


class Line:
    """The line itself: hardware, rules, kubelet. Built once the lock is held: the checkpoint is ours then."""

    def __init__(
        self,
        config: Cell[ConfigState],
        pace: Pace,
        registered: Cell[bool],
        pods: Cell[tuple[Candidate, ...]],
        *,
        in_process: bool,
    ) -> None:
        settings = config.value.config.agent
        self._config = config
        self._pace = pace
        self._candidates = pods
        self._in_process = in_process
        clock = steady_clock()
        file = CheckpointFile(settings.state_dir / "checkpoint.json")
        saved, self._set_aside = file.load()
        if self._set_aside:
            _tell(self._set_aside)
        self._ledger = Ledger(saved.allocations, now=clock())
        inventory = _remembering(saved, pace.health or settings.health, clock())
        self._store = LedgerStore(file, self._ledger, inventory, replace(saved, boot_id=boot_id()))
        self._node = Node(inventory, self._ledger, clock)
        self._fleet = Fleet(self._node, self._start)
        self._directory = KubeletDirectory(settings.kubelet_dir, poll=pace.directory)
        self._pods = PodResources(settings.pod_resources_socket, min_interval=pace.pod_resources)
        sources = Sources(
            partial(_kubelets_checkpoint, settings.kubelet_dir / KUBELET_CHECKPOINT),
            self._pods.in_use,
            self._partitions,
            running_pods,
            lambda: str(self._directory.kubelet.value or ""),
            lambda: self._settled(clock()),
        )
        allocator = Allocator(
            self._node.scene, self._ledger, self._store, clock, self._prepare, self._release, sources
        )
        self._allocator = TimedAllocator(allocator, self._ledger)
        self._sessions = Sessions(
            self._node, self._allocator, self._directory, pace.session, clock, registered
        )
        self._cdi = CdiDirectory(settings.cdi_dir, self._node.specs, pace.specs)
        self._features = FeaturesFile(
            config, self._node.snapshot, lambda: self._node.vendors, time.time, pace.specs
        )
        self._reconciler = Reconciler(
            self._ledger,
            sources,
            allocator,
            self._node.plan,
            lambda: tuple(self._node.vendors.values()),
            self._release,
            self._sessions.repeat,
            self._reconciled,
            clock,
            every=pace.reconcile,
            grace=pace.grace,
            doubt_again=pace.doubt_again,
            rebooted=saved.boot_id != boot_id(),
        )

    def _start(self, vendor: Vendor, node: Node, memory_limit: int) -> VendorProcess:
        return VendorProcess(
            vendor,
            node,
            deadlines=self._pace.deadlines,
            discover_every=self._pace.discover,
            backoff=self._pace.backoff,
            in_process=self._in_process,
            memory_limit=memory_limit,
        )

    async def run(self) -> None:
        """Run every loop of the line; a bug in one ends all, nothing else does."""
        sweep(self._directory.path)
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            lambda: self._fleet.run(self._config),
            self._directory.run,
            self._sessions.run,
            self._let_time_pass,
            self._reconciler.run,
            lambda: self._reconciler.follow(self._directory.checkpoint),
            self._hear_of_pods,
            self._save_on_change,
            self._store.run,
            self._cdi.run,
            self._withhold_what_has_no_spec,
            self._features.run,
        ]
        try:
            async with anyio.create_task_group() as group:
                for loop in loops:
                    group.start_soon(loop)
        finally:
            # What changed since the last write may be a fault, which only its proof may end.
            with anyio.CancelScope(shield=True):
                await self._store.save(durable=False)

    async def told(self, word: Word) -> str:
        done = self._node.told(word)
        await self._store.save(durable=True)
        if self._store.error:
            raise NotOnDisk(done, self._store.error)
        return done

    def seen(self, base: View) -> View:
        """The view with everything the line knows."""
        return replace(
            base,
            snapshot=self._node.snapshot.value,
            processes={name: it.status for name, it in self._fleet.processes.items()},
            resources=self._node.plan.value,
            sessions={name: it.value for name, it in self._sessions.statuses.items()},
            allocations=self._ledger.all(),
            checkpoint_error=self._store.error,
            evidence_errors=self._reconciler.complaints,
            cdi_error=self._node.cdi_error,
            labels_error=self._features.error,
            complaints=self._node.complaints,
            counters=self._counters(),
            allocate_seconds={key: tuple(it) for key, it in self._allocator.seconds.items()},
        )

    def _counters(self) -> Counters:
        counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
            ("checkpoint_saves", ()): self._store.saves
        }
        if self._set_aside:
            counters["checkpoint_set_aside", (("why", self._set_aside.why),)] = 1
        for action, count in self._reconciler.actions.items():
            counters["reconcile_actions", (("action", action),)] = count
        for source, count in self._reconciler.unreadable.items():
            counters["evidence_unreadable", (("source", source),)] = count
        for name, process in self._fleet.processes.items():
            counters["vendor_restarts", (("vendor", name),)] = process.restarts
        for name, stats in self._sessions.stats.items():
            for field_ in fields(stats):
                counters[f"plugin_{field_.name}", (("resource", name),)] = getattr(stats, field_.name)
        return counters

    async def _prepare(self, vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        made: Sequence[Partition] = await self._fleet.call(vendor, "prepare", request, tuple(uuids))
        return made

    async def _release(self, vendor: str, allocation: str) -> None:
        await self._fleet.call(vendor, "release", allocation)

    async def _let_time_pass(self) -> None:
        """Wake when patience ends, and now and then for what is forgotten slowly."""
        while True:
            deadline = self._node.seconds_to_deadline()
            with anyio.move_on_after(self._pace.discover if deadline is None else deadline + 0.001):
                await self._node.snapshot.changed()
            self._node.tick()

    async def _partitions(self, vendor: str) -> Sequence[Partition]:
        found: Sequence[Partition] = await self._fleet.call(vendor, "partitions")
        return found

    async def _reconciled(self) -> None:
        self._node.refresh()
        await self._store.save(durable=False)

    async def _save_on_change(self) -> None:
        """Faults outlive the process, and so do the proofs that one is over, and who was where."""
        async for _ in self._node.memory.watch():
            await self._store.save(durable=False)
            await anyio.sleep(self._pace.save)

    async def _hear_of_pods(self) -> None:
        async for pods in self._candidates.watch():
            self._node.candidates = pods

    async def _withhold_what_has_no_spec(self) -> None:
        async for errors in self._cdi.errors.watch():
            self._node.unwritten(errors)

    def _settled(self, now: float) -> bool:
        since = self._sessions.registered_since
        return since is not None and now - since >= self._pace.settle


def _kubelets_checkpoint(path: Path, prove: bool) -> KubeletCheckpoint | None:
    """None where there is no file: the kubelet writes one at the first list that it receives."""
    return kubelet_checkpoint.read(path, prove=prove) if path.exists() else None


def _tell(it: SetAside) -> None:
    log.error(
        "checkpoint set aside",
        reason="CheckpointSetAside",
        message=it.message,
        path=str(it.path),
        aside=it.aside,
    )


def _remembering(saved: Saved, timing: Timing, now: float) -> Inventory:
    inventory = Inventory(saved.health, timing, now, saved.devices, saved.cordons)
    if saved.boot_id != boot_id():
        inventory.rebooted(now)
    return inventory

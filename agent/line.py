"""The line from hardware to kubelet: builds its parts, joins them, and owns every loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields, replace
from typing import Any

import anyio
import structlog

from agent.allocating import TimedAllocator
from agent.cdi import CdiDirectory
from agent.config import ConfigState
from agent.core.allocator import Allocator
from agent.core.attribution import places
from agent.core.cell import Cell
from agent.core.claims import Candidate
from agent.core.errors import NotOnDisk
from agent.core.health import Timing
from agent.core.inventory import Inventory
from agent.core.labels import Wanted
from agent.core.ledger import Ledger
from agent.core.model import Command
from agent.core.vendor import Partition, Request, Vendor
from agent.core.view import Counters, View
from agent.evidence import Sources, running_pods
from agent.features import FeaturesFile
from agent.fleet import Fleet
from agent.isolation.supervisor import VendorProcess
from agent.kubelet import checkpoint as kubelet_checkpoint
from agent.kubelet.directory import KUBELET_CHECKPOINT, KubeletDirectory
from agent.kubelet.podresources import PodResources
from agent.kubelet.session import sweep
from agent.labelling import Labelling
from agent.node import Node
from agent.notices import Refusals
from agent.pace import Pace
from agent.recaller import Recaller
from agent.reconciler import Reconciler
from agent.sessions import Sessions
from agent.state.aside import SetAside
from agent.state.checkpoint import CHECKPOINT, CheckpointFile, Saved, boot_id
from agent.state.remains import NAME as REMAINS
from agent.state.remains import Remains
from agent.state.store import LedgerStore
from agent.strangers import Strangers

log = structlog.get_logger()


def steady_clock() -> Callable[[], float]:
    """Unix time that never jumps: read once, then carried by the monotonic clock."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


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
        api: bool = True,
    ) -> None:
        """`api`: whether there is an API server to tell things to."""
        settings = config.value.config.agent
        self._config = config
        self._pace = pace
        self._in_process = in_process
        clock = steady_clock()
        file = CheckpointFile(settings.state_dir / CHECKPOINT)
        saved, self._set_aside = file.load()
        if self._set_aside:
            _tell(self._set_aside)
        self._ledger = Ledger(saved.allocations, now=clock())
        if saved.boot_id != boot_id():
            self._ledger.rebooted()
        inventory = _remembering(saved, pace.health or settings.health, clock())
        self._store = LedgerStore(file, self._ledger, inventory, replace(saved, boot_id=boot_id()))
        self._node = Node(inventory, self._ledger, clock, pods)
        self._fleet = Fleet(self._node, self._start)
        self._directory = KubeletDirectory(settings.kubelet_dir, poll=pace.directory)
        self._pods = PodResources(settings.pod_resources_socket, min_interval=pace.pod_resources)
        kubelets_file = settings.kubelet_dir / KUBELET_CHECKPOINT
        sources = Sources(
            lambda prove: kubelet_checkpoint.read(kubelets_file, prove=prove),
            self._pods.in_use,
            self._partitions,
            running_pods,
            lambda: str(self._directory.kubelet.value or ""),
            lambda: self._settled(clock()),
            pods_at_once=PodResources(settings.pod_resources_socket, min_interval=pace.pods_at_once).in_use,
        )
        allocator = Allocator(
            self._node.scene, self._ledger, self._store, clock, self._prepare, self._release, sources
        )
        self._refusals = Refusals(
            lambda: pods.value, lambda resource: places(self._ledger.in_use(), resource), pace.whose
        )
        self._allocator = TimedAllocator(allocator, self._ledger, self._refused)
        self._sessions = Sessions(
            self._node, self._allocator, self._directory, pace.session, clock, registered
        )
        remains = Remains(settings.state_dir / REMAINS)
        self._cdi = CdiDirectory(settings.cdi_dir, self._node.specs, pace.specs, note=remains.note)
        self._labelling = Labelling(
            config, self._node.snapshot, lambda: self._node.vendors, time.time, api=api
        )
        self._features = FeaturesFile(self._labelling.wanted, pace.specs, note=remains.note)
        self._strangers = Strangers(
            lambda: kubelet_checkpoint.read(kubelets_file, prove=False),
            self._node.plan,
            lambda: [name for name, it in self._sessions.statuses.items() if it.value.state == "registered"],
            pace.sure,
        )
        self._recaller = Recaller(self._ledger, sources, self._node.plan, clock)
        self._reconciler = Reconciler(
            self._ledger,
            sources,
            allocator,
            self._recaller,
            lambda: tuple(self._node.vendors.values()),
            self._release,
            self._sessions.repeat,
            self._reconciled,
            clock,
            every=settings.reconcile.interval if pace.reconcile is None else pace.reconcile,
            grace=settings.reconcile.grace if pace.grace is None else pace.grace,
            doubt_again=pace.doubt_again,
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
            lambda: self._strangers.run(self._directory.checkpoint),
            self._save_on_change,
            self._store.run,
            self._cdi.run,
            self._withhold_what_has_no_spec,
            self._labelling.run,
            self._features.run,
            self._remember_config,
        ]
        try:
            async with anyio.create_task_group() as group:
                for loop in loops:
                    group.start_soon(loop)
        finally:
            # What changed since the last write may be a fault, which only its proof may end.
            with anyio.CancelScope(shield=True):
                await self._store.save(durable=False)

    @property
    def wanted_labels(self) -> Cell[Wanted | None]:
        """The labels that the API server is to be told; None while nobody knows."""
        return self._labelling.wanted

    async def apply(self, command: Command) -> str:
        done = self._node.apply(command)
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
            set_aside=self._set_aside.message if self._set_aside else "",
            rebuilt=self._recaller.is_done,
            strangers=self._strangers.found,
            refusals=self._refusals.last,
            swaps=self._allocator.swaps,
            evidence_errors=self._reconciler.complaints,
            cdi_error=self._node.cdi_error,
            labels_error="; ".join(it for it in (self._labelling.error, self._features.error) if it),
            complaints=self._node.complaints,
            counters=self._counters(),
            allocate_seconds={key: tuple(it) for key, it in self._allocator.seconds.items()},
            pre_start_seconds={key: tuple(it) for key, it in self._allocator.pre_start_seconds.items()},
        )

    def _refused(self, resource: str, containers: Sequence[Sequence[str]], text: str) -> None:
        self._refusals.add(resource, containers, text)
        self._reconciler.look_again()

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

    async def _remember_config(self) -> None:
        """What chose the config is known at the next start, too, whether the API server is there or not."""
        async for state in self._config.watch():
            if not state.waiting:
                await self._store.remember(state.labels, state.name)

    async def _withhold_what_has_no_spec(self) -> None:
        async for errors in self._cdi.errors.watch():
            self._node.unwritten(errors)

    def _settled(self, now: float) -> bool:
        since = self._sessions.registered_since
        return since is not None and now - since >= self._pace.settle


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

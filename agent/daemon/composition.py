"""The line from hardware to kubelet: builds its parts, joins them, and owns every loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import structlog

from agent.cluster.pod_state import PodState
from agent.config import AgentSettings, Config, ConfigState
from agent.core.allocation.placement_mismatch import MismatchNotices
from agent.core.allocation.pod_attribution import places
from agent.core.allocation.reconcile_evidence import FOREIGN
from agent.core.allocation.refused_requests import RefusedAllocate
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.errors import NotOnDisk
from agent.core.model import Command
from agent.core.publishing.agent_status import AgentStatus, Counters
from agent.daemon import scheduler_plugins
from agent.daemon.allocation.allocate_calls import TimedAllocator
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.allocation.pod_waiter import PodWaiter
from agent.daemon.external_use import ExternalUseKeeper
from agent.daemon.intervals import Intervals
from agent.daemon.node_state import NodeState
from agent.daemon.notice_source import RecentRefusals
from agent.daemon.publisher import Publisher
from agent.daemon.reconciling.evidence_sources import EvidenceSources, running_pods
from agent.daemon.reconciling.reconcile_loop import Reconciler
from agent.daemon.reconciling.recovery import Recovery
from agent.daemon.registration.other_plugin_resources import Beside
from agent.daemon.registration.other_plugins import Rivals
from agent.daemon.registration.renewals import Renewals
from agent.daemon.registration.sessions import Sessions
from agent.daemon.registration.takeovers import Strangers
from agent.daemon.registration.wait_for_pods import PodSync
from agent.daemon.vendors_in_service import VendorsInService
from agent.host.cdi_directory import CdiDirectory
from agent.isolation import container_memory, descendants
from agent.isolation.process_memory import MemoryLimit
from agent.isolation.supervisor import VendorProcess
from agent.kubelet import kubelet_checkpoint
from agent.kubelet.directory import (
    KUBELET_CHECKPOINT,
    KUBELET_SOCKET,
    KubeletDirectory,
    identify_socket,
)
from agent.kubelet.plugin_sockets import is_served
from agent.kubelet.pod_resources import PodResources
from agent.kubelet.registration import RegistrationGate, sweep
from agent.scheduler_api import AnnotationFilter
from agent.state import vendor_directories
from agent.state.last_config import LastConfigKeeper, last_config
from agent.state.recalled_state import recalled
from agent.state.uninstall_record import NAME as REMAINS
from agent.state.uninstall_record import UninstallRecord
from agent.vendor_api.agent import Partition, Request, Vendor

log = structlog.get_logger()


def steady_clock() -> Callable[[], float]:
    """Unix time that never jumps: read once, then carried by the monotonic clock."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


def required_vendors(config: Config) -> frozenset[str]:
    """The vendors that the config names outright."""
    return frozenset(name for name, it in config.vendors.items() if it.enabled is True)


class Composition:
    """The line itself: hardware, rules, kubelet. Built once the lock is held: the checkpoint is ours then."""

    def __init__(
        self,
        config: Cell[ConfigState],
        settings: AgentSettings,
        pace: Intervals,
        registered: Cell[bool],
        scheduled: PodState,
        *,
        in_process: bool,
        api: bool = True,
        is_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        """`settings` are the agent's own; `api`: whether there is an API server to tell things to.

        `is_ours`: whether no other agent holds the kubelet's directory that is there now.
        """
        clock = steady_clock()
        self._config = config
        self._scheduled = scheduled
        self._pace = pace
        self._in_process = in_process
        self._state_dir = settings.state_dir

        # What is known from before, and the hardware that is there now.
        memory = recalled(settings, pace.health or settings.health, clock)
        self._ledger, self._store, self._set_aside = memory.ledger, memory.store, memory.set_aside
        scheduled.first.set(memory.first)
        scheduler_plugins.log_left_out()
        schedulers = scheduler_plugins.registered()
        self._node = NodeState(memory.inventory, self._ledger, clock, scheduled, schedulers)
        self._pods = PodSync(self._node.plan, scheduled, pace.pods_known)
        self._fleet = VendorsInService(self._node, self._start, container_memory.memory_limit())

        # What the kubelet says, by its files and its socket.
        self._directory = KubeletDirectory(settings.kubelet_dir, poll=pace.directory, is_ours=is_ours)
        read = partial(kubelet_checkpoint.read, settings.kubelet_dir / KUBELET_CHECKPOINT)
        lister = PodResources(settings.pod_resources_socket, min_interval=pace.pod_resources)
        sources = EvidenceSources(
            lambda prove: read(prove=prove),
            lister.in_use,
            self._partitions,
            running_pods,
            self._kubelet_life,
            lambda life: self._settled(life, clock()),
            pods_at_once=PodResources(settings.pod_resources_socket, min_interval=pace.pods_at_once).in_use,
        )

        # What the kubelet is answered, and over which sessions.
        self._refusals = RecentRefusals(
            lambda: scheduled.candidates,
            lambda resource: places(self._ledger.in_use(), resource, scheduled.candidates),
            pace.whose,
        )
        allocator = Allocator(
            self._node.scene,
            self._ledger,
            self._store,
            clock,
            self._prepare,
            self._release,
            sources,
            lambda: self._reconciler.make_room(),
        )
        self._unheeded = MismatchNotices(lambda: allocator.promises, lambda: allocator.started)
        self._schedulers = ExternalUseKeeper(
            scheduled,
            self._ledger,
            self._node.plan,
            self._node.snapshot,
            self._reconciled,
            clock,
            keys=self._node.locks,
            moved=self._unheeded.moved,
            schedulers=self._node.schedulers,
        )
        self._allocator = TimedAllocator(
            allocator,
            self._refused,
            self._schedulers.look_again,
            PodWaiter(self._node.plan, lambda: allocator.promises, scheduled),
        )
        self._beside = Beside(
            lambda name: self._node.ties.former(name),
            self._node.plan,
            lambda: self._sessions.registrations(),
            lambda: read(prove=False),
            lister.allocatable,
            pace.rivals,
        )
        self._rivals = Rivals(
            lambda: self._node.vendors.values(),
            self._directory.neighbours,
            lambda it: is_served(self._directory.path / it.name),
            self._yields,
            lambda: {**self._left_behind(), **self._beside.found},
            pace.rivals,
            pace.rival_gone,
        )
        self._sessions = Sessions(
            self._node,
            self._allocator,
            self._directory,
            pace.session,
            clock,
            registered,
            RegistrationGate(
                self._rivals.closed,
                self._rivals.changes,
                self._before_registration,
            ),
        )
        self._renewals = Renewals(
            self._sessions.registrations,
            lambda: self._sessions.statuses,
            lister.allocatable,
            self._directory.neighbours,
            lambda it: is_served(self._directory.path / it.name),
            self._sessions.renew,
            pace.renewals,
            pace.missed,
        )
        self._strangers = Strangers(
            lambda: read(prove=False),
            self._node.plan,
            self._sessions.registrations,
            self._renewals.in_force,
            pace.sure,
        )

        # What follows from what the kubelet and the hardware say of allocations.
        self._recaller = Recovery(self._ledger, sources, self._node.plan, clock, lambda: self._node.ties)
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

        # What lies on disk for the next start, and for others.
        self._keeping = LastConfigKeeper(last_config(settings.state_dir), config)
        #: For the whole process: two lists in one file would lose each other's entries.
        self.remains = UninstallRecord(settings.state_dir / REMAINS)
        self._cdi = CdiDirectory(settings.cdi_dir, self._node.specs, pace.specs, note=self.remains.note)
        self.told = Publisher(
            config,
            self._node,
            self._ledger,
            scheduled,
            self._fleet.reads,
            self.remains,
            specs=pace.specs,
            infos=pace.infos,
            api=api,
        )

    def _start(
        self, vendor: Vendor, node: NodeState, memory_limit: Callable[[], MemoryLimit]
    ) -> VendorProcess:
        return VendorProcess(
            vendor,
            node,
            deadlines=self._pace.deadlines,
            discover_every=self._pace.discover,
            backoff=self._pace.backoff,
            in_process=self._in_process,
            memory_limit=memory_limit,
            directory=vendor_directories.of(self._state_dir, vendor.name),
        )

    async def run(self) -> None:
        """Run every loop of the line; a bug in one ends all, nothing else does."""
        sweep(self._directory.path)
        if left := descendants.end_of_the_dead():
            log.warning("processes that a vendor's library left behind are ended", ended=left)
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            partial(self._fleet.run, self._config),
            self._directory.run,
            self._sessions.run,
            self._let_time_pass,
            self._reconciler.run,
            partial(self._reconciler.follow, self._directory.checkpoint),
            partial(self._reconciler.follow_lives, self._directory.kubelet),
            partial(self._strangers.run, self._directory.checkpoint),
            self._renewals.run,
            partial(self._beside.run, self._directory.checkpoint),
            self._rivals.run,
            self._save_on_change,
            self._schedulers.run,
            self._hear_of_kubelets,
            self._pods.run,
            self._store.run,
            self._cdi.run,
            self._withhold_what_has_no_spec,
            self.told.run,
            self._remember_config,
            self._remember_whom_the_kubelet_found,
            self._keeping.run,
        ]
        try:
            async with anyio.create_task_group() as group:
                for loop in loops:
                    group.start_soon(for_ever, loop)
        finally:
            # What changed since the last write may be a fault, which only its proof may end.
            with anyio.CancelScope(shield=True):
                await self._save(last=True)

    async def write_again(self) -> None:
        """Write what lies in the state directory, which was made anew."""
        for name in self._fleet.processes:
            vendor_directories.of(self._state_dir, name)
        await anyio.to_thread.run_sync(self.remains.write_again, abandon_on_cancel=True)
        await self._keeping.write_again()
        await self._save()

    @property
    def reads(self) -> Cell[AnnotationFilter]:
        """How the keys begin of the pods' annotations that are read here."""
        return self._fleet.reads

    async def apply(self, command: Command) -> str:
        done = self._node.apply(command)
        await self._store.save(durable=True)
        if self._store.error:
            raise NotOnDisk(done, self._store.error)
        return done

    def seen(self, view: AgentStatus) -> AgentStatus:
        """The view with everything the line knows."""
        return replace(
            self.told.seen(view),
            snapshot=self._node.snapshot.value,
            allocations=self._ledger.all(),
            vendors=self._node.vendors,
            pods=self._scheduled.candidates,
            schedulers=self._node.schedulers,
            strangers=self._others,
            processes={name: it.status for name, it in self._fleet.processes.items()},
            foreign_slices=self._reconciler.foreign,
            resources=self._node.plan.value,
            sessions={name: it.value for name, it in self._sessions.statuses.items()},
            checkpoint_error=self._store.error,
            evidence_errors=self._reconciler.complaints,
            cdi_error=self._node.cdi_error,
            pods_unseen=self._scheduled.unseen,
            unheeded=self._unheeded.found,
            unknown_cards=tuple(self._recaller.unfit.values()),
            complaints=self._node.complaints,
            doubts=self._node.doubts,
            waits=self._node.waits,
            kept_units=self._node.kept_units,
            labels_awaited=self._config.value.labels_awaited,
            set_aside=self._set_aside.message if self._set_aside else "",
            rebuilt=self._recaller.is_done,
            read_back=self._reconciler.actions["recall"],
            refusals=self._refusals.last,
            swaps=self._allocator.swaps,
            starts_refused=self._allocator.starts_refused,
            stale_locks=self._scheduled.locks.stale,
            counters=self._counters(),
            allocate_seconds={key: tuple(it) for key, it in self._allocator.seconds.items()},
            pre_start_seconds={key: tuple(it) for key, it in self._allocator.pre_start_seconds.items()},
        )

    async def _before_registration(self, resource: str) -> None:
        await self._pods.before(resource)
        await self._beside.look()
        await self._reconciler.take_back()

    def _yields(self, vendor: str) -> bool:
        """Whether the config leaves a vendor's cards to other plugins."""
        return self._config.value.config.vendor(vendor).foreign == "yield"

    def _left_behind(self) -> Mapping[str, str]:
        """Vendor to a resource of which a pod of another plugin has cards that are not here."""
        theirs = ((of, it) for of, it in self._recaller.unfit.values() if it.allocation.startswith(FOREIGN))
        return {of: it.resource for of, it in theirs if of and self._yields(of)}

    @property
    def _others(self) -> Mapping[str, str]:
        """Resource to another plugin that serves it, or its cards."""
        plan, rivals = self._node.plan.value, self._rivals.found
        beside = {name: rivals[it.vendor] for name, it in plan.items() if it.vendor in rivals}
        return {**beside, **self._strangers.found}

    def _refused(self, refused: RefusedAllocate) -> None:
        self._refusals.add(refused)
        self._reconciler.look_again()

    def _counters(self) -> Counters:
        counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
            ("reconcile_actions", (("action", action),)): count
            for action, count in self._reconciler.actions.items()
        }
        counters["checkpoint_saves", ()] = self._store.saves
        counters["device_infos_writes", ()] = self.told.infos_writes
        if self._set_aside:
            counters["checkpoint_set_aside", (("why", self._set_aside.why),)] = 1
        for source, count in self._reconciler.unreadable.items():
            counters["evidence_unreadable", (("source", source),)] = count
        for name, process in self._fleet.processes.items():
            counters["vendor_restarts", (("vendor", name),)] = process.restarts
        for name, stats in self._sessions.stats.items():
            for field_ in fields(stats):
                counters[f"plugin_{field_.name}", (("resource", name),)] = getattr(stats, field_.name)
        return counters

    async def _prepare(self, vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        """Have it made, and all that its container needs to start."""
        made: Sequence[Partition] = await self._fleet.call(vendor, "prepare", request, tuple(uuids))
        await self._cdi.settle(vendor)
        return made

    async def _release(self, vendor: str, allocation: str) -> None:
        await self._fleet.call(vendor, "release", allocation)

    async def _hear_of_kubelets(self) -> None:
        async for kubelet in self._directory.kubelet.watch():
            if kubelet is not None:
                await self._scheduled.kubelet_began(kubelet.changed_ns)

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
        await self._save()

    async def _save(self, *, last: bool = False) -> None:
        """Write the checkpoint. An agent that waits for its first good config leaves the file as it is."""
        if not self._config.value.waiting:
            await self._store.save(durable=False, last=last)

    async def _save_on_change(self) -> None:
        """Faults outlive the process, and so do the proofs that one is over, and who was where."""
        while self._config.value.waiting:
            await self._config.changed()
        async for _ in self._node.memory.watch():
            await self._store.save(durable=False)
            await anyio.sleep(self._pace.save)

    async def _remember_config(self) -> None:
        """What chose the config is known at the next start, too, whether the API server is there or not."""
        async for state in self._config.watch():
            if not state.waiting:
                await self._store.remember(state.labels, state.name)

    async def _remember_whom_the_kubelet_found(self) -> None:
        while self._config.value.waiting:
            await self._config.changed()
        async for first in self._scheduled.first.watch():
            await self._store.remember_first(first)

    async def _withhold_what_has_no_spec(self) -> None:
        async for errors in self._cdi.errors.watch():
            self._node.unwritten(errors)

    def _kubelet_life(self) -> str:
        """Looked up now: one that has just begun must not be taken for the one before."""
        return str(identify_socket(self._directory.path / KUBELET_SOCKET) or "")

    def _settled(self, life: str, now: float) -> bool:
        since = self._sessions.registered_since(life)
        return since is not None and now - since >= self._pace.settle

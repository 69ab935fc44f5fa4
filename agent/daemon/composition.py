"""Builds all parts of an agent that serves, from the hardware to the API server, and runs their loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from agent.cluster.pod_state import PodState
from agent.config import AgentSettings, ConfigState
from agent.core.attribution.refused_requests import RefusedAllocate
from agent.core.attribution.scheduler_promises import Promises
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.errors import NotOnDisk
from agent.core.model import Command
from agent.core.placement.placement_mismatch import MismatchNotices
from agent.daemon import scheduler_plugins
from agent.daemon.agent_timing import AgentTiming
from agent.daemon.allocation.allocate_calls import AllocateCalls
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.allocation.pod_waiter import PodWaiter
from agent.daemon.early_processes import EarlyProcesses
from agent.daemon.event_notice_source import RecentRefusals
from agent.daemon.external_use import ExternalUseKeeper
from agent.daemon.node_lock_keeper import NodeLockKeeper
from agent.daemon.node_state import NodeState
from agent.daemon.publishing.publisher import Publisher
from agent.daemon.reconciling.evidence_sources import EvidenceSources, running_pods
from agent.daemon.reconciling.ledger_updates import LedgerUpdates
from agent.daemon.reconciling.reconcile_loop import Reconciler, ReconcileTiming
from agent.daemon.reconciling.recovery import Recovery
from agent.daemon.registration.other_device_plugins import OtherPlugins
from agent.daemon.registration.renewals import Renewals
from agent.daemon.registration.sessions import Sessions
from agent.daemon.registration.wait_for_pods import PodSync
from agent.daemon.save_triggers import StateSaver
from agent.daemon.usage_switch import UsageSwitch
from agent.daemon.vendor_hardware import VendorHardware
from agent.daemon.vendors_in_service import VendorsInService
from agent.host.cdi_directory import CdiDirectory
from agent.isolation import agent_memory_limit
from agent.isolation.vendor_memory_limit import MemoryLimit
from agent.isolation.vendor_supervisor import ProcessTiming, VendorSupervisor
from agent.kubelet.kubelet_directory import KubeletDirectory
from agent.kubelet.kubelet_view import KubeletView
from agent.kubelet.plugin_sockets import sweep
from agent.kubelet.pod_resources import PodResources
from agent.kubelet.registration_gate import RegistrationGate
from agent.state import uninstall_record, vendor_directories
from agent.state.last_config_file import LastConfigKeeper, last_config
from agent.state.recalled_state import recalled
from agent.state.uninstall_record import UninstallRecord
from agent.vendor_api.agent import Vendor


def steady_clock() -> Callable[[], float]:
    """Unix time that never jumps: read once, then carried by the monotonic clock."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


class Composition:
    """All parts of an agent that serves.

    It is built once the lock of the node is held: only then may the checkpoint be read for this agent.
    """

    def __init__(
        self,
        config: Cell[ConfigState],
        settings: AgentSettings,
        timing: AgentTiming,
        registered: Cell[bool],
        pod_state: PodState,
        *,
        in_process: bool,
        api: bool = True,
        holds_directory_lock: Callable[[], bool] = lambda: True,
    ) -> None:
        """`settings` are the agent's own, as of its start. `registered` is set at the first registration.

        `in_process`: vendors' backends run in this process, for tests. `api`: there is an API server.
        `holds_directory_lock`: whether no other agent holds the kubelet's directory that is at the path now.
        """
        self.config = config
        self.pod_state = pod_state
        self._settings = settings
        self._timing = timing
        self._in_process = in_process
        self._clock = steady_clock()
        #: One record for the whole process: two would lose each other's entries in the file.
        self.uninstall_record = UninstallRecord(settings.state_dir / uninstall_record.NAME)
        self._build_state()
        self._build_hardware()
        self._build_kubelet(registered, holds_directory_lock)
        self._build_allocations()
        self.publisher = Publisher(
            config,
            self.node,
            self.ledger,
            pod_state,
            self.vendors.reads,
            self.uninstall_record,
            timing,
            api=api,
        )

    def _build_state(self) -> None:
        """Read what the agent knew when it last ran; build the state of the node, and what saves it."""
        settings, timing = self._settings, self._timing
        known = recalled(settings, timing.health or settings.health, self._clock)
        self.ledger, self.store, self.set_aside = known.ledger, known.store, known.set_aside
        self.pod_state.first.set(known.first)
        scheduler_plugins.log_left_out()
        schedulers = scheduler_plugins.registered()
        self.node = NodeState(known.inventory, self.ledger, self._clock, self.pod_state, schedulers)
        self._saver = StateSaver(self.config, self.node, self.pod_state, self.store, timing.save)
        self._last_config = LastConfigKeeper(last_config(settings.state_dir), self.config)

    def _build_hardware(self) -> None:
        """Build what runs the vendors' processes and writes their CDI specs."""
        settings, record = self._settings, self.uninstall_record
        self.vendors = VendorsInService(self.node, self._vendor_process, agent_memory_limit.memory_limit())
        self._cdi = CdiDirectory(settings.cdi_dir, self.node.specs, self._timing.specs, note=record.note)
        self._hardware = VendorHardware(self.vendors, self.node, self._cdi)

    def _build_kubelet(self, registered: Cell[bool], holds_directory_lock: Callable[[], bool]) -> None:
        """Build what reads the kubelet's files, asks its services and registers with it."""
        settings, timing, node = self._settings, self._timing, self.node
        self._directory = KubeletDirectory(
            settings.kubelet_dir, poll=timing.directory, holds_lock=holds_directory_lock
        )
        socket = settings.pod_resources_socket
        self._pod_resources, self._pods_at_once = (
            PodResources(socket, min_interval=interval, keep_connection=True)
            for interval in (timing.pod_resources, timing.pods_at_once)
        )
        kubelet = KubeletView(self._directory, self._pod_resources)
        self._pod_sync = PodSync(node.plan, self.pod_state, timing.pods_known)
        self.sessions = Sessions(node, self._directory, timing.session, self._clock, registered)
        self._sources = EvidenceSources(
            kubelet.read_checkpoint,
            self._pod_resources.in_use,
            self._hardware.partitions,
            running_pods,
            kubelet.life,
            partial(self.sessions.has_served, seconds=timing.settle),
            pods_at_once=self._pods_at_once.in_use,
        )
        self.recovery = Recovery(
            self.ledger,
            self._sources,
            node.plan,
            self._clock,
            node.answer_reader,
            ledger_is_short=self.set_aside is not None,
        )
        self.other_plugins = OtherPlugins(self.config, node, kubelet, self.sessions, self.recovery, timing)
        self._renewals = Renewals(
            self.sessions,
            kubelet,
            self.other_plugins.sockets,
            timing.renewals,
            timing.renewal_again,
        )

    def _build_allocations(self) -> None:
        """Build what answers the kubelet, what keeps the ledger true, and what a registration waits for."""
        settings, timing, node = self._settings, self._timing, self.node
        self._allocator = Allocator(
            node.scene,
            self.ledger,
            self.store,
            self._clock,
            self._hardware.prepare,
            self._hardware.release,
            self._sources,
            lambda: self.reconciler.make_room(),  # the reconciler needs the allocator, too
        )
        updates = LedgerUpdates(
            self.ledger,
            self._allocator,
            node.all_vendors,
            self._hardware.release,
            self.sessions.repeat,
            self._clock,
            timing.request_again_after,
        )
        self.reconciler = Reconciler(
            self.ledger,
            self._sources,
            self._allocator,
            self.recovery,
            updates,
            self._saver.ledger_changed,
            self._clock,
            ReconcileTiming(
                every=settings.reconcile.interval if timing.reconcile is None else timing.reconcile,
                grace=settings.reconcile.grace if timing.grace is None else timing.grace,
            ),
        )
        self.mismatches = MismatchNotices(self._promises, self._started)
        self._node_locks = NodeLockKeeper(self.pod_state, self.ledger, node.locks, self._clock)
        self._external_use = ExternalUseKeeper(
            self.pod_state,
            self.ledger,
            node.plan,
            node.snapshot,
            self._external_use_changed,
            self._clock,
            moved=self.mismatches.moved_pods,
            schedulers=node.schedulers,
        )
        self.refusals = RecentRefusals(self.pod_state, self.ledger, timing.refusal_delay)
        self.handler = AllocateCalls(
            self._allocator,
            self._refused,
            self._node_locks.look_again,
            PodWaiter(node.plan, self._promises, self.pod_state),
        )
        self.usage = UsageSwitch(
            self.config,
            self.vendors,
            self._promises,
            self._clock,
            settings.state_dir,
        )
        self._gate = RegistrationGate(
            self.other_plugins.closed, self.other_plugins.changes, self._before_registration
        )

    async def run(self, early: EarlyProcesses | None = None) -> None:
        """Run every loop; a defect that ends one of them ends all. `early`: vendors' processes that run."""
        sweep(self._directory.path)
        kubelet, checkpoint = self._directory.kubelet, self._directory.checkpoint
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            partial(self.vendors.run, self.config, early),
            self._directory.run,
            partial(self.sessions.run, self.handler, self._gate),
            partial(self.node.follow_time, self._timing.discover),
            self.node.follow_held_ids,
            self.reconciler.run,
            partial(self.reconciler.follow, checkpoint, self._pod_resources.until_free),
            partial(self.reconciler.follow_lives, kubelet),
            partial(self.reconciler.follow_pods, self.pod_state.pods),
            partial(self.other_plugins.run, self._renewals.in_force),
            self._renewals.run,
            self._saver.run,
            self._external_use.run,
            self._node_locks.run,
            partial(self._pod_sync.follow_lives, kubelet),
            self._pod_sync.run,
            self.store.run,
            self.store.fold_journal,
            self._cdi.run,
            self._hardware.follow_specs,
            self.publisher.run,
            self._last_config.run,
            self.usage.run,
        ]
        try:
            async with anyio.create_task_group() as group:
                for loop in loops:
                    group.start_soon(for_ever, loop)
        finally:
            self._pod_resources.close()
            self._pods_at_once.close()
            # What changed since the last save may be a fault, which only its proof may end.
            with anyio.CancelScope(shield=True):
                await self._saver.save(last=True)

    async def write_again(self) -> None:
        """Write all files of the state directory, which was made again."""
        for name in self.vendors.processes:
            vendor_directories.of(self._settings.state_dir, name)
        await anyio.to_thread.run_sync(self.uninstall_record.write_again, abandon_on_cancel=True)
        await self._last_config.write_again()
        await self._saver.save()

    async def apply(self, command: Command) -> str:
        """Do what an operator commands, and save it; returns what came of it.

        Raises:
            NoSuchDevice: No device has this name, or several have.
            NotOnDisk: The command holds, and could not be saved.
        """
        done = self.node.apply(command)
        await self.store.save(durable=True)
        if self.store.error:
            raise NotOnDisk(done, self.store.error)
        return done

    def _vendor_process(
        self, vendor: Vendor, node: NodeState, memory_limit: Callable[[], MemoryLimit]
    ) -> VendorSupervisor:
        return VendorSupervisor(
            vendor,
            node,
            deadlines=self._timing.deadlines,
            timing=ProcessTiming(self._timing.discover, self._timing.backoff),
            in_process=self._in_process,
            memory_limit=memory_limit,
            directory=vendor_directories.of(self._settings.state_dir, vendor.name),
        )

    async def _before_registration(self, resource: str) -> None:
        await self._pod_sync.before(resource)
        await self.other_plugins.look()
        await self.reconciler.recover_at_start()

    async def _external_use_changed(self) -> None:
        self._node_locks.look_again()
        await self._saver.ledger_changed()

    def _promises(self) -> Promises:
        return self._allocator.promises

    def _started(self) -> frozenset[str]:
        return self._allocator.started

    def _refused(self, refused: RefusedAllocate) -> None:
        self.refusals.add(refused)
        self.reconciler.look_again()

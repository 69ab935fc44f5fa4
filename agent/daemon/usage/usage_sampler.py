"""Asks the vendors' processes for the use of the cards, every few seconds, and keeps what follows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import anyio
import anyio.to_thread
import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from agent.config import Config
from agent.core.attribution.scheduler_promises import Promises
from agent.core.endless_tasks import sleep_in_step
from agent.core.errors import SamplingEnded, VendorError
from agent.core.model import VendorState
from agent.core.usage.card_accounts import Accounts, KnownSample, accounts
from agent.core.usage.card_holdings import Holdings, holdings
from agent.core.usage.idle_times import IdleTimes
from agent.core.usage.minute_history import UsageHistory
from agent.core.usage.process_owners import PodName, PodNames, holder_names, pods_of_log_directories
from agent.core.usage.usage_alarms import AlarmRules, UsageAlarm, UsageAlarms
from agent.core.usage.usage_report import SamplingStatus, UsageReport, VendorSample
from agent.host.node_processes import ProcessReader, pod_log_directories, sees_node_pids
from agent.vendor_api.text import shorten

log = structlog.get_logger(__name__)


class SampledVendor(Protocol):
    """The process of one vendor, as `VendorSupervisor` has it."""

    async def sample(self) -> VendorSample:
        """The use of the vendor's cards now. Raises VendorError."""


class _Vendor(Struct):
    """What is known of one vendor's samples."""

    status: SamplingStatus
    reader: ProcessReader
    last: KnownSample | None = None
    holdings: Holdings | None = None
    #: Whether a sample is awaited.
    is_asked: bool = False
    #: Pods that only their log directories name, and those for which these were read without success.
    logs: Mapping[str, PodName] = field(default_factory=dict)
    nameless: frozenset[str] = frozenset()


class _Made(Struct, frozen=True):
    """Accounts with what they were made from. These values are immutable, and too large to compare."""

    fresh: Mapping[str, KnownSample]
    promises: Promises
    accounts: Accounts

    def is_of(self, fresh: Mapping[str, KnownSample], promises: Promises) -> bool:
        """Whether the accounts would be the same ones if they were made from these."""
        was, now = self.promises.scene, promises.scene
        return (
            self.is_near(fresh, promises)
            and len(self.fresh) == len(fresh)
            and all(fresh[name] is sample for name, sample in self.fresh.items())
            and was.candidates is now.candidates
            and was.plan is now.plan
            and was.snapshot is now.snapshot
        )

    def is_near(self, fresh: Mapping[str, KnownSample], promises: Promises) -> bool:
        """Whether they show no allocation and no vendor that is gone."""
        return self.promises.in_use is promises.in_use and self.fresh.keys() <= fresh.keys()


class UsageSampler:
    """Samples the vendors in service. A vendor that hangs delays nothing but its own samples."""

    def __init__(
        self,
        vendors: Callable[[], Mapping[str, SampledVendor]],
        promises: Callable[[], Promises],
        config: Callable[[], Config],
        clock: Callable[[], float],
        history: UsageHistory,
        reader: Callable[[], ProcessReader] = ProcessReader,
        log_directories: Callable[[], Collection[str]] = pod_log_directories,
    ) -> None:
        """`vendors` and `config`: those in service and in force now. `clock`: Unix time that never jumps."""
        self._vendors = vendors
        self._promises = promises
        self._config = config
        self._clock = clock
        self.history = history
        self._reader = reader
        self._log_directories = log_directories
        self._known: dict[str, _Vendor] = {}
        self._sees_node_pids = sees_node_pids()
        self._idle_times = IdleTimes()
        self._alarms = UsageAlarms()
        #: The last accounts, and what they were made from.
        self._made: _Made | None = None
        #: Held while accounts are made in a thread.
        self._making = anyio.Lock()
        #: Whether containers were noted whose samples were not too old.
        self._has_noted = False

    @property
    def alarms(self) -> tuple[UsageAlarm, ...]:
        """What people are to be told of."""
        return self._alarms.active

    def report(self) -> UsageReport:
        """The use of the cards by the last samples, and by the allocations as of now."""
        config, now = self._config(), self._clock()
        found = self._accounts()
        return UsageReport(
            config.usage.interval,
            now,
            tuple(it.status for name, it in self._known.items() if name in self._vendors()),
            found.cards,
            tuple(self._idle_times.timed(found.containers)),
            found.processes,
            found.unknown,
            self._sees_node_pids,
        )

    async def run(self) -> None:
        """Sample for ever."""
        async with anyio.create_task_group() as group:
            while True:
                await sleep_in_step(self._config().usage.interval)
                for name, process in self.begin().items():
                    group.start_soon(self.sample, name, process)

    def begin(self) -> Mapping[str, SampledVendor]:
        """Begin a round: the vendors whose samples are to be made now.

        A vendor that is not open is not asked. Its reason is in the vendor's state and in the log.
        """
        vendors = self._vendors()
        states = {it.name: it for it in self._promises().scene.snapshot.vendors}
        is_open = {name for name in vendors if name in states and states[name].state is VendorState.OPEN}
        known = (name for name in vendors if name in self._known or name in is_open)
        self._known = {name: self._known.get(name) or self._new(name) for name in known}
        for name in self._known.keys() - is_open:
            vendor = self._known[name]
            vendor.status = replace(vendor.status, error=f"{name}: the vendor is not open")
        if self._has_noted and not self._fresh(self._clock()):
            self._note(self._accounts())  # no later sample says that the containers are gone
        asked = {
            name: process
            for name, process in vendors.items()
            if name in is_open and not self._known[name].is_asked
        }
        for name in asked:
            self._known[name].is_asked = True
        return asked

    async def sample(self, name: str, process: SampledVendor) -> None:
        """Make one sample, and note what follows from it. A defect in doing so costs the sample alone."""
        vendor = self._known[name]
        try:
            await self._sample(vendor, process)
        except VendorError as exc:
            ended = isinstance(exc, SamplingEnded)
            self._set_status(vendor, replace(vendor.status, error=str(exc), ended=ended))
            if ended and self._has_noted:
                self._note(self._accounts())  # what the last sample said ends now
        except Exception as exc:
            error = f"{name}: a defect of the agent: {type(exc).__name__}: {shorten(str(exc), 300)}"
            if error != vendor.status.error:  # once, and not with each sample
                log.exception("sampling failed, please report this with the log", vendor=name)
            self._set_status(vendor, replace(vendor.status, error=error))
        finally:
            vendor.is_asked = False

    async def _sample(self, vendor: _Vendor, process: SampledVendor) -> None:
        sample = await process.sample()
        at = self._clock()
        vendor.last, trouble = await self._joined(vendor, sample)
        error = "; ".join((*(f"{method}: {it}" for method, it in sample.complaints.items()), *trouble))
        tells = sample.processes is not None or "processes" in sample.complaints
        name = vendor.status.vendor
        self._set_status(vendor, SamplingStatus(name, at, error, tells_processes=tells))
        if self._known.get(name) is vendor:
            self._note(await self._make_accounts())

    def _new(self, name: str) -> _Vendor:
        return _Vendor(SamplingStatus(name), self._reader())

    def _set_status(self, vendor: _Vendor, status: SamplingStatus) -> None:
        if status.error and not vendor.status.error:  # the text may change with each sample
            log.warning("use of cards not known in full", vendor=status.vendor, error=status.error)
        if vendor.status.error and not status.error:
            log.info("use of cards known again", vendor=status.vendor)
        vendor.status = status

    async def _joined(self, vendor: _Vendor, sample: VendorSample) -> tuple[KnownSample, tuple[str, ...]]:
        """The sample with what the node says of its processes, and what cannot be read of them."""
        pids = {it.pid for it in sample.processes or ()}
        read = await anyio.to_thread.run_sync(vendor.reader.read, pids, abandon_on_cancel=True)
        await self._name_pods(vendor, {it.owner.uid for it in read.processes.values()} - {""})
        trouble = (read.trouble,) if read.trouble else ()
        if pids and not read.processes:
            trouble = ("none of the processes is in /proc: the agent does not see the host's pids",)
        name, promises = vendor.status.vendor, self._promises()
        held = await anyio.to_thread.run_sync(holdings, name, sample, promises, vendor.holdings)
        vendor.holdings = held
        return KnownSample(sample, read.processes, vendor.logs, held.places), trouble

    async def _name_pods(self, vendor: _Vendor, uids: Collection[str]) -> None:
        """Read the log directories if neither the API server nor the ledger names a pod."""
        promises = self._promises()
        names = PodNames(promises.scene.candidates, holder_names(promises.in_use), vendor.logs)
        nameless = frozenset(uid for uid in uids if names.of(uid) is None)
        if nameless - vendor.nameless:
            found = await anyio.to_thread.run_sync(self._log_directories, abandon_on_cancel=True)
            named = pods_of_log_directories(found)
            vendor.logs = {uid: named[uid] for uid in uids if uid in named}
        vendor.nameless = nameless

    def _note(self, accounts: Accounts) -> None:
        """Note the use as of now for the history, the times of use and the alarms."""
        now, usage = self._clock(), self._config().usage
        containers = accounts.containers
        holders = {it.container_key for it in self._promises().in_use}
        self._has_noted = bool(containers)
        self.history.add(now, containers)
        self._idle_times.saw(now, containers, holders)
        exceeded = usage.limit_exceeded
        idle_after = usage.idle.after if usage.idle.event else None
        rules = AlarmRules(exceeded.by, exceeded.for_, idle_after)
        self._alarms.saw(now, self._idle_times.timed(containers), rules, holders)

    def _fresh(self, now: float) -> Mapping[str, KnownSample]:
        """The last samples that speak of now, of the vendors in service."""
        interval, vendors = self._config().usage.interval, self._vendors()
        return {
            name: known.last
            for name, known in self._known.items()
            if name in vendors and known.last is not None and known.status.is_fresh(interval, now)
        }

    async def _make_accounts(self) -> Accounts:
        """Make the accounts by a new sample in a thread: with a thousand containers that takes 20 ms."""
        async with self._making:
            fresh, promises = self._fresh(self._clock()), self._promises()
            if self._made is None or not self._made.is_of(fresh, promises):
                found = await anyio.to_thread.run_sync(self._made_from, fresh, promises)
                self._made = _Made(fresh, promises, found)
            return self._made.accounts

    def _accounts(self) -> Accounts:
        """The accounts, made again where a sample, an allocation, a pod or a card has changed.

        While a thread makes those of a new sample, the last ones are shown if they have the allocations of
        now: the series of an allocation that is released end at once.
        """
        fresh, promises = self._fresh(self._clock()), self._promises()
        made = self._made
        if made is not None and made.is_of(fresh, promises):
            return made.accounts
        if made is not None and self._making.locked() and made.is_near(fresh, promises):
            return made.accounts
        self._made = _Made(fresh, promises, self._made_from(fresh, promises))
        return self._made.accounts

    def _made_from(self, fresh: Mapping[str, KnownSample], promises: Promises) -> Accounts:
        held = {}
        for name, known in fresh.items():
            vendor = self._known.get(name)  # once: this may be a thread, beside which `begin` forgets vendors
            before = None if vendor is None else vendor.holdings
            held[name] = holdings(name, known.sample, promises, before)
        return accounts(fresh, promises, held)

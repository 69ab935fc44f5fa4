"""Keeps one vendor's process running: starts it, supervises it, and replaces it when it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import structlog
from msgspec import Struct

from agent.core.backoff import Pauses
from agent.core.errors import VendorAbsent, VendorError
from agent.core.model import ProcessStatus, VendorState
from agent.isolation import vendor_process
from agent.isolation.cdi_requests import PAUSES, CdiRequests
from agent.isolation.deadlines import Deadlines
from agent.isolation.presence import absence
from agent.isolation.restart_breaker import Breaker
from agent.isolation.vendor_memory_limit import MemoryLimit
from agent.isolation.vendor_process import ContactLost, VendorProcess
from agent.isolation.vendor_sampling import SampleLosses
from agent.isolation.vendor_service import LinkCache, ReportSink, Service
from agent.vendor_api.agent import LIBRARY_NOT_FOUND, Vendor

if TYPE_CHECKING:
    from agent.core.usage.usage_report import VendorSample

log = structlog.get_logger()

CALLS = ("prepare", "release", "partitions")


class RestartBackoff:
    """Growing pauses before restarts, short again after long enough service."""

    def __init__(self, first: float, longest: float) -> None:
        self.longest = longest
        self._pauses = Pauses(first, longest)
        self._rests = Pauses(longest, longest)

    def pause(self, served: float, *, rest: bool = False) -> float:
        """Seconds to wait after a process that served for so long; `rest` asks for the longest pause."""
        if served >= self.longest:
            self._pauses.reset()
        return self._rests.next() if rest else self._pauses.next()


class ProcessTiming(Struct, frozen=True):
    """The times of a vendor's process, in seconds."""

    #: Between two discoveries of the vendor's devices.
    discover: float = 10.0
    #: Before the process is started again, the first and the longest.
    backoff: tuple[float, float] = (0.1, 30.0)
    #: Before the vendor is asked again for CDI specs that it could not make, the first and the longest.
    specs: tuple[float, float] = PAUSES


class VendorSupervisor:
    """One vendor, for as long as the agent runs: `run` supervises its process, which `call` and `sample` ask.

    `directory` is for the backend's files; `memory_limit` is called before each start of a process.
    """

    def __init__(
        self,
        vendor: Vendor,
        sink: ReportSink,
        *,
        deadlines: Deadlines | None = None,
        timing: ProcessTiming | None = None,
        in_process: bool = False,
        python_path: Sequence[str] = (),
        memory_limit: Callable[[], MemoryLimit] = MemoryLimit,
        directory: Path | None = None,
    ) -> None:
        self.vendor = vendor
        self._sink = sink
        self._deadlines = deadlines or Deadlines()
        timing = timing or ProcessTiming()
        self._every = timing.discover
        self._backoff = RestartBackoff(*timing.backoff)
        self._breaker = Breaker(good=self._backoff.longest)
        self._ask_limit = memory_limit
        self._limit = MemoryLimit()
        self._in_process = in_process
        self._python_path = tuple(python_path)
        self._directory = directory
        self._links = LinkCache()
        self._sample_losses = SampleLosses(vendor.name)
        #: All that the config says of the vendor.
        self._settings: object = None
        self._specs = CdiRequests(timing.specs)
        self._early: VendorProcess | None = None
        self._service: Service | None = None
        self._trouble = "not started yet"
        self._was_open = False
        self._required = False
        self._sought = True
        #: Set when the config says something new of the vendor.
        self._config_changed = anyio.Event()
        self._next_try: float | None = None
        #: A killed process that does not end: this one's, or that of a predecessor.
        self._stuck: VendorProcess | None = None
        self._ended = anyio.Event()
        #: The earlier supervisor of the same vendor, until its process has ended.
        self._predecessor: VendorSupervisor | None = None
        #: How often the process was lost by its own fault; a missing driver does not count.
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The pid of the current process."""
        running = self._service.process if self._service else self._early
        return running.runner.pid if running else None

    @property
    def status(self) -> ProcessStatus:
        """The current state of the process."""
        service = self._service
        return ProcessStatus(
            pid=self.pid,
            memory=0 if service is None else service.memory,
            restarts=self.restarts,
            breaker=self._breaker.state(None if service is None else service.served),
            next_try=self._next_try,
            stuck=None if self._stuck is None else self._stuck.runner.pid,
            memory_limit=self._limit.bound,
        )

    def configure(self, *, required: bool, sought: bool, settings: object = None) -> None:
        """Take what the config says of the vendor; anything new ends the pause before the next start.

        `required`: an absent vendor is an error. `sought`: start the process without a sign of the vendor.
        `settings`: all that the config says; anything new lets a vendor be sampled again that lost processes.
        """
        if settings != self._settings:
            self._settings = settings
            self._sample_losses.forget()
        if (required, sought) != (self._required, self._sought):
            self._required, self._sought = required, sought
            self._config_changed.set()

    def adopt(self, started: VendorProcess) -> None:
        """Take a process of this vendor that runs already as the first one, with its limit."""
        self._early, self._limit = started, started.limit

    def start_early(self) -> None:
        """Start the process now, so that it loads its library while the agent is starting."""
        if self._absence():
            return
        try:
            self._early = self._start()
        except OSError as exc:
            self._trouble = f"cannot start: {exc}"  # `run` tries again, and reports it

    @property
    def waits(self) -> bool:
        """Whether there is no process, and none will start without a sign of the vendor."""
        return self.pid is None and self._stuck is None and bool(self._absence())

    def _start(self) -> VendorProcess:
        self._limit = self._ask_limit()
        return VendorProcess(
            self.vendor,
            watch=self._deadlines.events,
            in_process=self._in_process,
            python_path=self._python_path,
            limit=self._limit,
            directory=self._directory,
        )

    async def run(self, after: VendorSupervisor | None = None) -> None:
        """Serve for ever, after all earlier processes have ended; cancellation ends the process."""
        self._predecessor = after
        try:
            await self._wait_for_predecessors()
            while True:
                await self._wait_for_signs()
                await anyio.lowlevel.checkpoint_if_cancelled()  # a replaced vendor must start no process
                served = await self._serve_once()
                rest = self._breaker.tripped or self._is_nothing_here
                await self._pause(self._backoff.pause(served, rest=rest))
        finally:
            if self._early is not None:
                started, self._early = self._early, None
                await self._end_at_once(started)
                started.drop()
            self._ended.set()

    async def _wait_for_signs(self) -> None:
        """Wait for a sign of the vendor on this node."""
        while self._early is None and (why := self._absence()):
            self._report(ContactLost(VendorState.UNAVAILABLE, why))
            await self._pause(self._every)

    def _absence(self) -> str:
        return "" if self._sought else absence(self.vendor)

    @property
    def _is_nothing_here(self) -> bool:
        """Whether no process ever found the library, and the config does not require the vendor."""
        never = not (self._required or self._was_open)
        return never and self._trouble.startswith(LIBRARY_NOT_FOUND)

    async def _pause(self, seconds: float) -> None:
        """Wait for the next start, or until the config says something new of the vendor."""
        self._config_changed = anyio.Event()
        self._next_try = time.time() + seconds
        with anyio.move_on_after(seconds):
            await self._config_changed.wait()
        self._next_try = None

    async def _wait_for_predecessors(self) -> None:
        """Wait for earlier processes: two libraries of one vendor at once could damage their hardware."""
        while (predecessor := self._predecessor) is not None:
            await predecessor._ended.wait()
            self._was_open |= predecessor._was_open
            self._predecessor = predecessor._predecessor
            if predecessor._stuck is not None:
                lost = vendor_process.failed("the process of the last configuration must end first")
                await self._await_stuck(predecessor._stuck, lost)

    async def call(self, method: str, *args: Any) -> Any:
        """Call the backend: prepare, release or partitions.

        Raises:
            VendorTimeout: There was no answer in time; the process is replaced.
            VendorCrashed: The process ended before it answered.
            VendorAbsent: The vendor is not on this node.
            VendorError: The vendor is not open, or its backend refused.
        """
        if method not in CALLS:
            raise ValueError(f"{method!r} is not to be called; these are: {', '.join(CALLS)}")
        return await self._open_service(method).ask(method, *args)

    async def sample(self) -> VendorSample:
        """Sample the use of the vendor's cards; one caller at a time.

        Makes no other call wait, unless the library takes the calls of one thread alone: then the sample is
        made when no other call waits, and a late one costs the process.

        Raises:
            SamplingEnded: Too many samples in a row were late, until the next process; or too many processes
                in a row were lost while a sample was made, until the config says something new of the vendor.
            VendorTimeout: There was no answer in time, or the last sample is still unanswered.
            VendorCrashed: The process ended before it answered.
            VendorError: The vendor is not open, tells no use, or answered wrongly.
        """
        return await self._open_service("sample").sample()

    def _open_service(self, method: str) -> Service:
        if self._service is None or not self._service.listed:
            is_absent = not self._was_open and (self._is_nothing_here or self._absence())
            error = VendorAbsent if is_absent else VendorError
            raise error(f"{self.vendor.name}: {method}: the vendor is not open: {self._trouble}")
        return self._service

    async def _serve_once(self) -> float:
        """Serve with one process until contact is lost; returns the seconds that it served."""
        try:
            started, self._early = self._early or self._start(), None
        except OSError as exc:
            self._report(vendor_process.failed(f"cannot start: {exc}"))
            return 0.0
        self._service = service = Service(
            started,
            self.vendor.name,
            self._sink,
            self._deadlines,
            self._every,
            self._links,
            self._specs,
            self._sample_losses,
        )
        try:
            lost = self._count_loss(await service.run(), service.served)
            self._was_open |= service.listed
            self._service = None
            self._report(lost)
            await self._wait_for_end(started, lost)
        except BaseException:
            self._was_open |= service.listed
            self._service, self._trouble = None, "the agent stops"
            await self._end_at_once(started)
            raise
        finally:
            started.drop()
        return service.served

    async def _end_at_once(self, started: VendorProcess) -> None:
        """End a process of a supervisor that is cancelled."""
        with anyio.move_on_after(self._deadlines.close + vendor_process.EXIT_PATIENCE, shield=True):
            await started.end(self._deadlines.close)
        self._record_stuck(started)

    def _count_loss(self, lost: ContactLost, served: float) -> ContactLost:
        """Count the loss; repeated losses give the breaker's reason."""
        if lost.state is VendorState.UNAVAILABLE:
            self._links.forget()
            self._breaker.close()
            return lost
        self.restarts += 1
        self._breaker.lost(anyio.current_time(), served)
        if not self._breaker.tripped:
            return lost
        return vendor_process.failed(self._breaker.reason(lost.reason, self._backoff.longest))

    def _report(self, lost: ContactLost) -> None:
        if lost.reason != self._trouble:
            self._log(lost)
        self._trouble = lost.reason
        self._sink.lost(self.vendor.name, lost.state, lost.reason)

    def _log(self, lost: ContactLost) -> None:
        """Log the loss; an absent vendor that was never there is no warning unless it is required."""
        if self._was_open or lost.state is not VendorState.UNAVAILABLE:
            log.warning("vendor lost", vendor=self.vendor.name, state=str(lost.state), reason=lost.reason)
            return
        nothing = lost.reason.startswith(LIBRARY_NOT_FOUND)
        write = log.error if self._required else log.info if nothing else log.warning
        write("vendor not found here", vendor=self.vendor.name, reason=lost.reason)

    async def _wait_for_end(self, old: VendorProcess, lost: ContactLost) -> None:
        """Wait for the end of the process: a process stuck in the kernel must not be joined by a second."""
        grace = self._deadlines.close if lost.state is VendorState.UNAVAILABLE else 0.0
        with anyio.move_on_after(grace + self._deadlines.kill):
            await old.end(grace)
            return
        await self._await_stuck(old, lost)

    async def _await_stuck(self, stuck: VendorProcess, lost: ContactLost) -> None:
        self._stuck = stuck
        self._report(
            ContactLost(lost.state, f"{lost.reason}; process {stuck.runner.pid} is killed but does not end")
        )
        await stuck.gone()
        self._stuck = None

    def _record_stuck(self, old: VendorProcess) -> None:
        if old.runner.ended() is None:
            self._stuck = old
            log.error("process is killed but does not end", vendor=self.vendor.name, pid=old.runner.pid)

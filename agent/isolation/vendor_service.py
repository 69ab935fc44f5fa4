"""Serves with one vendor process: open, list devices, make calls, deliver events, until contact is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.lowlevel
import structlog
from msgspec import Struct, field

from agent.core.endless_tasks import for_ever, sleep_in_step
from agent.core.errors import InsufficientRoom, NotServable, VendorCrashed, VendorError, VendorTimeout
from agent.core.model import VendorState
from agent.isolation import vendor_answers, vendor_process
from agent.isolation.cdi_requests import CdiRequests
from agent.isolation.deadlines import MAKING, Deadlines
from agent.isolation.vendor_event_queue import BURST, RATE, TURN_SECONDS, EventQueue
from agent.isolation.vendor_memory_limit import LOOK_SECONDS
from agent.isolation.vendor_process import BackendFailure, CallRefused, ContactLost, VendorProcess
from agent.isolation.vendor_sampling import SampleLosses, Sampling
from agent.vendor_api.agent import Device, Fault, HealthEvent, Link, State

if TYPE_CHECKING:
    from agent.core.usage.usage_report import VendorSample

log = structlog.get_logger()

EVENTS_LOST = "events-lost"
#: Calls that only read: a wrong answer costs the answer, not the process.
TOLERATED = frozenset({"links", "cdi"})
#: Calls that are made only while no other call waits.
PATIENT = frozenset({"start_sampling", "sample"})
#: By the process's word for a refusal: the error for it.
REFUSALS = {"refused": NotServable, "no-room": InsufficientRoom}


class ReportSink(Protocol):
    """Receives the vendor's reports, on the event loop; must not block."""

    def discovered(self, vendor: str, devices: Sequence[Device]) -> None: ...

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None: ...

    def specified(self, vendor: str, specs: Mapping[str, str]) -> None:
        """The CDI specs that the vendor's containers need: content by file name, empty for no file."""

    def unspecified(self, vendor: str, reason: str) -> None:
        """The vendor could not make its CDI specs; earlier specs stay."""

    def lost(self, vendor: str, state: VendorState, reason: str) -> None:
        """Contact is lost: UNAVAILABLE if the backend itself says so, otherwise FAILED."""


class LinkCache:
    """Caches the links between devices, as long as the devices stay the same."""

    def __init__(self) -> None:
        self._uuids: frozenset[str] = frozenset()
        self._readable: frozenset[str] = frozenset()
        self._links: dict[str, tuple[Link, ...]] = {}
        self._refused: set[str] = set()

    def keep_for(self, devices: Sequence[Device]) -> None:
        # Links that a broken card reports are not kept.
        readable = frozenset(device.uuid for device in devices if device.fault is None)
        uuids = frozenset(device.uuid for device in devices)
        if uuids != self._uuids:
            self._uuids = uuids
            self.forget()
        elif readable - self._readable:  # a repaired card may repair the links of its peers too
            for uuid in self._refused:
                self._links.pop(uuid, None)
            self._refused.clear()
        self._readable = readable

    def forget(self) -> None:
        """Read all links again: the devices or their driver have changed."""
        self._links = {}
        self._refused.clear()

    def missing(self) -> str | None:
        return min(self._readable - self._links.keys(), default=None)

    def put(self, uuid: str, links: tuple[Link, ...]) -> None:
        self._links[uuid] = links

    def put_refused(self, uuid: str) -> None:
        """Note that the links could not be read; they are read again after a repair."""
        self._links[uuid] = ()
        self._refused.add(uuid)

    def give_up(self) -> None:
        """Read no more links: a call for them cost the process."""
        self._links = {**dict.fromkeys(self._uuids, ()), **self._links}

    def merged(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        return tuple(replace(device, links=self._links.get(device.uuid, device.links)) for device in devices)


class _Call(Struct, eq=False):
    method: str
    args: tuple[Any, ...]
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)
            self.answer.exception()  # marked as retrieved: the caller may be gone

    def succeed(self, value: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(value)


class _Costly(Exception):
    """Raised for a failed call that costs the process."""

    def __init__(self, error: VendorError, lost: ContactLost) -> None:
        super().__init__(str(error))
        self.error = error
        self.lost = lost


class Service:
    """Serves with one process from its start to the loss of contact."""

    def __init__(
        self,
        started: VendorProcess,
        vendor: str,
        sink: ReportSink,
        deadlines: Deadlines,
        every: float,
        links: LinkCache,
        specs: CdiRequests,
        losses: SampleLosses,
    ) -> None:
        self.process = started
        self._vendor = vendor
        self._sink = sink
        self._deadlines = deadlines
        self._every = every
        self._links = links
        self._specs = specs
        self._losses = losses
        self._overrides: frozenset[str] = frozenset()
        self._sampling: Sampling | None = None
        #: The calls that wait: the patient ones last, and else in the order of their numbers.
        self._queue: asyncio.PriorityQueue[tuple[bool, int, _Call]] = asyncio.PriorityQueue()
        self._numbers = itertools.count()
        self._waiting: set[_Call] = set()
        self._current_call = ""
        self._devices: tuple[Device, ...] = ()
        self._opened_at: float | None = None
        self._blind: HealthEvent | None = None
        #: Events wait for the first list of devices, and for their delivery.
        self._event_queue = EventQueue()
        self._arrived = anyio.Event()
        self._reading_links = False
        #: The process's own memory in bytes, as last measured.
        self.memory = 0

    @property
    def listed(self) -> bool:
        """Whether the first list of devices was delivered."""
        return self._opened_at is not None

    @property
    def served(self) -> float:
        """Seconds since the first list of devices; 0 before."""
        return 0.0 if self._opened_at is None else anyio.current_time() - self._opened_at

    async def run(self) -> ContactLost:
        """Serve until contact is lost; returns why it was."""
        try:
            await self._open_and_serve()
        except Exception as exc:
            lost = _contact_lost(exc)
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the agent's end counts more than the loss
                # The cancellation of an anyio scope must be raised as that scope's own; a scope would treat
                # any other one as an error and end all its tasks.
                await anyio.lowlevel.checkpoint_if_cancelled()
                raise asyncio.CancelledError from exc
            if self._current_call == "links":
                self._links.give_up()
            if lost.state is VendorState.FAILED and (
                self._current_call in PATIENT or self.process.is_sampling
            ):
                self._losses.add(lost.reason)
            self._fail_calls(lost.reason)
            return lost
        finally:
            self._fail_calls("the agent stops")
        raise AssertionError("a task that serves for ever returned")

    async def _open_and_serve(self) -> None:
        await self.process.connect()
        try:
            await self._serve()
        finally:
            with anyio.CancelScope(shield=True):
                await self._flush_events()

    async def _serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(for_ever, self.process.listen, self)
            tasks.start_soon(for_ever, self._watch_process)
            await self._open()
            tasks.start_soon(for_ever, self._answer_calls)
            tasks.start_soon(for_ever, self._pass_events_on)
            while True:
                devices = await self.ask("discover")
                await self._specify(devices)
                await self._deliver(devices)
                if "links" in self._overrides and self._links.missing() and not self._reading_links:
                    self._reading_links = True
                    tasks.start_soon(self._read_links)
                await anyio.sleep(self._every)

    async def _open(self) -> None:
        try:
            raw = await self.process.opened(self._deadlines.open)
            opened: vendor_answers.OpenedBackend = vendor_answers.decode("open", raw)
        except CallRefused as exc:
            raise self._refusal("open", exc) from exc
        except TimeoutError:
            raise vendor_process.failed(f"open did not return within {self._deadlines.open:g} s") from None
        except vendor_answers.WrongAnswer as exc:
            raise vendor_process.failed(f"open answered wrongly: {exc}") from exc
        self._overrides = opened.methods
        self._sampling = Sampling(
            self._vendor, self.process, opened, self._deadlines.sample, self.ask, self._losses
        )

    async def _watch_process(self) -> None:
        """End the service when the process has ended, or uses too much memory.

        The socket may stay open longer than the process, if a descendant holds it.
        """
        while True:
            if how := self.process.runner.ended():
                await anyio.sleep(vendor_process.EXIT_PATIENCE)  # to receive its last messages first
                raise vendor_process.failed(how)
            self.memory = self.process.runner.memory()
            if excess := self.process.limit.excess(self.memory):
                raise vendor_process.failed(excess)
            await sleep_in_step(min(self._every, LOOK_SECONDS))

    async def ask(self, method: str, *args: Any) -> Any:
        """Queue a call and wait for its answer; a call is not made once its caller has gone."""
        call = _Call(method, args)
        self._waiting.add(call)
        self._queue.put_nowait((method in PATIENT, next(self._numbers), call))
        try:
            return await call.answer
        finally:
            self._waiting.discard(call)

    async def sample(self) -> VendorSample:
        """Sample the use of the cards (`VendorSupervisor.sample`)."""
        assert self._sampling is not None
        return await self._sampling.sample()

    def _fail_calls(self, reason: str) -> None:
        for call in self._waiting:
            call.fail(VendorCrashed(self._vendor, reason))
        self.process.fail_sample(VendorCrashed(self._vendor, reason))

    async def _answer_calls(self) -> None:
        """Make the queued calls one after another: the process has one thread for them."""
        while True:
            _, _, call = await self._queue.get()
            if not call.answer.done():
                self._current_call = call.method
                await self._make(call)
                self._current_call = ""

    async def _make(self, call: _Call) -> None:
        try:
            value = await self._ask_backend(call.method, call.args, self._deadlines.of(call.method))
            if call.method in MAKING and "cdi" in self._overrides:
                await self._specify_again(after=call.method)
        except _Costly as exc:
            call.fail(exc.error)
            raise exc.lost from exc
        except (VendorError, NotServable, InsufficientRoom) as exc:
            call.fail(exc)
        else:
            call.succeed(value)

    async def _ask_backend(self, method: str, args: Sequence[Any], seconds: float) -> Any:
        """Make one call and decode its answer.

        Raises:
            VendorError: There was no usable answer.
            NotServable: The backend refuses the request.
            InsufficientRoom: The backend refuses it because of other slices on the card.
            _Costly: The process is lost over the call.
        """
        try:
            return vendor_answers.decode(method, await self.process.ask(method, args, seconds))
        except CallRefused as exc:
            if method == "discover":
                raise _Costly(exc, self._refusal("discover", exc)) from exc
            if method == "prepare" and (refusal := REFUSALS.get(exc.failure.type)):
                raise refusal(args[0].resource, exc.failure.message) from exc
            raise
        except TimeoutError:
            error = VendorTimeout(self._vendor, method, seconds)
            late = f"{method} did not return within {seconds:g} s"
            raise _Costly(error, vendor_process.failed(self.process.runner.ended() or late)) from None
        except vendor_answers.WrongAnswer as exc:
            wrong = f"{method} answered wrongly: {exc}"
            if method in TOLERATED:
                raise VendorError(f"{self._vendor}: {wrong}") from exc
            raise _Costly(VendorError(f"{self._vendor}: {wrong}"), vendor_process.failed(wrong)) from exc

    async def _specify_again(self, after: str) -> None:
        """Fetch new CDI specs after hardware was made or removed, before that call is answered.

        A failure after `release` fails the call only if it costs the process.
        """
        try:
            specs = await self._ask_backend("cdi", (), self._deadlines.of("cdi"))
        except (VendorError, _Costly) as exc:
            self._report_missing_specs(exc, costly=isinstance(exc, _Costly))
            if after == "prepare" or isinstance(exc, _Costly):
                raise
        else:
            self._take_specs(specs)

    def _take_specs(self, specs: Mapping[str, str]) -> None:
        self._specs.answered()
        self._sink.specified(self._vendor, specs)

    def _report_missing_specs(self, error: Exception, *, costly: bool) -> None:
        """Report that there are no new specs; `costly`: the process is lost over the call."""
        if costly:
            self._specs.cost()
        else:
            self._specs.forget()
        self._sink.unspecified(self._vendor, str(error))

    def _refusal(self, call: str, exc: CallRefused) -> ContactLost:
        """What an exception of `open` or `discover` means: the driver is away, or the vendor is broken."""
        if exc.failure.type == "unavailable":
            return ContactLost(VendorState.UNAVAILABLE, str(exc.failure))
        limited = exc.failure.reason == MemoryError.__name__ and self.process.limit.bound
        limit = f", {self.process.limit}" if limited else ""
        return vendor_process.failed(f"{call} failed: {exc.failure}{limit}")

    async def _specify(self, devices: tuple[Device, ...]) -> None:
        """Fetch CDI specs before new devices are listed, because containers need them at once."""
        if "cdi" not in self._overrides or self._specs.covers(devices):
            return
        self._specs.put(devices)
        try:
            specs = await self.ask("cdi")
        except VendorError as exc:
            self._report_missing_specs(exc, costly=isinstance(exc, VendorTimeout | VendorCrashed))
        else:
            self._take_specs(specs)

    async def _deliver(self, devices: tuple[Device, ...]) -> None:
        if self._devices and not devices:
            raise vendor_process.failed(f"the library lists no devices, it had {len(self._devices)}")
        await self._flush_events()
        self._devices = devices
        self._links.keep_for(devices)
        first, self._opened_at = self._opened_at is None, self._opened_at or anyio.current_time()
        if first:
            log.info("vendor open", vendor=self._vendor, devices=len(devices), pid=self.process.runner.pid)
        self._sink.discovered(self._vendor, self._links.merged(devices))
        if first and self._blind is None:
            self._sink.observed(self._vendor, _watched_again(devices))
        if first:
            await self._flush_events()
        if self._blind is not None:
            # A good poll clears the fault, though it shows nothing of events: report it after each poll.
            self._sink.observed(self._vendor, (self._blind,))

    async def _read_links(self) -> None:
        while (uuid := self._links.missing()) is not None:
            await self._read_links_of(uuid)
        self._reading_links = False
        self._sink.discovered(self._vendor, self._links.merged(self._devices))

    async def _read_links_of(self, uuid: str) -> None:
        try:
            self._links.put(uuid, await self.ask("links", uuid))
        except VendorError as exc:
            log.warning("links not read", vendor=self._vendor, device=uuid, reason=str(exc))
            self._links.put_refused(uuid)

    def events(self, raw: bytes) -> None:
        """Take events from the process."""
        try:
            events = vendor_answers.events(raw)
        except vendor_answers.WrongAnswer as exc:
            raise vendor_process.failed(f"health_events answered wrongly: {exc}") from exc
        self._admit(events)
        if self._blind is not None:
            self._blind = None
            events = (HealthEvent(None, None), *events)  # the devices are watched again
        self._enqueue(events)

    def blind(self, failure: BackendFailure) -> None:
        """Take the report that the process cannot watch the devices now."""
        self._admit(())
        fault = Fault(
            EVENTS_LOST, vendor_answers.clean(str(failure), vendor_answers.MESSAGE_LIMIT), State.UNKNOWN
        )
        if self._blind is None or self._blind.fault != fault:
            log.warning("events lost", vendor=self._vendor, reason=str(failure))
            self._blind = HealthEvent(None, fault)
            if self.listed:
                self._enqueue((self._blind,))

    def _admit(self, events: Sequence[HealthEvent]) -> None:
        if not self._event_queue.admit(events, len(self._devices), anyio.current_time()):
            raise vendor_process.failed(
                f"sent more than {BURST} events at once, and {RATE:g} a second after them"
            )

    def _enqueue(self, events: Sequence[HealthEvent]) -> None:
        self._event_queue.add(events)
        self._arrived.set()

    async def _pass_events_on(self) -> None:
        """Deliver events in turns, so that other tasks can run between many events."""
        while True:
            await self._arrived.wait()
            if self.listed and (events := self._event_queue.take(len(self._devices))):
                self._sink.observed(self._vendor, events)
            if not self.listed or not self._event_queue:
                self._arrived = anyio.Event()
            await anyio.sleep(TURN_SECONDS)

    async def _flush_events(self) -> None:
        """Deliver all events that have arrived, with a turn for other tasks between deliveries."""
        while self.listed and (events := self._event_queue.take(len(self._devices))):
            self._sink.observed(self._vendor, events)
            if self._event_queue:
                await anyio.lowlevel.checkpoint()


def _watched_again(devices: Sequence[Device]) -> tuple[HealthEvent, ...]:
    """Events that clear the faults left by the last process, except of devices listed as unknown."""
    known = [it.uuid for it in devices if it.fault is None or it.fault.state is not State.UNKNOWN]
    if len(known) == len(devices):
        return (HealthEvent(None, None),)
    return tuple(HealthEvent(uuid, None) for uuid in known)


def _contact_lost(exc: Exception) -> ContactLost:
    """The lost contact among the exceptions of tasks; any other exception is a bug, and raised."""
    if isinstance(exc, ContactLost):
        return exc
    if isinstance(exc, ExceptionGroup):
        found, other = exc.split((ContactLost, VendorError))
        leaves = [] if found is None else _leaves(found)
        lost = next((leaf for leaf in leaves if isinstance(leaf, ContactLost)), None)
        if lost is not None and other is None:
            return lost
    raise exc


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for exc in group.exceptions:
        leaves += _leaves(exc) if isinstance(exc, BaseExceptionGroup) else [exc]
    return leaves

"""One term of a vendor's process: open, list, answer calls, pass on events, until contact is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import structlog

from agent.core.endless_tasks import for_ever
from agent.core.errors import InsufficientRoom, NotServable, VendorCrashed, VendorError, VendorTimeout
from agent.core.model import VendorState
from agent.isolation import answers, vendor_process
from agent.isolation.cdi_requests import CdiRequests
from agent.isolation.event_turns import BURST, RATE, TURN, EventQueue
from agent.isolation.process_memory import LOOK
from agent.isolation.vendor_process import BackendFailure, CallRefused, ContactLost, RunningVendor
from agent.vendor_api.agent import Device, Fault, HealthEvent, Link, State

log = structlog.get_logger()

EVENTS_LOST = "events-lost"
#: Readings that decide nothing: a wrong answer costs the answer, not the process.
TOLERATED = frozenset({"links", "usage", "cdi"})
#: Calls after which containers may need other CDI specs than before.
MAKING = frozenset({"prepare", "release"})
#: What each refusal of a request is, by the word of the process for it.
REFUSALS = {"refused": NotServable, "no-room": InsufficientRoom}


class ReportSink(Protocol):
    """Who wants to know. Called on the event loop; must not block."""

    def discovered(self, vendor: str, devices: Sequence[Device]) -> None: ...

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None: ...

    def specified(self, vendor: str, specs: Mapping[str, str]) -> None:
        """The CDI specs that containers of the vendor need: file name to content, empty for no file."""

    def unspecified(self, vendor: str, reason: str) -> None:
        """The vendor could not say which CDI specs its containers need; those of before stay."""

    def lost(self, vendor: str, state: VendorState, reason: str) -> None:
        """Contact is lost: UNAVAILABLE where the backend says so itself, otherwise FAILED."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that the parts of a conversation may take; a call that takes longer costs the process."""

    open: float = 30.0
    discover: float = 10.0
    call: float = 2.0
    prepare: float = 8.0  # making and removing hardware
    events: float = 5.0  # one wait for events; none is an answer too
    close: float = 0.5
    kill: float = 5.0  # after this a killed process that still runs is called stuck

    def of(self, call: str) -> float:
        if call in MAKING:
            return self.prepare
        # CDI specs are made from the driver's files, on a disk that may be slow.
        return self.discover if call in ("discover", "cdi") else self.call


class LinkCache:
    """What is known of the paths between devices; holds as long as the devices stay the same."""

    def __init__(self) -> None:
        self._uuids: frozenset[str] = frozenset()
        self._readable: frozenset[str] = frozenset()
        self._links: dict[str, tuple[Link, ...]] = {}
        self._refused: set[str] = set()

    def keep_for(self, devices: Sequence[Device]) -> None:
        # What a broken card says of its links is nothing to keep.
        readable = frozenset(device.uuid for device in devices if device.fault is None)
        uuids = frozenset(device.uuid for device in devices)
        if uuids != self._uuids:
            self._uuids = uuids
            self.forget()
        elif readable - self._readable:  # a repair may mend the links of its peers, too
            for uuid in self._refused:
                self._links.pop(uuid, None)
            self._refused.clear()
        self._readable = readable

    def forget(self) -> None:
        """Ask anew: the devices or their driver are others."""
        self._links = {}
        self._refused.clear()

    def missing(self) -> str | None:
        return min(self._readable - self._links.keys(), default=None)

    def put(self, uuid: str, links: tuple[Link, ...]) -> None:
        self._links[uuid] = links

    def put_refused(self, uuid: str) -> None:
        """Keep that they could not be read, until something is repaired."""
        self._links[uuid] = ()
        self._refused.add(uuid)

    def give_up(self) -> None:
        """Ask no more: asking cost the process."""
        self._links = {**dict.fromkeys(self._uuids, ()), **self._links}

    def merged(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        return tuple(replace(device, links=self._links.get(device.uuid, device.links)) for device in devices)


@dataclass(eq=False, slots=True)
class _Call:
    method: str
    args: tuple[Any, ...]
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)
            self.answer.exception()  # its caller may be gone; that is no news

    def succeed(self, value: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(value)


class _Costly(Exception):
    """Raised when a call fails in a way that costs the process."""

    def __init__(self, error: VendorError, lost: ContactLost) -> None:
        super().__init__(str(error))
        self.error = error
        self.lost = lost


class Service:
    """What happens with one process between its start and its end."""

    def __init__(
        self,
        started: RunningVendor,
        vendor: str,
        sink: ReportSink,
        deadlines: Deadlines,
        every: float,
        links: LinkCache,
        specs: CdiRequests,
    ) -> None:
        self.contact = started
        self._vendor = vendor
        self._sink = sink
        self._deadlines = deadlines
        self._every = every
        self._links = links
        self._specs = specs
        self._overrides: frozenset[str] = frozenset()
        self._queue: asyncio.Queue[_Call] = asyncio.Queue()
        self._waiting: set[_Call] = set()
        self._asking = ""
        self._devices: tuple[Device, ...] = ()
        self._opened_at: float | None = None
        self._blind: HealthEvent | None = None
        #: Events wait for the first list, which says whose they are, and for their turn.
        self._news = EventQueue()
        self._heard = anyio.Event()
        self._reading_links = False
        #: Bytes that the process had of its own at the last look.
        self.memory = 0

    @property
    def listed(self) -> bool:
        """Whether the first list of devices is out."""
        return self._opened_at is not None

    @property
    def served(self) -> float:
        """For how many seconds the process was of use."""
        return 0.0 if self._opened_at is None else anyio.current_time() - self._opened_at

    async def run(self) -> ContactLost:
        """Serve until contact is lost, and return how that came."""
        try:
            await self._open_and_serve()
        except Exception as exc:
            lost = _lost(exc)
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # both at once: the end of the agent counts
                # A scope lets no cancellation end at it but its own, and ends everything beside it instead.
                await anyio.lowlevel.checkpoint_if_cancelled()
                raise asyncio.CancelledError from exc
            if self._asking == "links":
                self._links.give_up()
            self._fail_calls(lost.reason)
            return lost
        finally:
            self._fail_calls("the agent stops")
        raise AssertionError("a task that serves for ever returned")

    async def _open_and_serve(self) -> None:
        await self.contact.connect()
        try:
            await self._serve()
        finally:
            with anyio.CancelScope(shield=True):
                await self._tell_events()

    async def _serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(for_ever, self.contact.listen, self)
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
            raw = await self.contact.opened(self._deadlines.open)
            self._overrides = frozenset(answers.decode("open", raw))
        except CallRefused as exc:
            raise self._refusal("open", exc) from exc
        except TimeoutError:
            raise vendor_process.failed(f"open did not return within {self._deadlines.open:g} s") from None
        except answers.WrongAnswer as exc:
            raise vendor_process.failed(f"open answered wrongly: {exc}") from exc

    async def _watch_process(self) -> None:
        """Leave the process when it has ended, which what it left behind may hide by holding the socket.

        And when it has more memory than it may: one that leaks must not eat the node.
        """
        while True:
            if how := self.contact.body.ended():
                await anyio.sleep(vendor_process.EXIT_PATIENCE)  # what it said last is heard first
                raise vendor_process.failed(how)
            self.memory = self.contact.body.memory()
            if excess := self.contact.limit.excess(self.memory):
                raise vendor_process.failed(excess)
            await anyio.sleep(min(self._every, LOOK))

    async def ask(self, method: str, *args: Any) -> Any:
        """Queue a call and wait for its answer; a caller who goes away before its turn is not served."""
        call = _Call(method, args)
        self._waiting.add(call)
        self._queue.put_nowait(call)
        try:
            return await call.answer
        finally:
            self._waiting.discard(call)

    def _fail_calls(self, reason: str) -> None:
        for call in self._waiting:
            call.fail(VendorCrashed(self._vendor, reason))

    async def _answer_calls(self) -> None:
        """Make the queued calls, one after the other: the process has one thread for them."""
        while True:
            call = await self._queue.get()
            if not call.answer.done():
                self._asking = call.method
                await self._make(call)
                self._asking = ""

    async def _make(self, call: _Call) -> None:
        try:
            value = await self._made(call.method, call.args, self._deadlines.of(call.method))
            if call.method in MAKING and "cdi" in self._overrides:
                await self._specify_again(after=call.method)
        except _Costly as exc:
            call.fail(exc.error)
            raise exc.lost from exc
        except (VendorError, NotServable, InsufficientRoom) as exc:
            call.fail(exc)
        else:
            call.succeed(value)

    async def _made(self, method: str, args: Sequence[Any], seconds: float) -> Any:
        """What the process answers.

        Raises:
            VendorError: Nothing that could be used.
            NotServable: The backend refuses the request as it is.
            InsufficientRoom: It refuses it while other slices lie on the card.
            _Costly: The process is of no use any more.
        """
        try:
            return answers.decode(method, await self.contact.ask(method, args, seconds))
        except CallRefused as exc:
            if method == "discover":
                raise _Costly(exc, self._refusal("discover", exc)) from exc
            if method == "prepare" and (refusal := REFUSALS.get(exc.failure.type)):
                raise refusal(args[0].resource, exc.failure.message) from exc
            raise
        except TimeoutError:
            error = VendorTimeout(self._vendor, method, seconds)
            late = f"{method} did not return within {seconds:g} s"
            raise _Costly(error, vendor_process.failed(self.contact.body.ended() or late)) from None
        except answers.WrongAnswer as exc:
            wrong = f"{method} answered wrongly: {exc}"
            if method in TOLERATED:
                raise VendorError(f"{self._vendor}: {wrong}") from exc
            raise _Costly(VendorError(f"{self._vendor}: {wrong}"), vendor_process.failed(wrong)) from exc

    async def _specify_again(self, after: str) -> None:
        """Have the CDI specs follow the hardware that was made or removed, before that is answered.

        What is removed is removed, whatever the specs say of it.
        """
        try:
            specs = await self._made("cdi", (), self._deadlines.of("cdi"))
        except (VendorError, _Costly) as exc:
            self._unspecified(exc, costly=isinstance(exc, _Costly))
            if after == "prepare" or isinstance(exc, _Costly):
                raise
        else:
            self._specified(specs)

    def _specified(self, specs: Mapping[str, str]) -> None:
        self._specs.answered()
        self._sink.specified(self._vendor, specs)

    def _unspecified(self, error: Exception, *, costly: bool) -> None:
        """There are no specs; `costly`: the process is lost over it."""
        if costly:
            self._specs.cost()
        else:
            self._specs.forget()
        self._sink.unspecified(self._vendor, str(error))

    def _refusal(self, call: str, exc: CallRefused) -> ContactLost:
        """What an exception of `open` or `discover` means: the vendor is away, or broken."""
        if exc.failure.type == "unavailable":
            return ContactLost(VendorState.UNAVAILABLE, str(exc.failure))
        limited = exc.failure.reason == MemoryError.__name__ and self.contact.limit.bound
        limit = f", {self.contact.limit}" if limited else ""
        return vendor_process.failed(f"{call} failed: {exc.failure}{limit}")

    async def _specify(self, devices: tuple[Device, ...]) -> None:
        """Have the CDI specs follow the devices before these are listed: containers need them at once."""
        if "cdi" not in self._overrides or self._specs.about(devices):
            return
        self._specs.put(devices)
        try:
            specs = await self.ask("cdi")
        except VendorError as exc:
            self._unspecified(exc, costly=isinstance(exc, VendorTimeout | VendorCrashed))
        else:
            self._specified(specs)

    async def _deliver(self, devices: tuple[Device, ...]) -> None:
        if self._devices and not devices:
            raise vendor_process.failed(f"the library lists no devices, it had {len(self._devices)}")
        await self._tell_events()
        self._devices = devices
        self._links.keep_for(devices)
        first, self._opened_at = self._opened_at is None, self._opened_at or anyio.current_time()
        if first:
            log.info("vendor open", vendor=self._vendor, devices=len(devices), pid=self.contact.body.pid)
        self._sink.discovered(self._vendor, self._links.merged(devices))
        if first and self._blind is None:
            self._sink.observed(self._vendor, _watched_again(devices))
        if first:
            await self._tell_events()
        if self._blind is not None:
            # Good polls would clear it, but they say nothing of events: so it is said again after each.
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
        """Hear events."""
        try:
            events = answers.events(raw)
        except answers.WrongAnswer as exc:
            raise vendor_process.failed(f"health_events answered wrongly: {exc}") from exc
        self._admit(events)
        if self._blind is not None:
            self._blind = None
            events = (HealthEvent(None, None), *events)  # something watches the devices again
        self._hear(events)

    def blind(self, failure: BackendFailure) -> None:
        """Hear that nothing watches the devices now."""
        self._admit(())
        fault = Fault(EVENTS_LOST, answers.clean(str(failure), answers.MESSAGE_LIMIT), State.UNKNOWN)
        if self._blind is None or self._blind.fault != fault:
            log.warning("events lost", vendor=self._vendor, reason=str(failure))
            self._blind = HealthEvent(None, fault)
            if self.listed:
                self._hear((self._blind,))

    def _admit(self, events: Sequence[HealthEvent]) -> None:
        if not self._news.admit(events, len(self._devices), anyio.current_time()):
            raise vendor_process.failed(
                f"sent more than {BURST} events at once, and {RATE:g} a second after them"
            )

    def _hear(self, events: Sequence[HealthEvent]) -> None:
        self._news.add(events)
        self._heard.set()

    async def _pass_events_on(self) -> None:
        """Have the next ones wait a little: however many there are, others have their turns."""
        while True:
            await self._heard.wait()
            if self.listed and (events := self._news.take(len(self._devices))):
                self._sink.observed(self._vendor, events)
            if not self.listed or not self._news:
                self._heard = anyio.Event()
            await anyio.sleep(TURN)

    async def _tell_events(self) -> None:
        """Pass on all that was heard until now; between two turns others have theirs."""
        while self.listed and (events := self._news.take(len(self._devices))):
            self._sink.observed(self._vendor, events)
            if self._news:
                await anyio.lowlevel.checkpoint()


def _watched_again(devices: Sequence[Device]) -> tuple[HealthEvent, ...]:
    """Good news about what the last process left unknown, but not about what the list itself calls so."""
    known = [it.uuid for it in devices if it.fault is None or it.fault.state is not State.UNKNOWN]
    if len(known) == len(devices):
        return (HealthEvent(None, None),)
    return tuple(HealthEvent(uuid, None) for uuid in known)


def _lost(exc: Exception) -> ContactLost:
    """The reason in what the tasks raised; anything but lost contact is a bug and travels up."""
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
    return [
        leaf
        for it in group.exceptions
        for leaf in (_leaves(it) if isinstance(it, BaseExceptionGroup) else [it])
    ]

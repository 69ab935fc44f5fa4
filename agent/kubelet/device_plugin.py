"""The kubelet's device plugin API v1beta1 for one resource: translates calls, and decides nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import anyio.to_thread
import structlog
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError
from msgspec import Struct

from agent.core.cell import Cell
from agent.core.errors import InvalidRequest
from agent.core.model import AdvertisedDevice, Resource
from agent.vendor_api.agent import ContainerEdits

from .container_edit_messages import response
from .device_list import KUBELET_RECEIVE_LIMIT, device_list, list_size, too_long
from .pb.deviceplugin.v1beta1 import (
    ContainerPreferredAllocationResponse,
    DevicePluginOptions,
    PreferredAllocationResponse,
)
from .peer_process import PeerProcess, gives_way
from .pending_calls import PendingCalls
from .protobuf import decoded, delimited
from .requested_device_ids import (
    LARGE_REQUEST,
    PreferredRequest,
    allocate_request,
    pre_start_request,
    preferred_request,
)
from .rpc import ByteStream, caller, send, streaming, unary

log = structlog.get_logger()

T = TypeVar("T")

#: From this many IDs on, a list is encoded or a choice is made in a thread: the work takes milliseconds.
_MANY_IDS = 10_000


class RequestHandler(Protocol):
    """Decides the answers. The plugin decodes requests and encodes these answers for the kubelet."""

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> Sequence[ContainerEdits]:
        """Return what each container gets. Runs in a task of the agent that only the deadline cancels."""

    async def expect(self, resource: str, count: int) -> None:
        """Wait until a pod that could ask for `count` IDs is known; the caller bounds the time."""

    def preferred(
        self, resource: str, available: Sequence[str], required: Sequence[str], size: int
    ) -> Sequence[str]:
        """Choose `size` of the available IDs, quickly: it runs on the event loop, or in a thread if many."""

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Make sure that the allocated devices exist; called before every start of a container."""


class PluginLimits(Struct, frozen=True):
    """What one resource's plugin allows itself."""

    #: Seconds between two lists; changes between them go out as one list.
    list_interval: float = 0.1
    #: Seconds in which Allocate and PreStartContainer must be answered.
    allocate: float = 10.0
    #: Seconds for each step of a GetPreferredAllocation.
    preferred: float = 1.0
    #: The longest list in bytes.
    list_bytes: int = KUBELET_RECEIVE_LIMIT


@dataclass(slots=True)
class PluginStats:
    """Counters of one resource since the agent started."""

    registrations_failed: int = 0
    streams: int = 0
    streams_refused: int = 0
    lists: int = 0
    list_bytes: int = 0
    lists_too_long: int = 0
    lists_failed: int = 0
    allocations: int = 0
    allocations_failed: int = 0
    preferred: int = 0
    preferred_empty: int = 0
    pre_starts: int = 0
    pre_starts_failed: int = 0


@dataclass(eq=False, slots=True)
class _ListStream:
    """One open ListAndWatch stream."""

    task: asyncio.Task[object] | None
    peer: PeerProcess
    superseded: bool = False
    #: Whether a refused second stream was logged during this one.
    contested: bool = False


class DevicePlugin:
    """Serves the five calls of one resource, over one socket after another."""

    def __init__(
        self,
        resource: Cell[Resource],
        handler: RequestHandler,
        calls: PendingCalls,
        *,
        pre_start_required: bool = False,
        limits: PluginLimits | None = None,
        stats: PluginStats | None = None,
    ) -> None:
        self._resource = resource
        self._handler = handler
        self._calls = calls
        self._limits = limits or PluginLimits()
        self._list_stream: _ListStream | None = None
        self._last_fitting: Resource | None = None
        self._logged_error = ""
        self._repeat = False
        self.name = resource.value.name
        #: Sent by GetDevicePluginOptions (read from 1.25 on) and by Register (read before); always equal.
        self.options = DevicePluginOptions(
            pre_start_required=pre_start_required, get_preferred_allocation_available=True
        )
        #: Whether a ListAndWatch stream is open.
        self.live: Cell[bool] = Cell(False)
        #: The list that was last sent on the open stream.
        self.delivered: Cell[Resource | None] = Cell(None)
        #: The process that answered the current registration; None where the kernel does not say.
        self.kubelet: PeerProcess | None = None
        #: Set when the agent ends: new calls are refused.
        self.closing = False
        self.stats = stats or PluginStats()

    def methods(self) -> dict[str, Handler]:
        """The handlers by the path of their call (api.proto, service DevicePlugin)."""
        service = "/v1beta1.DevicePlugin"
        return {
            f"{service}/GetDevicePluginOptions": unary(self._options),
            f"{service}/ListAndWatch": streaming(self._list_and_watch),
            f"{service}/GetPreferredAllocation": unary(self.preferred),
            f"{service}/Allocate": unary(self.allocate),
            f"{service}/PreStartContainer": unary(self._pre_start),
        }

    def can_list(self) -> bool:
        """Whether there is a list within the limit: the current one, or an earlier one."""
        return self._last_fitting is not None or list_size(self._resource.value) <= self._limits.list_bytes

    def repeat(self) -> None:
        """Send the list again, changed or not: the kubelet writes its checkpoint at each list it receives."""
        self._repeat = True
        self._resource.touch()

    async def _options(self, request: bytes) -> bytes:
        return bytes(self.options)

    # ListAndWatch

    async def _list_and_watch(self, stream: ByteStream) -> None:
        """Send the list now and after each change, until the kubelet hangs up or the socket closes.

        Never ends by itself, because the kubelet calls once for each registration. A stream of another
        process is refused while this one is open. If the other process came first, its stream ends for the
        kubelet's.
        """
        list_stream = self._open(caller(stream))
        try:
            await self._stream_list(stream)
        except asyncio.CancelledError:
            if not list_stream.superseded:
                raise
            raise self._stream_in_use() from None
        finally:
            self._close(list_stream)

    def _open(self, peer: PeerProcess) -> _ListStream:
        if self._list_stream is not None:
            self._refuse_or_replace(self._list_stream, peer)
        self._list_stream = _ListStream(asyncio.current_task(), peer)
        self.stats.streams += 1
        self.delivered.set(None)
        self.live.set(True)
        return self._list_stream

    def _refuse_or_replace(self, list_stream: _ListStream, challenger: PeerProcess) -> None:
        self.stats.streams_refused += 1
        yields = gives_way(list_stream.peer, challenger, self.kubelet)
        if not list_stream.contested:
            log.warning(
                "a second list stream",
                resource=self.name,
                refused_pid=(list_stream.peer if yields else challenger).pid,
                served_pid=(challenger if yields else list_stream.peer).pid,
            )
            list_stream.contested = True
        if not yields:
            raise self._stream_in_use()
        list_stream.superseded = True
        if list_stream.task is not None:
            list_stream.task.cancel()

    def _stream_in_use(self) -> GRPCError:
        return GRPCError(
            Status.ALREADY_EXISTS, f"{self.name}: the kubelet has the list stream; one is served at a time"
        )

    def _close(self, list_stream: _ListStream) -> None:
        if self._list_stream is list_stream:
            self._list_stream = None
            self.delivered.set(None)
            self.live.set(False)

    async def _stream_list(self, stream: ByteStream) -> None:
        sent: bytes | None = None
        async with aclosing(self._resource.watch()) as resources:  # type: ignore[type-var]
            async for resource in resources:
                message = await self._encode(resource)
                if message is None:
                    continue
                is_new, self._repeat = message != sent or self._repeat, False
                if is_new:
                    await self._send(stream, message)
                self.delivered.set(resource)
                if is_new:
                    sent = message
                    # Changes of this time are sent as one list.
                    await asyncio.sleep(self._limits.list_interval)

    async def _send(self, stream: ByteStream, message: bytes) -> None:
        await send(stream, message)
        self.stats.lists += 1
        self.stats.list_bytes += len(message)

    async def _encode(self, resource: Resource) -> bytes | None:
        """Encode the list. A failure is logged and gives None, because ListAndWatch must go on."""
        try:
            fitting = self._within_limit(resource)
            if fitting is None:
                return None
            if fitting.capacity < _MANY_IDS:
                return device_list(fitting)
            return await anyio.to_thread.run_sync(device_list, fitting, abandon_on_cancel=True)
        except Exception as exc:
            self.stats.lists_failed += 1
            log.error("device list not encoded, the last one stays", resource=self.name, exc_info=exc)
            return None

    def _within_limit(self, resource: Resource) -> Resource | None:
        """The resource, or if its list is too long the IDs of the last list that fit, with current health."""
        error = too_long(resource, self._limits.list_bytes)
        if error is None:
            self._last_fitting, self._logged_error = resource, ""
            return resource
        self._log_too_long(str(error))
        if self._last_fitting is not None:
            self._last_fitting = _with_health_of(self._last_fitting, resource)
        return self._last_fitting

    def _log_too_long(self, error: str) -> None:
        self.stats.lists_too_long += 1
        if error != self._logged_error:
            log.error("device list too long, the last that fits stays", resource=self.name, error=error)
        self._logged_error = error

    # Calls with one answer

    async def allocate(self, request: bytes) -> bytes:
        self.stats.allocations += 1
        try:
            containers = await decoded("AllocateRequest", allocate_request, request, LARGE_REQUEST)
            if not containers:
                raise InvalidRequest(self.name, "it names no container")
            edits = await self._run(lambda: self._handler.allocate(self.name, containers))
            return _allocate_response(edits, len(containers))
        except Exception:
            self.stats.allocations_failed += 1
            raise

    async def _pre_start(self, request: bytes) -> bytes:
        self.stats.pre_starts += 1
        try:
            ids = await decoded("PreStartContainerRequest", pre_start_request, request, LARGE_REQUEST)
            await self._run(lambda: self._handler.pre_start(self.name, ids))
        except Exception:
            self.stats.pre_starts_failed += 1
            raise
        return b""

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work with a deadline: the kubelet sets none, and admits one pod at a time."""
        if self.closing:
            raise GRPCError(Status.UNAVAILABLE, f"{self.name}: the agent is shutting down")
        return await self._calls.run(work, self._limits.allocate)

    async def preferred(self, request: bytes) -> bytes:
        """Never fails: an error would fail the pod, while an empty answer lets the kubelet choose."""
        self.stats.preferred += 1
        try:
            async with asyncio.timeout(self._limits.preferred):
                requests = await decoded(
                    "PreferredAllocationRequest", preferred_request, request, LARGE_REQUEST
                )
        except Exception as exc:
            log.warning("preferred allocation not understood", resource=self.name, error=repr(exc))
            requests = ()
        await self._wait_for_pods(requests)
        choices = await self._choices(requests)
        self.stats.preferred_empty += not any(choices)
        return _preferred_response(choices)

    async def _wait_for_pods(self, requests: Sequence[PreferredRequest]) -> None:
        try:
            async with asyncio.timeout(self._limits.preferred):
                for request in requests:
                    await self._handler.expect(self.name, request.size)
        except TimeoutError:
            pass  # Allocate waits again
        except Exception as exc:
            log.error("preferred allocation: waiting for the pod failed", resource=self.name, exc_info=exc)

    async def _choices(self, requests: Sequence[PreferredRequest]) -> list[Sequence[str]]:
        if sum(len(request.available) for request in requests) < _MANY_IDS:
            return [self._choice(request) for request in requests]
        return await anyio.to_thread.run_sync(lambda: [self._choice(request) for request in requests])

    def _choice(self, request: PreferredRequest) -> Sequence[str]:
        started = time.monotonic()
        try:
            choice = self._handler.preferred(self.name, request.available, request.required, request.size)
            if not _is_valid(choice, request):
                raise ValueError(f"not a choice of {request.size} from {len(request.available)} IDs")
        except Exception as exc:
            log.error("preferred allocation unanswered", resource=self.name, exc_info=exc)
            return ()
        if (took := time.monotonic() - started) > self._limits.preferred:
            log.warning("preferred allocation was slow", resource=self.name, seconds=round(took, 3))
        return choice


def _is_valid(choice: Sequence[str], request: PreferredRequest) -> bool:
    """Whether the choice is empty, or as many distinct available IDs as asked for, with all required ones.

    If more IDs are required than asked for, the choice may be the required ones, as NVIDIA's plugin answers.
    """
    chosen, required = set(choice), set(request.required)
    if not chosen:
        return True
    distinct = len(chosen) == len(choice) == max(request.size, len(required))
    return distinct and required <= chosen and not chosen.difference(required, request.available)


def _with_health_of(old: Resource, new: Resource) -> Resource:
    """The old IDs of every card that still exists, with the current health of the card."""
    cards = {card.uuid: card for card in new.cards}
    kept = tuple(_refreshed(card, cards[card.uuid]) for card in old.cards if card.uuid in cards)
    return replace(new, cards=kept)


def _refreshed(old: AdvertisedDevice, new: AdvertisedDevice) -> AdvertisedDevice:
    return replace(old, healthy=new.healthy, held=new.held, closed=new.closed)


def _allocate_response(edits: Sequence[ContainerEdits], containers: int) -> bytes:
    if len(edits) != containers:
        # The kubelet accepts an answer with too few containers, and leaks the devices.
        raise RuntimeError(f"{len(edits)} answers for {containers} containers")
    return b"".join(delimited(1, response(container)) for container in edits)


def _preferred_response(choices: Sequence[Sequence[str]]) -> bytes:
    return bytes(
        PreferredAllocationResponse(
            container_responses=[
                ContainerPreferredAllocationResponse(device_i_ds=list(choice)) for choice in choices
            ]
        )
    )

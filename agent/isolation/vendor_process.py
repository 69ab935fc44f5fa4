"""One vendor process from start to end: start it, call it, receive its events, end it."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio
import msgspec

from agent.core.errors import VendorError
from agent.core.model import VendorState
from agent.isolation.backend_runner import ProcessRunner, Runner, ThreadRunner
from agent.isolation.process_output import LineSink, Output, logged
from agent.isolation.vendor_answers import MESSAGE_LIMIT, REASON_LIMIT, clean
from agent.isolation.vendor_memory_limit import MemoryLimit
from agent.vendor_api.agent import DRIVER_NOT_LOADED, Vendor
from agent.vendor_api.text import shorten

LINE_LIMIT = 16 << 20  # bytes of one message
READ_AHEAD = 256 << 10  # bytes that asyncio buffers before they are read; twice as many at most
EXIT_PATIENCE = 1.0  # seconds from the end of the connection to the end of the process
REASON = re.compile(rf"[a-z0-9-]{{1,{REASON_LIMIT}}}")
UNAVAILABLE = "unavailable"  # replaces a reason of another form


class ContactLost(Exception):
    """Raised when contact with a vendor's process is lost: the vendor's new state, and the reason."""

    def __init__(self, state: VendorState, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason


def failed(reason: str) -> ContactLost:
    # Core takes this beginning to mean that the driver was away, which only the backend may say.
    if reason.startswith(DRIVER_NOT_LOADED):
        reason = f"failed: {reason}"
    return ContactLost(VendorState.FAILED, reason)


class BackendFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exception of the backend, as its process sends it."""

    type: Literal["unavailable", "refused", "no-room", "failed"]
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason

    def bounded(self) -> BackendFailure:
        """The failure with bounded texts; the reason of an unavailable vendor is one lower-case word."""
        reason, message = self.reason, self.message
        if self.type == "unavailable" and not REASON.fullmatch(reason):
            reason, message = UNAVAILABLE, ": ".join(filter(None, (reason[:MESSAGE_LIMIT], message)))
        return BackendFailure(self.type, clean(reason, REASON_LIMIT), clean(message, MESSAGE_LIMIT))


class CallRefused(VendorError):
    """Raised when the backend answered a call with an exception."""

    def __init__(self, vendor: str, call: str, failure: BackendFailure) -> None:
        super().__init__(f"{vendor}: {call}: {failure}")
        self.failure = failure


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    id: int | None = None
    answer: msgspec.Raw = msgspec.Raw()
    error: BackendFailure | None = None
    events: msgspec.Raw = msgspec.Raw()
    blind: BackendFailure | None = None


class ProcessListener(Protocol):
    """Receives what the process sends without a call."""

    def events(self, raw: bytes) -> None: ...
    def blind(self, failure: BackendFailure) -> None: ...


class VendorProcess:
    """A started process and the connection to it: one call and one sample at a time.

    `open` is sent at the start.
    """

    def __init__(
        self,
        vendor: Vendor,
        *,
        watch: float | None,
        in_process: bool = False,
        python_path: Sequence[str] = (),
        limit: MemoryLimit | None = None,
        emit: LineSink | None = None,
        directory: Path | None = None,
    ) -> None:
        """`directory` is for files of the backend that outlive the process."""
        self.limit = limit or MemoryLimit()
        self._vendor = vendor.name
        self._sock, child_end = socket.socketpair()
        try:
            self.runner: Runner = (
                ThreadRunner(child_end)
                if in_process
                else ProcessRunner(child_end, self.limit, vendor.host.environment)
            )
        except OSError:
            self._sock.close()
            raise
        printed = self.runner.printed
        self._output = None if printed is None else Output(printed, emit or logged(vendor.name))
        self._number = 1
        #: What was asked and not answered, by number. A call that failed leaves; a sample stays until then.
        self._asked: dict[int, asyncio.Future[_Message]] = {}
        self._opening: asyncio.Future[_Message] | None = None
        self._sample = 0
        self._transport: asyncio.WriteTransport | None = None
        self._send(
            {
                "backend": vendor.backend,
                "settings": vendor.settings.for_backend,
                "path": python_path,
                "watch": watch,
                "directory": None if directory is None else str(directory),
            }
        )
        self._send({"id": self._number, "call": "open", "args": []})

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # if the process died early, the reader reports that with the cause
            self._sock.sendall(msgspec.json.encode(message) + b"\n")

    async def connect(self) -> None:
        """Use the running event loop from now on; the process starts its work before that."""
        if self._output is not None:
            self._output.follow()
        self._sock.setblocking(False)
        self._opening = self._asked[self._number] = asyncio.get_running_loop().create_future()
        self._reader, self._writer = await asyncio.open_connection(sock=self._sock, limit=READ_AHEAD)
        self._transport = self._writer.transport

    async def opened(self, seconds: float) -> bytes:
        """Wait for the answer to `open`."""
        assert self._opening is not None
        return await self._answer("open", self._opening, seconds)

    async def ask(self, call: str, args: Sequence[Any], seconds: float) -> bytes:
        """Make a call and return its answer as JSON.

        Raises:
            CallRefused: The backend raised an exception.
            TimeoutError: There was no answer in time; the connection cannot be used any more.
        """
        number, reply = self._write(call, args)
        try:
            return await self._answer(call, reply, seconds)
        finally:
            self._asked.pop(number, None)

    @property
    def is_sampling(self) -> bool:
        """Whether a sample was asked for and is not answered yet, whether or not its caller still waits."""
        return self._sample in self._asked

    async def sampled(self, seconds: float) -> None:
        """Wait until the last sample is answered, whether or not its caller still waits.

        Raises:
            TimeoutError: There is still no answer.
            VendorError: The process was given up meanwhile.
        """
        if (reply := self._asked.get(self._sample)) is not None:
            await _result(reply, seconds)

    async def sample(self, seconds: float) -> bytes:
        """Ask for a sample beside the calls, while there is no other one; returns the answer as JSON.

        Raises:
            CallRefused: The process could not make samples at all.
            TimeoutError: There was no answer in time; a late one is dropped.
            VendorError: The process was given up meanwhile.
        """
        self._sample, reply = self._write("sample", ())
        return await self._answer("sample", reply, seconds)

    def fail_sample(self, error: VendorError) -> None:
        """Fail the sample that was asked for, since the process is given up."""
        reply = self._asked.pop(self._sample, None)
        if reply is not None and not reply.done():
            reply.set_exception(error)
            reply.exception()  # marked as retrieved: the caller may be gone

    def _write(self, call: str, args: Sequence[Any]) -> tuple[int, asyncio.Future[_Message]]:
        self._number += 1
        reply = self._asked[self._number] = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "call": call, "args": args}
        self._writer.write(msgspec.json.encode(message) + b"\n")
        return self._number, reply

    async def _answer(self, call: str, reply: asyncio.Future[_Message], seconds: float) -> bytes:
        message = await _result(reply, seconds)
        if message.error is not None:
            raise CallRefused(self._vendor, call, message.error)
        return bytes(message.answer)

    async def listen(self, listener: ProcessListener) -> None:
        """Receive messages, for ever.

        Raises:
            ContactLost: The process ended, or sent something that is no message.
        """
        while True:
            self._take(await self._line(), listener)
            await asyncio.sleep(0)  # so that a flood of lines does not block the event loop

    async def _line(self) -> bytes:
        line = bytearray()
        try:
            while not line.endswith(b"\n"):
                line += await self._piece()
                if len(line) > LINE_LIMIT:
                    raise failed(f"sent a line of more than {LINE_LIMIT} bytes")
        except (ConnectionError, asyncio.IncompleteReadError):
            raise failed(await self._how()) from None
        return bytes(line)

    async def _piece(self) -> bytes:
        """The next part of a line, up to its end."""
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as exc:
            return await self._reader.readexactly(exc.consumed)

    async def _how(self) -> str:
        with anyio.move_on_after(EXIT_PATIENCE):
            await self.gone()
        return self.runner.ended() or "closed its end of the connection"

    def _take(self, line: bytes, listener: ProcessListener) -> None:
        message = _read(line)
        if message.blind is not None:
            listener.blind(message.blind)
        elif message.id is None:
            listener.events(bytes(message.events))
        elif (reply := self._asked.pop(message.id, None)) is None:
            raise failed(f"answered call {message.id}, which was not asked")
        elif not reply.done():
            reply.set_result(message)

    async def gone(self) -> None:
        """Wait until the process has ended."""
        pause = 0.001
        while self.runner.ended() is None:
            await anyio.sleep(pause)
            pause = min(2 * pause, 0.1)

    async def end(self, grace: float = 0.0) -> None:
        """Close the connection, give the backend `grace` seconds to close, kill, and wait for the end."""
        self._hang_up()
        await asyncio.sleep(0)  # a turn in which the transport closes its socket
        try:
            with anyio.move_on_after(grace):
                await self.gone()
            self.runner.kill()
            await self.gone()
        finally:
            self._stop_reading()

    def drop(self) -> None:
        """Close the connection and kill, without waiting."""
        self._hang_up()
        self.runner.kill()
        self.runner.forget()
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._output is not None:
            self._output.close()

    def _hang_up(self) -> None:
        if self._transport is None:
            self._sock.close()
        else:
            self._transport.abort()


async def _result(reply: asyncio.Future[_Message], seconds: float) -> _Message:
    """The reply, which a timeout or a cancellation leaves to others that wait."""
    with anyio.fail_after(seconds):
        await asyncio.wait({reply})
    return reply.result()


def _read(line: bytes) -> _Message:
    try:
        message = msgspec.json.decode(line, type=_Message)
        message.error = message.error and message.error.bounded()
        message.blind = message.blind and message.blind.bounded()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        message = _Message()
    replies = (bool(bytes(message.answer)), message.error is not None)
    kinds = (message.id is not None, bool(bytes(message.events)), message.blind is not None)
    if sum(kinds) != 1 or sum(replies) != int(kinds[0]):
        raise failed(f"sent what is no message: {shorten(line[:200].decode('latin-1').strip())}")
    return message

"""One vendor process from start to end: start it, call it, receive its events, end it."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio
import msgspec
import structlog

from agent.core.errors import VendorError
from agent.core.model import VendorState
from agent.isolation import child, descendants
from agent.isolation.answers import MESSAGE_LIMIT, REASON_LIMIT, clean
from agent.isolation.process_memory import MemoryLimit, used
from agent.isolation.process_output import LineSink, Output, logged
from agent.vendor_api.agent import DRIVER_NOT_LOADED, Vendor
from agent.vendor_api.text import shorten

log = structlog.get_logger()

LINE_LIMIT = 16 << 20  # bytes of one message
READ_AHEAD = 256 << 10  # bytes that asyncio buffers before they are read; twice as many at most
EXIT_PATIENCE = 1.0  # seconds from the end of the connection to the end of the process
ENVIRONMENT = frozenset({"PATH", "LD_LIBRARY_PATH", "LANG", "HOME", "TZ", "TMPDIR"})
ENVIRONMENT_PREFIXES = ("LC_", "XPU_")
REASON = re.compile(rf"[a-z0-9-]{{1,{REASON_LIMIT}}}")
UNAVAILABLE = "unavailable"  # replaces a reason of another form
# The agent's folder is added, as -I leaves it out, so that the process starts from a source tree too.
BOOT = "import sys; sys.path.append(sys.argv[2]); from agent.isolation.child import main; main()"


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


class Runner(Protocol):
    """Runs the backend: a process, or a thread in tests."""

    @property
    def pid(self) -> int: ...
    @property
    def printed(self) -> int | None:
        """The descriptor from which the printed output is read."""

    def ended(self) -> str | None:
        """How the backend's run ended; None while it runs."""

    def memory(self) -> int:
        """Bytes of the process's own memory."""

    def kill(self) -> None:
        """Kill the process and all that it forked, and close what ties it to the agent."""

    def forget(self) -> None:
        """Have the process collected when it ends, without waiting."""


class ProcessRunner:
    """A process in its own session that shares one socket with the agent.

    It also has one end of a pipe, and no other file of the agent. The agent keeps the other end open as long
    as it lives.
    """

    def __init__(self, sock: socket.socket, limit: MemoryLimit, prefixes: Sequence[str] = ()) -> None:
        self._limit = limit
        self._ended: str | None = None
        root = str(Path(child.__file__).parents[1])
        self.printed, printing_end = os.pipe()
        end_of_life, self._life = os.pipe()
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-c", BOOT, *map(str, (sock.fileno(), root, end_of_life, limit.wall))],
                stdin=subprocess.DEVNULL,
                stdout=printing_end,
                stderr=printing_end,
                env=environment(prefixes),
                pass_fds=(sock.fileno(), end_of_life),
                start_new_session=True,
            )
        except OSError:
            os.close(self.printed)
            self._let_go()
            raise
        finally:
            sock.close()
            os.close(printing_end)
            os.close(end_of_life)
        self.pid = self._popen.pid

    def ended(self) -> str | None:
        try:
            if self._ended is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._kill_descent()  # before the pid is collected, so that it is not used again
                self._ended = self._collect()
        except ChildProcessError:
            self._ended = "ended and was collected by another part of the agent"
        return self._ended

    def _collect(self) -> str:
        """Collect the dead process; returns how it ended, and the memory it used if too much."""
        _, status, usage = os.wait4(self.pid, 0)
        self._popen.returncode = code = os.waitstatus_to_exitcode(status)
        how = f"exited with status {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
        # A process inherits the peak of the process that started it.
        known = usage.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        excess = self._limit.excess(usage.ru_maxrss << 10) if known else ""
        return f"{how}, {excess}" if excess else how

    def memory(self) -> int:
        return used(self.pid)

    def kill(self) -> None:
        if self.ended() is None:
            self._kill_group()
        self._let_go()

    def forget(self) -> None:
        """Reap the killed process in a thread: a process in uninterruptible sleep ends late."""
        if self.ended() is None:
            threading.Thread(target=self._await_end, name=f"end of {self.pid}", daemon=True).start()

    def _await_end(self) -> None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.ended()

    def _let_go(self) -> None:
        """Close the agent's end of the pipe, which ends the rest of the process group."""
        if self._life >= 0:
            os.close(self._life)
            self._life = -1

    def _kill_descent(self) -> None:
        """Kill the process's descendants that still run."""
        self._kill_group()
        if left := descendants.end_of(self.pid):
            log.info("processes that a vendor's library left behind are ended", pid=self.pid, ended=left)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def environment(prefixes: Sequence[str] = ()) -> dict[str, str]:
    """The variables of the agent's environment that a vendor's process gets.

    `prefixes`: those of the vendor (`Host.environment`). Other variables may hold secrets of the agent.
    """
    known = (*ENVIRONMENT_PREFIXES, *prefixes)
    return {
        name: value for name, value in os.environ.items() if name in ENVIRONMENT or name.startswith(known)
    }


class ThreadRunner:
    """Runs the same code in a thread of the agent, for tests and debuggers; a hung thread is left behind."""

    def __init__(self, sock: socket.socket) -> None:
        self.pid = os.getpid()
        self.printed = None
        self._how = "exited with status 0"
        self._left_behind = False
        self._thread = threading.Thread(target=self._run, args=(sock,), name="vendor", daemon=True)
        self._thread.start()

    def _run(self, sock: socket.socket) -> None:
        try:
            child.serve(sock)
        except SystemExit as exc:
            self._how = f"exited with status {exc.code}"

    def ended(self) -> str | None:
        return None if self._thread.is_alive() and not self._left_behind else self._how

    def memory(self) -> int:
        return 0  # a thread's memory is the agent's

    def kill(self) -> None:
        self._left_behind = True

    def forget(self) -> None:
        """Nothing to do: the thread ends with the agent."""


class VendorProcess:
    """A started process and the connection to it. One call at a time; `open` is sent at the start."""

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
            self.body: Runner = (
                ThreadRunner(child_end)
                if in_process
                else ProcessRunner(child_end, self.limit, vendor.host.environment)
            )
        except OSError:
            self._sock.close()
            raise
        printed = self.body.printed
        self._output = None if printed is None else Output(printed, emit or logged(vendor.name))
        self._number = 1
        self._reply: asyncio.Future[_Message] | None = None
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
        self._reply = asyncio.get_running_loop().create_future()
        self._reader, self._writer = await asyncio.open_connection(sock=self._sock, limit=READ_AHEAD)
        self._transport = self._writer.transport

    async def opened(self, seconds: float) -> bytes:
        """Wait for the answer to `open`."""
        return await self._answer("open", seconds)

    async def ask(self, call: str, args: Sequence[Any], seconds: float) -> bytes:
        """Make a call and return its answer as JSON.

        Raises:
            CallRefused: The backend raised an exception.
            TimeoutError: There was no answer in time; the connection cannot be used any more.
        """
        self._number += 1
        self._reply = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "call": call, "args": args}
        self._writer.write(msgspec.json.encode(message) + b"\n")
        return await self._answer(call, seconds)

    async def _answer(self, call: str, seconds: float) -> bytes:
        assert self._reply is not None
        with anyio.fail_after(seconds):
            message = await self._reply
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
        return self.body.ended() or "closed its end of the connection"

    def _take(self, line: bytes, listener: ProcessListener) -> None:
        message = _read(line)
        if message.blind is not None:
            listener.blind(message.blind)
        elif message.id is None:
            listener.events(bytes(message.events))
        elif self._reply is None or self._reply.done() or message.id != self._number:
            raise failed(f"answered call {message.id}, which was not asked")
        else:
            self._reply.set_result(message)

    async def gone(self) -> None:
        """Wait until the process has ended."""
        pause = 0.001
        while self.body.ended() is None:
            await anyio.sleep(pause)
            pause = min(2 * pause, 0.1)

    async def end(self, grace: float = 0.0) -> None:
        """Close the connection, give the backend `grace` seconds to close, kill, and wait for the end."""
        self._hang_up()
        await asyncio.sleep(0)  # a turn in which the transport closes its socket
        try:
            with anyio.move_on_after(grace):
                await self.gone()
            self.body.kill()
            await self.gone()
        finally:
            self._stop_reading()

    def drop(self) -> None:
        """Close the connection and kill, without waiting."""
        self._hang_up()
        self.body.kill()
        self.body.forget()
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._output is not None:
            self._output.close()

    def _hang_up(self) -> None:
        if self._transport is None:
            self._sock.close()
        else:
            self._transport.abort()


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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""Runs in a vendor's own process: serves a Backend to the agent over a socket, in lines of JSON.

Imports the standard library only, so that the process is small and starts fast. The main thread makes all
calls. If the backend watches health, a second thread waits for events. From the first sample of use on,
another thread makes samples, and one more reads what the agent asks, so that no call makes a sample wait.
"""

from __future__ import annotations

import faulthandler
import fcntl
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import (
    Backend,
    BackendUnavailable,
    HealthEvent,
    NoRoom,
    Request,
    RequestRefused,
    overrides,
)

CALLS = frozenset(
    {
        "open",
        "close",
        "discover",
        "links",
        "health_events",
        "prepare",
        "release",
        "partitions",
        "cdi",
        "start_sampling",
        "sample",
    }
)
#: The methods of a sample; no call asks for one of them alone.
SAMPLED = ("usage", "processes")
OPTIONAL = ("links", "health_events", "prepare", "release", "partitions", "cdi", *SAMPLED)

TEXT_LIMIT = 2000  # characters of a vendor's error that are sent
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds between failed waits for events
QUICK = 0.01  # a shorter wait for events counts as no wait
FREE_QUICK_WAITS = 32  # so many short waits in a row are allowed, as in a burst; more are slowed down
QUICK_PAUSE = 0.05
SAMPLE_LIMIT = 4 << 20  # bytes of a method's answer in a sample; more would cost the agent its time
SAMPLE_PATIENCE = 0.2  # seconds that the end of the process waits for a sample; the agent waits longer
FREE_EVENTS, EVENTS_PER_SECOND = 4096, 1000.0  # at once, and after that; `EventWatch` counts them

F_SETSIG = 10  # linux/fcntl.h; the module fcntl lacks the name
#: RLIMIT_LOCKS, which the module resource lacks. Kernels since 2.4.25 ignore this limit (getrlimit(2)).
LOCKS = 10
MARK = 0x787075 << 32


def main() -> None:
    """Serve the socket that the first argument names, by its descriptor, until the agent closes it.

    The third argument is the descriptor of a pipe that ends with the agent; the fourth is the memory limit in
    bytes.
    """
    die_with_the_agent(int(sys.argv[3]))
    mark_descent()
    limit_memory(int(sys.argv[4]))
    faulthandler.enable()
    os.dup2(2, 1)  # a library's prints must not reach readers of stdout
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    os._exit(_status_of(sock))  # threads and exit functions of a library cannot delay this end


def _status_of(sock: socket.socket) -> int:
    try:
        serve(sock)
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def die_with_the_agent(pipe: int) -> None:
    """Have the kernel kill this process and all that it forks when the agent ends, even in a hung call.

    Only the agent has the other end of the pipe, and never writes. When the agent ends, the pipe becomes
    ready, and fcntl(2) sends SIGKILL to the whole process group. PR_SET_PDEATHSIG of prctl(2) would not reach
    forked processes, and would also kill when the agent's thread that started this process ends.
    """
    os.set_inheritable(pipe, False)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:
        os._exit(0)  # the agent ended before the signal was set up


def mark_descent() -> None:
    """Mark this process and all its future descendants, so that the agent can find what it leaves behind.

    The mark is a resource limit: fork and exec keep it, whatever session, parent or files a descendant has.
    """
    mark = MARK | os.getpid()
    with suppress(OSError, ValueError):  # the hard limit is lower already
        resource.setrlimit(LOCKS, (mark, mark))


def limit_memory(size: int) -> None:
    """Have the kernel refuse memory above `size` bytes; 0 sets no limit.

    RLIMIT_AS would not do: libraries of accelerators reserve far more addresses than they use.
    """
    if size:
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def serve(sock: socket.socket) -> None:
    """Answer calls until the other end closes; the first line names the backend."""
    with sock:
        line = AgentSocket(sock)
        lines = iter(line)
        start = next(lines, None)
        if start is None:
            return
        desk = CallDesk(line, **start)
        try:
            for message in desk.calls(lines):
                line.send(desk.answer(message["id"], message["call"], message["args"]))
                desk.watch_after(message["call"])
        finally:
            desk.leave()


class AgentSocket:
    """The socket to the agent: reads messages, and sends from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._sock.makefile("rb") as file:
            try:
                for line in file:
                    yield json.loads(line)
            except OSError:  # a reset ends the messages too
                return

    def send(self, message: bytes) -> None:
        try:
            with self._sending:
                self._sock.sendall(message)
        except OSError:
            pass  # the agent is gone; the next read ends the loop


def encode(message: object) -> bytes:
    """A message as one line of JSON; TypeError or ValueError for values that JSON lacks (bytes, NaN)."""
    return json.dumps(message, default=_plain, allow_nan=False).encode() + b"\n"


#: Field names of the dataclasses that were sent: a sample has a thousand of them.
_FIELDS: dict[type, tuple[str, ...]] = {}


def _plain(value: object) -> Any:
    names = _FIELDS.get(type(value))
    if names is None and is_dataclass(value):
        names = _FIELDS[type(value)] = tuple(it.name for it in fields(value))
    if names is not None:
        return {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent: {value!r:.80}")


def error(exc: Exception) -> dict[str, str]:
    """An exception in the form that the agent reads."""
    if isinstance(exc, BackendUnavailable):
        kind, reason, message = "unavailable", str(exc.reason), str(exc.message)
    elif isinstance(exc, NoRoom):
        kind, reason, message = "no-room", "refused", str(exc)
    elif isinstance(exc, RequestRefused):
        kind, reason, message = "refused", "refused", str(exc)
    else:
        kind, reason, message = "failed", type(exc).__name__, str(exc)
    return {"type": kind, "reason": reason[:TEXT_LIMIT], "message": message[:TEXT_LIMIT]}


class CallDesk:
    """Makes the agent's calls of the backend.

    `watch` is the timeout in seconds of one wait for events, None for no watch. `directory` is for the
    backend's own files, if it has one.
    """

    def __init__(
        self,
        line: AgentSocket,
        backend: str,
        settings: Mapping[str, Any],
        path: Sequence[str],
        watch: float | None,
        directory: str | None = None,
    ) -> None:
        self._line = line
        self._where = backend
        self._settings = settings
        self._wait = watch
        self._directory = directory
        self._devices = 1
        self._backend: Backend | None = None
        self._sampling: SampleMaker | None = None
        self._left = threading.Event()
        sys.path.extend(entry for entry in path if entry not in sys.path)

    def calls(self, messages: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The calls for this thread, in order. After `start_sampling`, another thread reads the messages."""
        for message in messages:
            yield message
            if message["call"] == "start_sampling" and self._sampling is not None:
                yield from self._sampling.calls(messages)

    def answer(self, number: int, call: str, args: list[Any]) -> bytes:
        """Make a call; the answer has its result or its exception."""
        try:
            if call == "sample":
                return self._start_sampling().answer(number)
            return encode({"id": number, "answer": self._make(call, args)})
        except Exception as exc:
            if not isinstance(exc, BackendUnavailable | RequestRefused):
                traceback.print_exc()
            return encode({"id": number, "error": error(exc)})

    def _make(self, call: str, args: list[Any]) -> Any:
        if call not in CALLS:
            raise ValueError(f"{call!r} is no call of a Backend")
        if call == "start_sampling":
            self._start_sampling()
            return None
        if call == "prepare":
            args = [_request(args[0]), tuple(args[1])]
        backend = self._loaded()
        answer = getattr(backend, call)(*args)
        if call == "open":
            methods = [name for name in OPTIONAL if overrides(type(backend), name)]
            return {"methods": methods, "one_caller": bool(backend.one_caller)}
        if call == "discover":
            self._devices = max(len(answer), 1) if isinstance(answer, Sequence) else 1
        return answer

    def _loaded(self) -> Backend:
        if self._backend is None:
            backend = _load(self._where)(self._settings)
            backend.directory = Path(self._directory) if self._directory else None
            self._backend = backend
        return self._backend

    def _start_sampling(self) -> SampleMaker:
        self._sampling = self._sampling or SampleMaker(self._loaded(), self._line.send)
        return self._sampling

    def watch_after(self, call: str) -> None:
        """Start to wait for events after the first list of devices, which gives events their meaning."""
        backend, wait = self._backend, self._wait
        if call != "discover" or wait is None or backend is None:
            return
        self._wait = None
        if overrides(type(backend), "health_events"):
            watch = EventWatch(backend.health_events, self._line.send, wait, lambda: self._devices)
            threading.Thread(target=watch.run, args=(self._left,), name="events", daemon=True).start()

    def leave(self) -> None:
        self._left.set()
        if self._sampling is not None:
            self._sampling.stop(SAMPLE_PATIENCE)
        try:
            if self._backend is not None:
                self._backend.close()
        except Exception:
            traceback.print_exc()


def _load(where: str) -> type[Backend]:
    module, _, name = where.partition(":")
    found = getattr(importlib.import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise TypeError(f"{where} is not a subclass of Backend")
    return found


def _request(raw: Mapping[str, Any]) -> Request:
    return Request(**{**raw, "ids": tuple(raw["ids"]), "partitions": tuple(raw.get("partitions", ()))})


class SampleMaker:
    """Makes the methods of a sample, each apart from the other, in a thread of its own.

    For a backend with `one_caller`, the agent starts no thread, and `answer` is called between other calls.
    """

    def __init__(self, backend: Backend, send: Callable[[bytes], None]) -> None:
        self._backend = backend
        self._send = send
        self._methods = [name for name in SAMPLED if overrides(type(backend), name)]
        #: The methods that failed in the last sample: their traceback is printed once.
        self._failing: set[str] = set()
        self._numbers: deque[int] = deque()
        self._asked = threading.Semaphore(0)
        self._stopped = False
        self._thread: threading.Thread | None = None

    def calls(self, messages: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The messages that ask for no sample, for the calling thread; other threads read, and sample."""
        from queue import SimpleQueue  # here: most processes make no samples

        calls: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()
        threading.Thread(target=self._read, args=(messages, calls.put), name="reading", daemon=True).start()
        yield from iter(calls.get, None)

    def _read(self, messages: Iterator[dict[str, Any]], put: Callable[[dict[str, Any] | None], None]) -> None:
        try:
            for message in messages:
                if message["call"] == "sample":
                    self._numbers.append(message["id"])
                    self._asked.release()
                else:
                    put(message)
        finally:
            put(None)

    def _run(self) -> None:
        while self._asked.acquire() and not self._stopped:
            self._send(self.answer(self._numbers.popleft()))

    def stop(self, patience: float) -> None:
        """Make no more samples, and wait so many seconds at most for the end of one that is being made."""
        self._stopped = True
        self._asked.release()
        if self._thread is not None:
            self._thread.join(patience)

    def answer(self, number: int) -> bytes:
        """A sample: by method its answer, or in words why there is none."""
        parts = (b'"%s": %s' % (name.encode(), self._part(name)) for name in self._methods)
        return b'{"id": %d, "answer": {%s}}\n' % (number, b", ".join(parts))

    def _part(self, method: str) -> bytes:
        try:
            part = b'{"answer": %s}' % encode_figures(getattr(self._backend, method)())
            if len(part) > SAMPLE_LIMIT:
                raise ValueError(f"the answer has {len(part)} bytes, at most {SAMPLE_LIMIT} work")
        except Exception as exc:
            if method not in self._failing:
                traceback.print_exc()
            self._failing.add(method)
            return b'{"error": %s}' % encode(f"{type(exc).__name__}: {exc}"[:TEXT_LIMIT]).rstrip()
        self._failing.discard(method)
        return part


def encode_figures(entries: Sequence[Any]) -> bytes:
    """Entries of a sample as JSON. A number that JSON lacks (NaN) becomes its name: the others are sent."""
    try:
        return encode(entries).rstrip()
    except ValueError:
        return encode([_with_named_numbers(_plain(entry)) for entry in entries]).rstrip()


def _with_named_numbers(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in entry.items()
    }


class EventWatch:
    """Waits for events and sends them; pauses if waits fail, or return too soon.

    `devices` gives the number of devices; an event about several devices counts once for each.
    """

    def __init__(
        self,
        wait: Callable[[float], Sequence[HealthEvent]],
        send: Callable[[bytes], None],
        timeout: float,
        devices: Callable[[], int] = lambda: 1,
    ) -> None:
        self._wait = wait
        self._send = send
        self._timeout = timeout
        self._devices = devices
        self._failures = 0
        self._quick = 0
        self._free = float(FREE_EVENTS)
        self._at = 0.0

    def run(self, left: threading.Event) -> None:
        while not left.wait(self.once()):
            pass

    def once(self) -> float:
        """Wait for events once; returns a pause in seconds."""
        began = time.monotonic()
        try:
            events = tuple(self._wait(self._timeout))
            message = encode({"events": events})
        except Exception as exc:
            return self._failed(exc)
        if events or self._failures:  # an empty list after a failure reports that the wait works again
            self._send(message)
        self._failures = 0
        now = time.monotonic()
        return max(self._pause_after(now - began), self._pause_for(self._count(events), now))

    def _failed(self, exc: Exception) -> float:
        self._send(encode({"blind": error(exc)}))
        pause = min(FIRST_PAUSE * 2.0 ** min(self._failures, 20), LONGEST_PAUSE)
        self._failures += 1
        return pause

    def _pause_after(self, seconds: float) -> float:
        self._quick = self._quick + 1 if seconds < QUICK else 0
        return QUICK_PAUSE if self._quick > FREE_QUICK_WAITS else 0.0

    def _count(self, events: Sequence[HealthEvent]) -> int:
        """The events as the agent counts them (`vendor_event_queue.weight`)."""
        broadcasts = sum(getattr(it, "uuid", "") is None or bool(getattr(it, "proof", None)) for it in events)
        return len(events) - broadcasts + broadcasts * self._devices()

    def _pause_for(self, count: int, now: float) -> float:
        self._free = min(self._free + (now - self._at) * EVENTS_PER_SECOND, float(FREE_EVENTS)) - count
        self._at = now
        return max(0.0, -self._free / EVENTS_PER_SECOND)

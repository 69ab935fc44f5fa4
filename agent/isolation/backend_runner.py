"""What runs a vendor's backend: a process of its own, or a thread for tests and debuggers."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog

from agent.isolation import child, descendants
from agent.isolation.vendor_memory_limit import MemoryLimit, used

log = structlog.get_logger()

ENVIRONMENT = frozenset({"PATH", "LD_LIBRARY_PATH", "LANG", "HOME", "TZ", "TMPDIR"})
ENVIRONMENT_PREFIXES = ("LC_", "XPU_")
# The agent's folder is added, as -I leaves it out, so that the process starts from a source tree too.
BOOT = "import sys; sys.path.append(sys.argv[2]); from agent.isolation.child import main; main()"


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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

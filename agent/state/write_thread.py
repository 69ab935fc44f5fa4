"""A thread that runs jobs in turn, so that two writes never overlap."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress


class WriteThread:
    """A daemon thread, so that a disk that hangs does not keep the process from ending."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> asyncio.Future[str]:
        """Run the job after earlier jobs. The future's result is the job's error, or ""."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()

        def work() -> None:
            error = ""
            try:
                job()
            except Exception as exc:
                # Any error: the thread must go on, and the caller must get an answer.
                error = str(exc) or repr(exc)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done.set_result, error)

        self._work.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="state", daemon=True)
            self._thread.start()
        return done

    def _run(self) -> None:
        while True:
            self._work.get()()

"""One thread that does jobs in turn, so that writes never meet."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress


class Worker:
    """A daemon, so that a disk that hangs does not stop the end."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> asyncio.Future[str]:
        """Do the job after those before it; the future is its error, or ""."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()

        def work() -> None:
            error = ""
            try:
                job()
            except Exception as exc:
                # Whatever it is: the thread lives on, and nobody waits for ever.
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

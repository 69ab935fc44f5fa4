"""Background tasks with one owner; unlike a task group it can be opened and closed in different tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """A pytest fixture enters and leaves in two tasks, which no cancel scope survives."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._failed: list[BaseException] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed.append(error)

    async def close(self) -> None:
        """Cancel the tasks that still run, and raise the errors of all tasks as a group."""
        running = [task for task in self._running if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        failed, self._failed = self._failed, []
        if failed:
            raise ExceptionGroup(
                "the simulated kubelet has a bug", [e for e in failed if isinstance(e, Exception)]
            )

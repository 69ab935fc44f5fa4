"""Work that goes on after its RPC: a client that hangs up cancels no side effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

T = TypeVar("T")

LINGER_SECONDS = 0.01


class PendingCalls:
    """Runs each piece of work in a task of the group, shielded, with a deadline.

    grpclib cancels its own tasks natively, and anyio's shields do not hold against that. grpclib cannot reach
    the tasks of the group.
    """

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._running: set[anyio.CancelScope] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, work: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Run the work and return its result.

        Raises:
            TimeoutError: The work took longer than `seconds` and was cancelled.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        scope = anyio.CancelScope(deadline=anyio.current_time() + seconds, shield=True)
        self._running.add(scope)
        self._idle.clear()
        self._group.start_soon(self._work, work, scope, answer)
        try:
            async with asyncio.timeout(seconds):  # also where the work goes on although it is cancelled
                return await answer
        except TimeoutError as exc:
            raise TimeoutError(str(exc) or f"not done within {seconds:g} s") from exc

    async def _work(
        self, work: Callable[[], Awaitable[T]], scope: anyio.CancelScope, answer: asyncio.Future[T]
    ) -> None:
        try:
            with scope:
                _settle(answer, await work())
        except Exception as exc:
            _settle(answer, exc)
        finally:
            self._forget(scope)
        if scope.cancelled_caught:
            is_late = anyio.current_time() >= scope.deadline
            _settle(answer, TimeoutError("" if is_late else "cancelled: the server of this resource ends"))

    def _forget(self, scope: anyio.CancelScope) -> None:
        self._running.discard(scope)
        if not self._running:
            self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Wait for the running calls, cancel them after `seconds`, and return when the answers are sent."""
        if not self._running:
            return
        with anyio.move_on_after(seconds):
            await self._idle.wait()
        for scope in tuple(self._running):
            scope.cancel()
        await self._idle.wait()
        # A client that reads the answer and the GOAWAY at once may see the GOAWAY only.
        await anyio.sleep(LINGER_SECONDS)


def _settle(answer: asyncio.Future[T], outcome: T | Exception) -> None:
    if answer.done():
        return  # the caller has stopped waiting
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)

"""Tasks that run as long as the agent. When one of them ends by itself, the agent ends with an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from .cell import Cell
from .errors import AgentError


class LoopEnded(AgentError):
    """Raised when an endless task ended. Without this error the agent would go on with a part missing."""

    def __init__(self, loop: str, how: str) -> None:
        super().__init__(
            f"{loop} {how}, but must run as long as the agent: this is a defect of the agent. The agent ends "
            "now, to be started again; running containers keep their devices. Please report this with the log"
        )


async def for_ever(loop: Callable[..., Awaitable[object]], *args: Any) -> NoReturn:
    """Run the loop, as a task of a task group, until the scope around it is cancelled.

    Cancel the scope and not the task: a task group inside the loop would regard a cancellation of the task
    as its own and hide it.

    Raises:
        LoopEnded: The loop returned, or raised a cancellation that no scope had requested. A task group
            ignores such a cancellation.
    """
    try:
        await loop(*args)
    except asyncio.CancelledError:
        await checkpoint_if_cancelled()  # raises where a scope is cancelled
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise LoopEnded(_name(loop), "raised a cancellation that was not requested") from None
    raise LoopEnded(_name(loop), "returned")


async def sleep_in_step(seconds: float) -> None:
    """Sleep until the loop's time is a multiple of so many seconds, and therefore not longer than that.

    Tasks that look every few seconds wake together so: for the process to wake costs more than most looks.
    """
    await anyio.sleep(seconds - anyio.current_time() % seconds if seconds > 0 else 0)


async def set_on_change(event: asyncio.Event, *cells: Cell[Any]) -> None:
    """Set the event now, and whenever one of the cells has changed, for ever."""

    async def follow(cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            event.set()

    async with anyio.create_task_group() as group:
        for cell in cells:
            group.start_soon(for_ever, follow, cell)


def _name(loop: Callable[..., object]) -> str:
    function = loop.func if isinstance(loop, partial) else loop
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '')}.{name}"

"""Tasks that run as long as the agent: one that ends by itself ends the agent, loudly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

from anyio.lowlevel import checkpoint_if_cancelled

from .errors import AgentError


class LoopEnded(AgentError):
    """Raised when a task ended that was to run for ever: half an agent would serve on, unseen."""

    def __init__(self, loop: str, how: str) -> None:
        super().__init__(
            f"{loop} {how}, and is to run as long as the agent does: this is a defect of the agent. It ends "
            "now, to be started anew; running containers keep their devices. Please report this with the log"
        )


async def for_ever(loop: Callable[..., Awaitable[object]], *args: Any) -> NoReturn:
    """Run the loop until the scope around it is cancelled; as a task of a group.

    Groups inside the loop take a cancellation of the task itself for their own, and none can be told here.

    Raises:
        LoopEnded: It returned, or raised a cancellation that nothing had asked for, of which a task group
            would say nothing.
    """
    try:
        await loop(*args)
    except asyncio.CancelledError:
        await checkpoint_if_cancelled()  # raises where a scope is cancelled
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise LoopEnded(_name(loop), "was cancelled by nobody") from None
    raise LoopEnded(_name(loop), "returned")


def _name(loop: Callable[..., object]) -> str:
    function = loop.func if isinstance(loop, partial) else loop
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '')}.{name}"

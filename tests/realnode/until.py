"""Waits for what a cluster comes to by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

#: How long anything may take on a machine of two cores that does other work, in seconds.
PATIENCE = 60.0
LOOK = 0.2


async def until(
    ask: Callable[[], Awaitable[T]], holds: Callable[[T], object], what: str, patience: float = PATIENCE
) -> T:
    """Ask until the answer holds, and return it.

    Raises:
        AssertionError: It did not in time; with what was waited for and the last answer.
    """
    told: T | str = "nothing yet"
    limit = asyncio.timeout(patience)
    try:
        async with limit:
            while True:
                told = await ask()
                if holds(told):
                    return told
                await asyncio.sleep(LOOK)
    except TimeoutError:
        if not limit.expired():  # it is who was asked that gave up
            raise
        raise AssertionError(f"waited {patience:.0f} s for {what}; it is {told}") from None

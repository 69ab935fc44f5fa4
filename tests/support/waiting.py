"""Waiting for a condition that no event announces."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import anyio

PAUSE = 0.005


async def eventually(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """Poll a sync or async condition until it holds; the value. A failure shows the condition's source."""
    with anyio.CancelScope(deadline=anyio.current_time() + seconds):
        while True:
            value = condition()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            await anyio.sleep(PAUSE)
    try:
        words = textwrap.shorten(inspect.getsource(condition), 300, placeholder=" ...")
    except Exception:  # a builtin or a partial has no source
        words = repr(condition)
    raise AssertionError(f"not so after {seconds:g} s: {words}")

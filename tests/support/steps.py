"""Coroutines of a state machine, whose rules are plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Step:
    """Runs one coroutine after another on a loop of the machine's own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

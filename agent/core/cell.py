"""A cell that holds the latest value for any number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Cell(Generic[T]):
    """Holds the latest value. Each reader sees the newest value; a slow reader misses the values between."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._changed = asyncio.Event()

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> None:
        """Publish a value. An equal value wakes no reader."""
        if value != self._value:
            self._value = value
            self.touch()

    def touch(self) -> None:
        """Wake all readers although the value is the same."""
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def watch(self) -> AsyncIterator[T]:
        """Yield the value now, then the newest after each change, for as long as the caller asks."""
        seen = -1
        while True:
            if seen == self._version:
                await self._changed.wait()
                continue
            seen = self._version
            yield self._value

    async def changed(self) -> None:
        """Return at the next change."""
        await self._changed.wait()

    async def until(self, wanted: T) -> None:
        """Return once the cell holds this value."""
        while self._value != wanted:
            await self._changed.wait()

    async def other_than(self, value: T) -> None:
        """Return once the cell holds a different value."""
        while self._value == value:
            await self._changed.wait()


async def reaches(cell: Cell[T], wanted: Callable[[T], bool]) -> None:
    """Return once `wanted` is true of the cell's value."""
    async with aclosing(cell.watch()) as values:  # type: ignore[type-var]
        async for value in values:
            if wanted(value):
                return


async def first(*awaitables: Callable[[], Awaitable[None]]) -> int:
    """Wait until one of the awaitables returns; return its number, the lowest one if several returned."""
    done: list[int] = []
    async with anyio.create_task_group() as group:

        async def wait(number: int, until: Callable[[], Awaitable[None]]) -> None:
            await until()
            done.append(number)
            group.cancel_scope.cancel()

        for number, until in enumerate(awaitables):
            group.start_soon(wait, number, until)
    return min(done)

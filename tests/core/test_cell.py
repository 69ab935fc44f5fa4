"""One value, any number of readers, none consumes another's update."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agent.core.cell import Cell


async def take(readings: AsyncIterator[int]) -> int:
    async with asyncio.timeout(30):
        return await anext(readings)


async def test_a_reader_begins_with_the_value_now() -> None:
    cell = Cell(1)

    cell.set(2)

    assert cell.value == 2
    assert await take(cell.watch()) == 2


async def test_a_slow_reader_skips_to_the_latest() -> None:
    cell = Cell(0)
    readings = cell.watch()
    await take(readings)

    for value in range(1, 100):
        cell.set(value)

    assert await take(readings) == 99


async def test_every_reader_sees_every_change_that_it_waits_for() -> None:
    cell = Cell(0)
    readers = [cell.watch() for _ in range(5)]
    assert [await take(it) for it in readers] == [0] * 5

    for value in (1, 2):
        waiting = [asyncio.create_task(take(it)) for it in readers]
        await asyncio.sleep(0)
        cell.set(value)
        assert await asyncio.gather(*waiting) == [value] * 5


async def test_an_equal_value_is_no_news() -> None:
    cell = Cell(1)
    readings = cell.watch()
    await take(readings)

    cell.set(1)
    waiting = asyncio.create_task(take(readings))
    for _ in range(5):
        await asyncio.sleep(0)

    assert not waiting.done()
    cell.set(2)
    assert await waiting == 2


async def test_a_touch_wakes_every_reader_with_the_value_as_it_is() -> None:
    cell = Cell(1)
    readers = [cell.watch() for _ in range(2)]
    for it in readers:
        await take(it)
    waiting = [asyncio.create_task(take(it)) for it in readers]
    changed = asyncio.create_task(cell.changed())
    await asyncio.sleep(0)

    cell.touch()

    assert await asyncio.gather(*waiting) == [1, 1]
    async with asyncio.timeout(30):
        await changed


async def test_a_value_that_went_and_came_back_is_news_once() -> None:
    cell = Cell(1)
    readings = cell.watch()
    await take(readings)

    cell.set(2)
    cell.set(1)

    assert await take(readings) == 1


async def test_a_reader_that_leaves_disturbs_nobody() -> None:
    cell = Cell(0)
    stays, leaves = cell.watch(), cell.watch()
    await take(stays)
    await take(leaves)
    gone = asyncio.create_task(take(leaves))
    waiting = asyncio.create_task(take(stays))
    await asyncio.sleep(0)

    gone.cancel()
    cell.set(1)

    assert await waiting == 1
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_until_returns_once_the_value_is_there() -> None:
    cell = Cell("waiting")
    waiting = asyncio.create_task(cell.until("registered"))
    await asyncio.sleep(0)

    cell.set("registering")
    await asyncio.sleep(0)
    assert not waiting.done()
    cell.set("registered")

    async with asyncio.timeout(30):
        await waiting
        await cell.until("registered")


async def test_changed_returns_at_the_next_change_only() -> None:
    cell = Cell(0)
    cell.set(1)
    waiting = asyncio.create_task(cell.changed())
    await asyncio.sleep(0)
    assert not waiting.done()

    cell.set(2)

    async with asyncio.timeout(30):
        await waiting

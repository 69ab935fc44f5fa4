"""A task that is to run for ever ends by its scope alone; all else ends the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import pytest

from agent.core.cell import Cell
from agent.core.endless_tasks import LoopEnded, for_ever, set_on_change, sleep_in_step


async def returns(*_: object) -> None:
    """A loop with a defect."""


async def cancels_itself() -> None:
    raise asyncio.CancelledError


async def rests(*_: object) -> None:
    await anyio.sleep_forever()


@pytest.mark.parametrize("loop", [returns, partial(returns, 1)])
async def test_a_loop_that_returns_is_an_error_that_names_it(loop: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(LoopEnded, match=r"test_endless_tasks\.returns returned, but must run as long"):
        await for_ever(loop)


async def beside_one_that_rests(loop: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(for_ever, rests)
        group.start_soon(for_ever, loop)


async def test_a_loop_in_a_group_that_returns_ends_what_is_beside_it() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await beside_one_that_rests(returns)

    assert raised.group_contains(LoopEnded)


async def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    """A task group ends such a task without a word."""
    with pytest.raises(ExceptionGroup) as raised:
        await beside_one_that_rests(cancels_itself)

    assert raised.group_contains(
        LoopEnded, match="cancels_itself raised a cancellation that was not requested"
    )


async def test_a_loop_whose_scope_is_cancelled_just_ends() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(for_ever, rests)
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


async def test_a_cancellation_of_its_own_as_its_scope_ends_ends_nothing_beside_it() -> None:
    ended = anyio.Event()

    async def translates() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise asyncio.CancelledError

    async def serve(scope: anyio.CancelScope) -> None:
        with scope:
            await for_ever(translates)
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(serve, scope := anyio.CancelScope())
        await anyio.lowlevel.checkpoint()
        scope.cancel()
        with anyio.fail_after(30):
            await ended.wait()


async def test_a_task_that_is_cancelled_by_hand_is_cancelled() -> None:
    task = asyncio.create_task(for_ever(rests))
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_a_loop_raises_is_raised() -> None:
    async def breaks() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await for_ever(breaks)


async def test_an_event_is_set_at_once_and_after_each_change_of_any_cell() -> None:
    event, first, second = asyncio.Event(), Cell(0), Cell(0)
    async with anyio.create_task_group() as group:
        group.start_soon(for_ever, set_on_change, event, first, second)
        with anyio.fail_after(30):
            await event.wait()
            for cell, value in ((first, 1), (second, 2), (first, 3)):
                await anyio.wait_all_tasks_blocked()
                event.clear()
                cell.set(value)
                await event.wait()
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("now", "every", "slept"), [(10.25, 1.0, 0.75), (10.25, 2.0, 1.75), (11.0, 5.0, 4.0), (4.0, 2.0, 2.0)]
)
async def test_looks_of_different_beginnings_come_at_the_same_moment_and_none_later_than_wanted(
    now: float, every: float, slept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    monkeypatch.setattr(anyio, "current_time", lambda: now)
    monkeypatch.setattr(anyio, "sleep", sleep)

    await sleep_in_step(every)
    await sleep_in_step(0.0)

    assert sleeps == [slept, 0]

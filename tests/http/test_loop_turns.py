"""Turns on the loop: in order, and with a rest for everybody else after each."""

from __future__ import annotations

import asyncio

import pytest

from agent.http.loop_turns import LATENESS, LoopTurns


class Clock:
    """Time as others spend it, and as the loop does."""

    def __init__(self) -> None:
        self.now = 100.0
        self.spent = 5.0
        self.slept: list[float] = []

    def work(self, seconds: float) -> None:
        self.spent += seconds
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds

    def turns(self, share: float) -> LoopTurns:
        return LoopTurns(share, lambda: self.spent, lambda: self.now, self.sleep)


async def test_after_a_turn_the_loop_is_others_for_as_long_as_the_share_says() -> None:
    clock = Clock()
    turns = clock.turns(share=0.1)

    for spent in (0.01, 0.002, 0.001, 0.0):
        await turns.begin()
        clock.work(spent)
        turns.end()

    assert clock.slept[2:] == [0.018, 0.009]


async def test_turns_that_came_late_are_made_good_as_far_as_they_were_late_a_moment() -> None:
    clock = Clock()
    turns = clock.turns(share=0.1)
    spent = LATENESS / 40

    clock.now += 1000.0
    for _ in range(8):
        await turns.begin()
        clock.work(spent)
        turns.end()

    assert clock.slept[:4] == [0.0] * 4
    assert clock.slept[6:] == [pytest.approx(9 * spent)] * 2


async def test_a_turn_in_which_others_had_the_processor_is_as_short_as_what_it_did() -> None:
    clock = Clock()
    turns = clock.turns(share=0.1)
    await turns.begin()
    clock.work(0.01)
    clock.now += 10.0
    turns.end()

    await turns.begin()

    assert clock.slept == [0.0, pytest.approx(0.1 - LATENESS)]


async def test_turns_are_given_in_the_order_in_which_they_are_asked_for() -> None:
    turns = Clock().turns(share=0.5)
    given: list[int] = []

    async def take(number: int) -> None:
        await turns.begin()
        given.append(number)
        turns.end()

    await turns.begin()
    waiting = [asyncio.create_task(take(number)) for number in range(3)]
    await asyncio.sleep(0)
    turns.end()
    await asyncio.gather(*waiting)

    assert given == [0, 1, 2]


async def test_who_goes_away_while_others_rest_leaves_its_turn_to_the_next() -> None:
    asleep = asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds:
            asleep.set()
            await asyncio.Event().wait()

    clock = Clock()
    turns = LoopTurns(0.5, lambda: clock.spent, lambda: clock.now, sleep)
    await turns.begin()
    clock.work(1.0)
    turns.end()
    task = asyncio.create_task(turns.begin())
    await asleep.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    clock.now += 2.0

    async with asyncio.timeout(30):
        await turns.begin()

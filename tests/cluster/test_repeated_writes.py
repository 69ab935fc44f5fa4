"""What we write is kept as it is wanted: with patience, and without a storm where others undo it."""

from __future__ import annotations

import anyio
import pytest
from support.waiting import eventually

from agent.cluster.api_errors import ApiAway, ApiRefused, Conflict
from agent.cluster.repeated_writes import LASTING, QUIET, RepeatedWrites, RepeatedWriteTexts, UndoneWrites
from agent.core.backoff import Pauses
from agent.core.cell import Cell

WORDS = RepeatedWriteTexts("refused", "waits", "again", "undone")


class Here:
    """A writer that repeats its writes, and what becomes of its next writes."""

    def __init__(self, *outcomes: Exception | str, every: float = 600.0) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[bool] = []
        self.pauses = Pauses(1.0, 8.0, lambda: 1.0)
        self.writes = RepeatedWrites(
            self._write,
            WORDS,
            "n",
            pauses=self.pauses,
            refused=Pauses(5.0, 40.0, lambda: 1.0),
            between=1.0,
            every=every,
            jitter=lambda: 1.0,
        )

    async def _write(self, live: bool) -> str:
        self.asked.append(live)
        outcome = self.outcomes.pop(0) if self.outcomes else ""
        if isinstance(outcome, Exception):
            raise outcome
        if outcome == "writes":
            self.writes.wrote({"it": 1})
            return ""
        return outcome


@pytest.mark.parametrize(("apart", "times"), [(60.0, 3), (600.0, 0)])
def test_what_is_undone_once_in_a_while_is_no_quarrel(apart: float, times: int) -> None:
    undone = UndoneWrites()

    seen = [undone.wrote({"count": "1"}, 1000.0 + it * apart) for it in range(4)]

    assert seen == [{}, {}, {}, {"count": times} if times else {}]


def test_a_quarrel_is_over_once_a_value_stood() -> None:
    undone = UndoneWrites()
    for it in range(4):
        undone.wrote({"count": "1", "other": "1"}, 1000.0 + it * LASTING)
    last = 1000.0 + 3 * LASTING
    undone.wrote({"other": "2"}, last)

    assert undone.lasting(last + QUIET - 1) == {"count"}
    assert undone.lasting(last + QUIET) == set()


def test_what_is_undone_a_few_times_within_minutes_is_no_quarrel_to_tell_of() -> None:
    undone = UndoneWrites()
    for it in range(9):
        undone.wrote({"count": "1"}, 1000.0 + it)
    assert undone.lasting(1009.0) == undone.lasting(1009.0 + LASTING) == set()

    undone.wrote({"count": "1"}, 1001.0 + LASTING)
    assert undone.lasting(1001.0 + LASTING) == {"count"}
    # One that began anew has its minutes again.
    for it in range(4):
        undone.wrote({"count": "1"}, 5000.0 + it)
    assert undone.lasting(5003.0) == set()


async def test_what_was_read_and_has_changed_meanwhile_is_looked_at_again_at_once() -> None:
    here = Here(Conflict(409, "Conflict", "changed"), "writes")

    assert await here.writes.once() == 1.0
    assert here.asked == [False, True]


async def test_who_is_away_is_asked_again_sooner_than_who_refuses() -> None:
    here = Here(
        *(ApiAway("gone") for _ in range(3)),
        *(ApiRefused(403, "Forbidden", "no") for _ in range(3)),
        "",
        "stays",
    )

    assert [await here.writes.once() for _ in range(3)] == [1.0, 2.0, 4.0]
    assert (here.writes.delayed, here.writes.error) == ("gone", "")
    assert [await here.writes.once() for _ in range(3)] == [5.0, 10.0, 20.0]
    assert (here.writes.delayed, here.writes.error) == ("", "403 Forbidden: no")
    assert [await here.writes.once() for _ in range(2)] == [0.0, 1.0]
    assert (here.writes.delayed, here.writes.error) == ("", "stays")


async def test_what_others_undo_is_written_more_and_more_seldom() -> None:
    here = Here(*["writes"] * 9)

    assert [await here.writes.once() for _ in range(9)] == [1, 1, 1, 2, 4, 8, 16, 32, 60]


async def test_now_and_then_it_is_looked_at_what_is_there_though_nothing_is_known_to_have_changed() -> None:
    here, cell = Here(every=0.01), Cell(0)
    async with anyio.create_task_group() as group:
        group.start_soon(here.writes.run, (cell,), Cell(0))
        await eventually(lambda: True in here.asked)
        group.cancel_scope.cancel()


async def test_a_change_of_what_decides_is_looked_at_at_once_and_the_server_s_return_ends_a_pause() -> None:
    here, cell, returns = Here("", ApiAway("gone"), ApiAway("again")), Cell(0), Cell(0)
    async with anyio.create_task_group() as group:
        group.start_soon(here.writes.run, (cell,), returns)
        await eventually(lambda: len(here.asked) > 0 and here.outcomes[:1] != [""])
        cell.set(1)
        await eventually(lambda: here.writes.delayed == "gone")

        returns.set(1)

        await eventually(lambda: here.writes.delayed == "again")
        assert here.pauses.next() == 2.0
        returns.set(2)
        await eventually(lambda: not here.writes.delayed)
        group.cancel_scope.cancel()

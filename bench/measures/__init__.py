"""The measurements, in the order in which they are made and shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.pace import Pace
from bench.rows import Row, with_rival
from bench.subjects import Contest, Subject

from . import (
    admission,
    allocate,
    big_list,
    book,
    crash,
    crowd,
    flip,
    health,
    held_units,
    idle,
    memory,
    placement,
    preferred,
    prepare,
    reconcile,
    restart,
    start,
    storm,
    units,
    usage,
    used_ids,
    written_bytes,
)

Measure = Callable[[Contest, Pace], Awaitable[list[Row]]]
Single = Callable[[Subject, Pace], Awaitable[list[Row]]]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement, of all subjects that it can be made of."""

    name: str
    title: str
    measure: Measure


def in_turns(name: str, measure: Measure) -> Measurement:
    """A measurement that starts the subjects in turns."""
    return Measurement(name, _title(measure), measure)


def ours_alone(name: str, single: Single) -> Measurement:
    """A measurement that can be made of our agent alone."""

    async def measure(contest: Contest, pace: Pace) -> list[Row]:
        return await single(contest.ours, pace)

    return Measurement(name, _title(single), measure)


def any_plugin(name: str, single: Single) -> Measurement:
    """A measurement of our agent, and then of the rival, if there is one."""

    async def measure(contest: Contest, pace: Pace) -> list[Row]:
        rows = await single(contest.ours, pace)
        return rows if contest.rival is None else with_rival(rows, await single(contest.rival, pace))

    return Measurement(name, _title(single), measure)


def _title(function: Measure | Single) -> str:
    return (function.__doc__ or "").strip().splitlines()[0]


ALL = (
    in_turns("start", start.measure),
    in_turns("allocate", allocate.measure),
    in_turns("admission", admission.measure),
    in_turns("used-ids", used_ids.measure),
    ours_alone("bytes", written_bytes.measure),
    in_turns("idle", idle.measure),
    in_turns("memory", memory.measure),
    in_turns("crash", crash.measure),
    ours_alone("book", book.measure),
    ours_alone("held-units", held_units.measure),
    ours_alone("usage", usage.measure),
    ours_alone("crowd", crowd.measure),
    ours_alone("prepare", prepare.measure),
    any_plugin("health", health.measure),
    ours_alone("flip", flip.measure),
    ours_alone("big-list", big_list.measure),
    ours_alone("units", units.measure),
    any_plugin("preferred", preferred.measure),
    ours_alone("placement", placement.measure),
    any_plugin("restart", restart.measure),
    ours_alone("reconcile", reconcile.measure),
    any_plugin("storm", storm.measure),
)

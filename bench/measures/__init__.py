"""The measurements, in the order in which they are made and shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.rows import Row
from bench.subjects import Subject

from . import (
    allocate,
    big_list,
    crowd,
    flip,
    health,
    idle,
    memory,
    preferred,
    prepare,
    reconcile,
    restart,
    start,
    storm,
    units,
)

Measure = Callable[[Subject], Awaitable[list[Row]]]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement; some can be made of our agent only."""

    name: str
    measure: Measure
    any_plugin: bool = True

    @property
    def title(self) -> str:
        return (self.measure.__doc__ or self.name).strip().splitlines()[0]


ALL = (
    Measurement("start", start.measure),
    Measurement("allocate", allocate.measure),
    Measurement("crowd", crowd.measure, any_plugin=False),
    Measurement("prepare", prepare.measure, any_plugin=False),
    Measurement("health", health.measure),
    Measurement("flip", flip.measure, any_plugin=False),
    Measurement("big-list", big_list.measure, any_plugin=False),
    Measurement("units", units.measure, any_plugin=False),
    Measurement("preferred", preferred.measure),
    Measurement("restart", restart.measure),
    Measurement("memory", memory.measure),
    Measurement("idle", idle.measure),
    Measurement("reconcile", reconcile.measure, any_plugin=False),
    Measurement("storm", storm.measure),
)

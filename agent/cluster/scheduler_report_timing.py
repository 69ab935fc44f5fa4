"""How often a scheduler's report object is read, written and withdrawn."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import anyio
from msgspec import Struct

from agent.core.backoff import Pauses


class SchedulerReportTiming(Struct, frozen=True):
    """Seconds, and the clocks that measure them. Tests have shorter ones."""

    #: Between two writes, so that many changes of health become few writes.
    between_writes: float = 1.0
    #: Between two reads of the object, whatever the watch says.
    between_reads: float = 600.0
    #: Between two looks for the kind while the API server lacks it.
    kind_missing: float = 300.0
    #: Between two looks at the scheduler's program while the kind is there.
    look: float = 15.0
    #: For the program to take over the object, which it does in its first round.
    handover: float = 60.0
    #: Between tries, first and longest: while the API server is away or busy ...
    away: tuple[float, float] = (1.0, 60.0)
    #: ... and while it refuses.
    refused: tuple[float, float] = (5.0, 600.0)
    #: Seconds that never go back, by which the plugin judges the program.
    clock: Callable[[], float] = anyio.current_time
    #: Unix seconds, for the content of the object.
    wall: Callable[[], float] = time.time
    #: A number from 0 to 1 that spreads the nodes' tries.
    jitter: Callable[[], float] = random.random

    def away_pauses(self) -> Pauses:
        """The pauses while the API server is away or busy."""
        return Pauses(*self.away, self.jitter)

    def refused_pauses(self) -> Pauses:
        """The pauses while the API server refuses."""
        return Pauses(*self.refused, self.jitter)

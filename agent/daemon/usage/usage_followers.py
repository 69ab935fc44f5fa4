"""What follows from the use of the cards over time: the history, the times of last use, and alarms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.config import UsageSettings
from agent.core.model import Allocation
from agent.core.usage.idle_times import IdleTimes
from agent.core.usage.minute_history import UsageHistory
from agent.core.usage.usage_alarms import AlarmRules, UsageAlarm, UsageAlarms
from agent.core.usage.usage_report import ContainerUse


class UsageFollowers:
    """Everything that has to see the use of containers again and again."""

    def __init__(self, history: UsageHistory) -> None:
        self.history = history
        self._idle_times = IdleTimes()
        self._alarms = UsageAlarms()
        #: Whether there were containers when use was last seen.
        self.has_containers = False

    @property
    def alarms(self) -> tuple[UsageAlarm, ...]:
        """What people are to be told of."""
        return self._alarms.active

    def timed(self, containers: Iterable[ContainerUse]) -> Sequence[ContainerUse]:
        """The same containers with the times at which they last used their cards."""
        return self._idle_times.timed(containers)

    def saw(
        self,
        at: float,
        containers: Sequence[ContainerUse],
        in_use: Iterable[Allocation],
        settings: UsageSettings,
    ) -> None:
        """Note the use at one moment, in Unix seconds. `in_use`: the allocations then."""
        holders = {it.container_key for it in in_use}
        self.has_containers = bool(containers)
        self.history.add(at, containers)
        self._idle_times.saw(at, containers, holders)
        exceeded = settings.limit_exceeded
        idle_after = settings.idle.after if settings.idle.event else None
        rules = AlarmRules(exceeded.by, exceeded.for_, idle_after)
        self._alarms.saw(at, self._idle_times.timed(containers), rules, holders)

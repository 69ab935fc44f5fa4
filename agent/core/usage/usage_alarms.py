"""What people are told of use: containers above their limit, and those that do not use their cards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Literal

from msgspec import Struct

from agent.core.usage.card_holdings import Place
from agent.core.usage.usage_report import ContainerUse

Reason = Literal["LimitExceeded", "IdleAccelerator"]


class UsageAlarm(Struct, frozen=True):
    """One state that people are told of, from its begin to its end. Its fields do not change meanwhile."""

    reason: Reason
    namespace: str
    pod: str
    uid: str
    container: str
    uuid: str
    resource: str
    #: Seconds for which the state lasted when the alarm came.
    seconds: float
    #: Bytes, when the alarm came: what was used, and what was granted.
    memory: int = 0
    memory_limit: int = 0


class AlarmRules(Struct, frozen=True):
    """From when on there is an alarm. `idle_after` None: never."""

    #: The part of the limit by which the memory exceeds the limit, and for how many seconds.
    exceeded_by: float = 0.05
    exceeded_for: float = 30.0
    #: Seconds without use.
    idle_after: float | None = None


class UsageAlarms:
    """The alarms that hold now."""

    def __init__(self) -> None:
        #: Since when containers exceed their limit, in Unix seconds.
        self._exceeded_since: dict[Place, float] = {}
        #: The times of last use for which an idle alarm has come.
        self._told_idle: dict[Place, float] = {}
        self._active: dict[tuple[Reason, Place], UsageAlarm] = {}

    @property
    def active(self) -> tuple[UsageAlarm, ...]:
        """The alarms, oldest first."""
        return tuple(self._active.values())

    def saw(
        self,
        at: float,
        containers: Iterable[ContainerUse],
        rules: AlarmRules,
        holders: Collection[tuple[str, str] | None] = (),
    ) -> None:
        """Note the use at one moment. What is not known neither begins nor ends an alarm.

        `holders`: pod uid and container of each allocation in use. Where nothing was known of a holder for a
        while, an idle alarm that had come for the same time of last use does not come again.
        """
        known = tuple(containers)
        told = self._told_idle.items() if rules.idle_after is not None else ()
        seen = {(use.uid, use.container, use.uuid) for use in known}
        self._told_idle = {it: last for it, last in told if it in seen or it[:2] in holders}
        holding = {
            **dict(self._exceeding(at, known, rules)),
            **dict(self._idle(at, known, rules)),
        }
        # An alarm that holds on keeps its figures.
        kept = {key: alarm for key, alarm in self._active.items() if key in holding}
        self._active = {**kept, **{key: it for key, it in holding.items() if key not in kept}}

    def _exceeding(
        self, at: float, containers: Iterable[ContainerUse], rules: AlarmRules
    ) -> Iterator[tuple[tuple[Reason, Place], UsageAlarm]]:
        since = {}
        for use in containers:
            place = use.uid, use.container, use.uuid
            began = self._exceeded_since.get(place)
            if use.memory_limit is None:
                continue
            is_over = use.memory is not None and use.memory > use.memory_limit * (1 + rules.exceeded_by)
            if not is_over and (use.memory is not None or began is None):
                continue
            since[place] = at if began is None else min(began, at)
            lasts = at - since[place]
            if lasts >= rules.exceeded_for:
                yield _alarm("LimitExceeded", use, lasts)
        self._exceeded_since = since

    def _idle(
        self, at: float, containers: Iterable[ContainerUse], rules: AlarmRules
    ) -> Iterator[tuple[tuple[Reason, Place], UsageAlarm]]:
        if rules.idle_after is None:
            return
        for use in containers:
            place = use.uid, use.container, use.uuid
            active = self._active.get(("IdleAccelerator", place))
            if not use.resource:
                continue
            if use.active_at is None:
                if active is not None:
                    yield ("IdleAccelerator", place), active
                continue
            lasts = at - use.active_at
            is_new = self._told_idle.get(place) != use.active_at
            if lasts >= rules.idle_after and (active is not None or is_new):
                self._told_idle[place] = use.active_at
                yield _alarm("IdleAccelerator", use, lasts)


def _alarm(reason: Reason, use: ContainerUse, seconds: float) -> tuple[tuple[Reason, Place], UsageAlarm]:
    alarm = UsageAlarm(
        reason,
        use.namespace,
        use.pod,
        use.uid,
        use.container,
        use.uuid,
        use.resource,
        seconds,
        use.memory or 0,
        use.memory_limit or 0,
    )
    return (reason, (use.uid, use.container, use.uuid)), alarm

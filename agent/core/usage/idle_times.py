"""When containers last used their cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from agent.core.usage.card_holdings import Place
from agent.core.usage.usage_report import ContainerUse


class IdleTimes:
    """The times at which containers last used the compute units of their cards, in Unix seconds."""

    def __init__(self) -> None:
        self._active_at: dict[Place, float] = {}

    def saw(self, at: float, containers: Iterable[ContainerUse]) -> None:
        """Note the use at one moment. A container that was not seen before counts as active until then.

        A container whose utilisation is not known has no time, and neither has one that is not there.
        """
        seen = {}
        for use in containers:
            if use.utilization is not None:
                place = use.uid, use.container, use.uuid
                seen[place] = at if use.utilization > 0 else self._active_at.get(place, at)
        self._active_at = seen

    def timed(self, containers: Iterable[ContainerUse]) -> Sequence[ContainerUse]:
        """The same containers with their times."""
        times = ((use, self._active_at.get((use.uid, use.container, use.uuid))) for use in containers)
        return [use if at is None else replace(use, active_at=at) for use, at in times]

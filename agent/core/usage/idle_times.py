"""When containers last used their cards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from agent.core.usage.card_holdings import Place
from agent.core.usage.usage_report import ContainerUse


class IdleTimes:
    """The times at which containers last used the compute units of their cards, in Unix seconds."""

    def __init__(self) -> None:
        self._active_at: dict[Place, float] = {}

    def saw(
        self,
        at: float,
        containers: Iterable[ContainerUse],
        holders: Collection[tuple[str, str] | None] = (),
    ) -> None:
        """Note the use at one moment. A container that was not seen before counts as active until then.

        `holders`: pod uid and container of each allocation in use. A holder keeps its time while its
        utilization is not known, or nothing of it is.
        """
        seen = {place: last for place, last in self._active_at.items() if place[:2] in holders}
        for use in containers:
            if use.utilization is not None:
                place = use.uid, use.container, use.uuid
                seen[place] = at if use.utilization > 0 else self._active_at.get(place, at)
        self._active_at = seen

    def timed(self, containers: Iterable[ContainerUse]) -> Sequence[ContainerUse]:
        """The same containers with their times; a container without known utilization has no time."""
        return [self._timed(use) for use in containers]

    def _timed(self, use: ContainerUse) -> ContainerUse:
        at = self._active_at.get((use.uid, use.container, use.uuid))
        return use if at is None or use.utilization is None else replace(use, active_at=at)

"""When containers last used their cards."""

from __future__ import annotations

from agent.core.usage.idle_times import IdleTimes
from agent.core.usage.usage_report import ContainerUse


def use(utilization: float | None, container: str = "main") -> ContainerUse:
    return ContainerUse("ns", "p", "uid", container, "acme", "GPU-a", utilization=utilization)


def times(idle: IdleTimes, *containers: ContainerUse) -> list[float | None]:
    return [it.active_at for it in idle.timed(containers)]


def test_a_container_is_active_at_its_last_use_and_at_first_when_it_was_first_seen() -> None:
    idle = IdleTimes()
    for at, utilization, expected in ((10, 0.0, 10), (20, 0.0, 10), (30, 0.1, 30), (40, 0.0, 30)):
        idle.saw(at, [use(utilization)])
        assert times(idle, use(utilization)) == [expected]


def test_a_container_without_known_utilization_has_no_time() -> None:
    idle = IdleTimes()
    idle.saw(10, [use(0.5), use(None, "other")])
    assert times(idle, use(0.5), use(None, "other")) == [10, None]
    idle.saw(20, [use(None)])
    assert times(idle, use(None)) == [None]


def test_a_container_that_ended_is_forgotten() -> None:
    idle = IdleTimes()
    idle.saw(10, [use(0.5)])
    idle.saw(20, [])
    idle.saw(30, [use(0.0)])
    assert times(idle, use(0.0)) == [30]


def test_a_container_keeps_its_time_while_it_has_the_allocation_and_nothing_is_known_of_it() -> None:
    idle, holders = IdleTimes(), {("uid", "main")}
    idle.saw(10, [use(0.5), use(0.5, "other")], holders)
    idle.saw(20, [use(None), use(None, "other")], holders)
    assert times(idle, use(None)) == [None]
    idle.saw(30, [], holders)
    idle.saw(40, [use(0.0), use(0.0, "other")], holders)
    assert times(idle, use(0.0), use(0.0, "other")) == [10, 40]
    idle.saw(50, [], ())
    idle.saw(60, [use(0.0)], holders)
    assert times(idle, use(0.0)) == [60]

"""Containers above their limit, and containers that hold a card and do not use it."""

from __future__ import annotations

import pytest

from agent.core.event_notices import PodRef
from agent.core.publishing.agent_status import AgentStatus
from agent.core.publishing.event_texts import notices
from agent.core.usage.usage_alarms import AlarmRules, UsageAlarms
from agent.core.usage.usage_report import ContainerUse

GIB = 1 << 30
RULES = AlarmRules(idle_after=1800.0)


def use(
    memory: int | None = 0, active_at: float | None = None, *, limit: int | None = GIB, resource: str = "a/b"
) -> ContainerUse:
    return ContainerUse(
        "ns", "p", "uid", "main", "acme", "GPU-a", resource, 1, memory, 0.0, limit, active_at=active_at
    )


def reasons(
    alarms: UsageAlarms, at: float, *containers: ContainerUse, rules: AlarmRules = RULES
) -> list[str]:
    alarms.saw(at, containers, rules)
    return [it.reason for it in alarms.active]


def test_an_excess_of_five_percent_for_thirty_seconds_is_an_alarm_once() -> None:
    alarms = UsageAlarms()
    over = use(GIB * 106 // 100)
    assert [reasons(alarms, at, over) for at in (0, 5, 29.9)] == [[], [], []]
    assert reasons(alarms, 30, over) == ["LimitExceeded"]
    before = alarms.active
    assert reasons(alarms, 600, use(3 * GIB)) == ["LimitExceeded"]
    assert alarms.active == before


@pytest.mark.parametrize("memory", [0, GIB, GIB * 105 // 100])
def test_an_excess_ends_below_and_the_next_one_begins_anew(memory: int) -> None:
    alarms = UsageAlarms()
    reasons(alarms, 0, use(2 * GIB))
    assert reasons(alarms, 30, use(2 * GIB)) == ["LimitExceeded"]
    assert reasons(alarms, 35, use(memory)) == []
    assert reasons(alarms, 40, use(2 * GIB)) == []
    assert reasons(alarms, 70, use(2 * GIB)) == ["LimitExceeded"]


def test_memory_that_is_not_known_neither_begins_nor_ends_an_excess() -> None:
    alarms = UsageAlarms()
    assert [reasons(alarms, at, use(None)) for at in (0, 100)] == [[], []]
    reasons(alarms, 110, use(2 * GIB))
    assert reasons(alarms, 140, use(None)) == ["LimitExceeded"]
    assert reasons(alarms, 150, use(2 * GIB)) == ["LimitExceeded"]


def test_a_container_without_a_limit_or_that_ended_exceeds_nothing() -> None:
    alarms = UsageAlarms()
    assert [reasons(alarms, at, use(9 * GIB, limit=None)) for at in (0, 100)] == [[], []]
    reasons(alarms, 200, use(2 * GIB))
    assert reasons(alarms, 230, use(2 * GIB)) == ["LimitExceeded"]
    assert reasons(alarms, 235) == []


def test_a_container_that_holds_a_card_and_does_not_use_it_is_an_alarm_until_it_does() -> None:
    alarms = UsageAlarms()
    assert reasons(alarms, 1799, use(active_at=0.0)) == []
    assert reasons(alarms, 1800, use(active_at=0.0)) == ["IdleAccelerator"]
    before = alarms.active
    assert reasons(alarms, 9000, use(active_at=0.0)) == ["IdleAccelerator"]
    assert alarms.active == before
    assert reasons(alarms, 9005, use(active_at=9005.0)) == []


@pytest.mark.parametrize(
    "container", [use(active_at=None), use(active_at=0.0, resource="")], ids=["unknown use", "holds no card"]
)
def test_there_is_no_idle_alarm_without_a_known_use_of_a_held_card(container: ContainerUse) -> None:
    assert reasons(UsageAlarms(), 9000, container) == []


def test_there_is_no_idle_alarm_where_the_config_wants_none() -> None:
    assert reasons(UsageAlarms(), 9000, use(active_at=0.0), rules=AlarmRules()) == []


def test_an_alarm_is_one_event_on_the_pod_when_it_comes() -> None:
    alarms = UsageAlarms()
    reasons(alarms, 0, use(2 * GIB))
    alarms.saw(1800, [use(2 * GIB, active_at=0.0)], RULES)
    calm = AgentStatus("n", "1")
    status = AgentStatus("n", "1", usage_alarms=alarms.active)
    exceeded, idle = notices(calm, status)
    assert (exceeded.reason, exceeded.kind, exceeded.action) == ("LimitExceeded", "Warning", "Sample")
    assert exceeded.message == (
        "container main uses 2048 MiB of the memory of card GPU-a (a/b) for 30 min, and was granted 1024 MiB"
    )
    assert exceeded.pod == idle.pod == PodRef("ns", "p", "uid")
    assert (idle.reason, idle.kind) == ("IdleAccelerator", "Normal")
    assert idle.message == "container main holds card GPU-a (a/b) and has not used the card for 30 min"
    assert notices(status, status) == ()
    assert notices(status, calm) == ()


def test_an_idle_alarm_comes_once_although_nothing_is_known_of_the_container_for_a_while() -> None:
    alarms, holders = UsageAlarms(), {("uid", "main")}
    idle = use(active_at=0.0)
    alarms.saw(1800, [idle], RULES, holders)
    before = alarms.active
    assert [it.reason for it in before] == ["IdleAccelerator"]
    alarms.saw(1810, [use(None)], RULES, holders)
    assert alarms.active == before
    for containers in ((), (idle,)):  # no sample, and samples again
        alarms.saw(1820, containers, RULES, holders)
        assert alarms.active == ()
    alarms.saw(4000, [use(active_at=2000.0)], RULES, holders)
    assert [it.reason for it in alarms.active] == ["IdleAccelerator"]


def test_an_idle_alarm_comes_again_for_another_allocation_of_the_place() -> None:
    alarms, idle = UsageAlarms(), use(active_at=0.0)
    alarms.saw(1800, [idle], RULES, {("uid", "main")})
    alarms.saw(1810, [], RULES)
    assert reasons(alarms, 1820, idle) == ["IdleAccelerator"]

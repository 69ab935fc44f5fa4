"""The status of an agent that serves, with its figures and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cluster.pod_state import PodState
from agent.config import AgentSettings, Config, ConfigState
from agent.core.cell import Cell
from agent.core.publishing.agent_status import UNKNOWN
from agent.core.usage.usage_report import UsageReport
from agent.daemon.agent_timing import AgentTiming
from agent.daemon.composition import Composition
from agent.daemon.running_status import running_status, status_without_figures, with_use
from agent.daemon.usage_switch import UsageSwitch


def test_what_is_only_counted_makes_no_other_status_for_those_who_compare(tmp_path: Path) -> None:
    config, settings = Cell(ConfigState(Config(), "")), AgentSettings(state_dir=tmp_path)
    parts = Composition(config, settings, AgentTiming(), Cell(False), PodState(), in_process=True)
    whole, compared = running_status(parts, UNKNOWN), status_without_figures(parts, UNKNOWN)

    parts.store.saves += 1
    parts.reconciler.actions["doubt"] += 1

    assert running_status(parts, UNKNOWN) != whole
    assert status_without_figures(parts, UNKNOWN) == compared
    parts.pod_state.unseen = "no API server is known here"
    assert status_without_figures(parts, UNKNOWN) != compared


def test_the_use_of_cards_is_made_for_those_who_ask_for_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, settings = Cell(ConfigState(Config(), "")), AgentSettings(state_dir=tmp_path)
    parts = Composition(config, settings, AgentTiming(), Cell(False), PodState(), in_process=True)
    made: list[UsageReport] = []

    def report(_: UsageSwitch) -> UsageReport:
        made.append(UsageReport(5.0, 0.0))
        return made[-1]

    monkeypatch.setattr(UsageSwitch, "report", property(report))
    status = running_status(parts, UNKNOWN)
    assert (status.usage, made) == (None, [])
    assert with_use(parts, status).usage is made[0]

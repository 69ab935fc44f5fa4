"""What the line gives its parts of the config, and of the pace that doubles set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent import line
from agent.config import AgentSettings, Config, ConfigState, ReconcileSettings
from agent.core.cell import Cell
from agent.line import Line
from agent.pace import Pace
from agent.reconciler import Reconciler


@pytest.mark.parametrize(
    ("pace", "given"),
    [
        (Pace(), (12.0, 34.0)),
        (Pace(reconcile=0.5), (0.5, 34.0)),
        (Pace(grace=0.0), (12.0, 0.0)),
    ],
)
def test_the_config_sets_the_pace_of_reconciling_where_a_double_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: Pace, given: tuple[float, float]
) -> None:
    found: list[tuple[float, float]] = []

    def made(*parts: Any, every: float, grace: float, **rest: Any) -> Reconciler:
        found.append((every, grace))
        return Reconciler(*parts, every=every, grace=grace, **rest)

    monkeypatch.setattr("agent.line.Reconciler", made)
    settings = AgentSettings(state_dir=tmp_path, reconcile=ReconcileSettings(12.0, 34.0))

    Line(Cell(ConfigState(Config(), "")), settings, pace, Cell(False), Cell(()), in_process=True)

    assert found == [given]


@pytest.mark.parametrize(("part", "mark"), [("CdiDirectory", ""), ("FeaturesFile", "features:")])
def test_what_a_part_leaves_on_the_node_is_written_down_in_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, mark: str
) -> None:
    made = getattr(line, part)

    def noting(*given: Any, note: Callable[[Path], object], **rest: Any) -> Any:
        note(Path("/var/run/cdi/acme.com-card.json"))
        return made(*given, note=note, **rest)

    monkeypatch.setattr(line, part, noting)
    settings = AgentSettings(state_dir=tmp_path)

    Line(Cell(ConfigState(Config(), "")), settings, Pace(), Cell(False), Cell(()), in_process=True)

    assert (tmp_path / "agent.remains").read_text() == f"{mark}/var/run/cdi/acme.com-card.json\n"

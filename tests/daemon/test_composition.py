"""What the line gives its parts of the config, and of the pace that doubles set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent.cluster.pod_state import PodState
from agent.config import AgentSettings, Config, ConfigState, ReconcileSettings
from agent.core.cell import Cell
from agent.daemon import composition
from agent.daemon.agent_timing import AgentTiming
from agent.daemon.composition import Composition
from agent.daemon.publishing import publisher
from agent.daemon.reconciling.reconcile_loop import Reconciler


@pytest.mark.parametrize(
    ("pace", "given"),
    [
        (AgentTiming(), (12.0, 34.0)),
        (AgentTiming(reconcile=0.5), (0.5, 34.0)),
        (AgentTiming(grace=0.0), (12.0, 0.0)),
    ],
)
def test_the_config_sets_the_pace_of_reconciling_where_a_double_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: AgentTiming, given: tuple[float, float]
) -> None:
    found: list[tuple[float, float]] = []

    def made(*parts: Any) -> Reconciler:
        found.append((parts[-1].every, parts[-1].grace))
        return Reconciler(*parts)

    monkeypatch.setattr("agent.daemon.composition.Reconciler", made)
    settings = AgentSettings(state_dir=tmp_path, reconcile=ReconcileSettings(12.0, 34.0))

    Composition(Cell(ConfigState(Config(), "")), settings, pace, Cell(False), PodState(), in_process=True)

    assert found == [given]


@pytest.mark.parametrize(
    ("room", "part", "mark"), [(composition, "CdiDirectory", ""), (publisher, "FeaturesFile", "features:")]
)
def test_what_a_part_leaves_on_the_node_is_written_down_in_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: ModuleType, part: str, mark: str
) -> None:
    made = getattr(room, part)

    def noting(*given: Any, note: Callable[[Path], object], **rest: Any) -> Any:
        note(Path("/var/run/cdi/acme.com-card.json"))
        return made(*given, note=note, **rest)

    monkeypatch.setattr(room, part, noting)
    settings = AgentSettings(state_dir=tmp_path)

    Composition(
        Cell(ConfigState(Config(), "")), settings, AgentTiming(), Cell(False), PodState(), in_process=True
    )

    assert (tmp_path / "agent.remains").read_text() == f"{mark}/var/run/cdi/acme.com-card.json\n"

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
from agent.daemon import composition, publisher
from agent.daemon.composition import Composition
from agent.daemon.intervals import Intervals
from agent.daemon.reconciling.reconcile_loop import Reconciler
from agent.daemon.registration.sessions import Sessions
from agent.kubelet.directory import FileIdentity

OLD = FileIdentity(1, 2, 3)


@pytest.mark.parametrize(
    ("pace", "given"),
    [
        (Intervals(), (12.0, 34.0)),
        (Intervals(reconcile=0.5), (0.5, 34.0)),
        (Intervals(grace=0.0), (12.0, 0.0)),
    ],
)
def test_the_config_sets_the_pace_of_reconciling_where_a_double_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: Intervals, given: tuple[float, float]
) -> None:
    found: list[tuple[float, float]] = []

    def made(*parts: Any, every: float, grace: float, **rest: Any) -> Reconciler:
        found.append((every, grace))
        return Reconciler(*parts, every=every, grace=grace, **rest)

    monkeypatch.setattr("agent.daemon.composition.Reconciler", made)
    settings = AgentSettings(state_dir=tmp_path, reconcile=ReconcileSettings(12.0, 34.0))

    Composition(Cell(ConfigState(Config(), "")), settings, pace, Cell(False), PodState(), in_process=True)

    assert found == [given]


@pytest.mark.parametrize(
    ("life", "later", "settled"),
    [(OLD, 120.0, True), (OLD, 119.0, False), (OLD._replace(inode=3), 120.0, False)],
    ids=["for-long", "not-for-long", "another-life"],
)
def test_the_one_life_of_the_kubelet_is_settled_that_has_served_us_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: FileIdentity, later: float, settled: bool
) -> None:
    settings, config = AgentSettings(state_dir=tmp_path), Cell(ConfigState(Config(), ""))
    it = Composition(config, settings, Intervals(settle=120.0), Cell(False), PodState(), in_process=True)
    monkeypatch.setattr(Sessions, "registered_since", lambda _, it: 1000.0 if it == str(OLD) else None)

    assert it._settled(str(life), 1000.0 + later) is settled


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
        Cell(ConfigState(Config(), "")), settings, Intervals(), Cell(False), PodState(), in_process=True
    )

    assert (tmp_path / "agent.remains").read_text() == f"{mark}/var/run/cdi/acme.com-card.json\n"

"""Which of the files that agents have written down count as left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import AgentSettings, Config
from agent.config.settings import ReportSettings
from agent.doctor import files_left_behind
from agent.doctor.surroundings import Configuration, Surroundings
from agent.scheduler_api.findings import Severity
from agent.state.uninstall_record import NAME, UninstallRecord


@pytest.fixture(autouse=True)
def on_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may be a pod."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def around(root: Path, labels: str = "") -> Surroundings:
    """A node whose agent keeps its state and CDI specs there, and its labels in this file."""
    settings = AgentSettings(state_dir=root, cdi_dir=root / "cdi")
    config = Config(settings, report=ReportSettings(features_file=labels))
    return Surroundings("n", "1", configuration=Configuration(config))


def noted(root: Path, name: str, *, there: bool) -> Path:
    """A file of labels that is written down."""
    path = root / name
    UninstallRecord(root / NAME).note_features(path)
    if there:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return path


def left(at: Surroundings) -> list[str]:
    return [it.what for it in files_left_behind.remains(at) if it.severity is Severity.WARNS]


def test_what_the_agent_of_today_keeps_is_not_left(tmp_path: Path) -> None:
    labels = noted(tmp_path, "features.d/xpu-agent", there=True)
    spec = tmp_path / "cdi/of-a-vendor-that-is-off.json"
    UninstallRecord(tmp_path / NAME).note(spec)
    spec.parent.mkdir()
    spec.touch()

    assert left(around(tmp_path, str(labels))) == []


def test_what_nobody_keeps_is_left_with_what_removes_it(tmp_path: Path) -> None:
    labels = noted(tmp_path, "features.d/xpu-agent", there=True)

    (found,) = files_left_behind.remains(around(tmp_path))

    assert found.what == f"{labels}: the file exists, and no agent keeps the file"
    assert found.remedy.startswith(
        f"on the node: rm -f {labels}, then delete its line from {tmp_path / NAME}"
    )


def test_what_is_gone_is_not_left(tmp_path: Path) -> None:
    noted(tmp_path, "xpu-agent", there=False)
    noted(tmp_path, "removed/xpu-agent", there=False)

    assert left(around(tmp_path)) == []


def test_in_a_pod_what_is_not_mounted_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted(tmp_path, "xpu-agent", there=False)
    unseen = noted(tmp_path, "not-mounted/xpu-agent", there=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    assert left(around(tmp_path)) == [
        f"{unseen}: the file may be on the node: the node's {unseen.parent} is not mounted here"
    ]


def test_a_list_that_can_not_be_read_is_a_check_that_could_not_be_made(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()

    (found,) = files_left_behind.remains(around(tmp_path))

    assert found.severity is Severity.NOT_MADE
    assert str(tmp_path / NAME) in found.what

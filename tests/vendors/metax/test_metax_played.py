"""The node that people without cards may play with."""

from __future__ import annotations

from pathlib import Path

import pytest
from played import main, play

from agent.config import load
from agent.vendors.metax.constants import SHARED


def test_what_is_played_has_a_good_config_and_says_how_to_run_it(tmp_path: Path) -> None:
    conformance, run, inspect = play(tmp_path / "metax", SHARED)

    config = load(tmp_path / "metax" / "config.yaml", "node-1")
    assert config.vendor("metax").settings["mode"] == SHARED
    assert conformance.startswith("XPU_MXSML_STUB=")
    assert run.endswith(f"--config {tmp_path}/metax/config.yaml")
    assert inspect.endswith(f"--state-dir {tmp_path}/metax/state")


@pytest.mark.parametrize(
    ("argv", "said"), [([], "required: directory"), (["{}/new", "sgpus"], "invalid choice: 'sgpus'")]
)
def test_what_can_not_be_played_is_said_and_nothing_made(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([it.format(tmp_path) for it in argv])

    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_where_something_is_already_nothing_is_played_and_a_sentence_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])

    assert f"{tmp_path} is there already: remove it, or name a directory" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

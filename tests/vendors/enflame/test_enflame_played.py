"""The node that people without cards may play with."""

from __future__ import annotations

from pathlib import Path

import pytest
from played_enflame import play

from agent.config import load


@pytest.mark.parametrize("dialect", ["none", "gcushare-v1", "gcushare-v4", "hami"])
def test_what_is_played_has_a_good_config_and_says_how_to_run_it(dialect: str, tmp_path: Path) -> None:
    conformance, run, inspect = play(tmp_path / "enflame", dialect)

    config = load(tmp_path / "enflame" / "config.yaml", "node-1")
    assert config.vendor("enflame").settings["dialect"] == dialect
    assert conformance.startswith("XPU_EFML_STUB=")
    assert run.endswith(f"--config {tmp_path}/enflame/config.yaml")
    assert inspect.endswith(f"--state-dir {tmp_path}/enflame/state")

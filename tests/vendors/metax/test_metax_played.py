"""The node that people without cards may play with."""

from __future__ import annotations

from pathlib import Path

from played import play

from agent.config import load
from agent.vendors.metax.facts import SHARED


def test_what_is_played_has_a_good_config_and_says_how_to_run_it(tmp_path: Path) -> None:
    conformance, run, inspect = play(tmp_path / "metax", SHARED)

    config = load(tmp_path / "metax" / "config.yaml", "node-1")
    assert config.vendor("metax").settings["mode"] == SHARED
    assert conformance.startswith("XPU_MXSML_STUB=")
    assert run.endswith(f"--config {tmp_path}/metax/config.yaml")
    assert inspect.endswith(f"--state-dir {tmp_path}/metax/state")

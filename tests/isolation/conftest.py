"""Who hears a vendor's process, and how it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from .rig import Flag, Recorder


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


@pytest.fixture
def flag(tmp_path: Path) -> Flag:
    return Flag(tmp_path / "flag")


@pytest.fixture(params=[False, True], ids=["process", "thread"])
def in_process(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)

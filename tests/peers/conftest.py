"""The built peers that tests run with: every release in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from .real import BUILD, built_peers


@pytest.fixture(params=[path.name for path in built_peers()] or ["peer"])
def binary(request: pytest.FixtureRequest) -> Path:
    path = BUILD / str(request.param)
    if not path.exists():
        words = "no kubelet peer is built: run `make peers`"
        assert not request.config.getoption("--require-peers"), words
        pytest.skip(words)
    return path

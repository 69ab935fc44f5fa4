"""The tools of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chart import Chart, helm_of, tool


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> Path:
    return helm_of(request)


@pytest.fixture(scope="session")
def promtool(request: pytest.FixtureRequest) -> Path:
    return tool(request, "promtool", "apt-get install -y --no-install-recommends prometheus")


@pytest.fixture(scope="session")
def chart(helm: Path) -> Chart:
    return Chart(helm)

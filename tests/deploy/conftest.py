"""The tools of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chart import Chart, helm_of, tool

PROMETHEUS = "apt-get install -y --no-install-recommends prometheus"


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> Path:
    return helm_of(request)


@pytest.fixture(scope="session")
def promtool(request: pytest.FixtureRequest) -> Path:
    return tool(request, "promtool", PROMETHEUS)


@pytest.fixture(scope="session")
def prometheus(request: pytest.FixtureRequest) -> Path:
    return tool(request, "prometheus", PROMETHEUS)


@pytest.fixture(scope="session")
def chart(helm: Path) -> Chart:
    return Chart(helm)

"""The tools of these tests. A test that lacks its tool is skipped by name, or is an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .chart import Chart

ROOT = Path(__file__).parent.parent.parent


def tool(request: pytest.FixtureRequest, name: str, remedy: str) -> Path:
    found = shutil.which(name, path=f"{ROOT / 'build/tools'}:/usr/local/bin:/usr/bin:/bin")
    if found is None:
        message = f"no {name} here: {remedy}"
        if request.config.getoption("--require-tools"):
            pytest.fail(message)
        pytest.skip(message)
    return Path(found)


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> Path:
    return tool(request, "helm", "make tools")


@pytest.fixture(scope="session")
def promtool(request: pytest.FixtureRequest) -> Path:
    return tool(request, "promtool", "apt-get install -y --no-install-recommends prometheus")


@pytest.fixture(scope="session")
def chart(helm: Path) -> Chart:
    return Chart(helm)

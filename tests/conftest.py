"""What all tests share: quick property tests that say the same on every run, and which kubelets there are."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import machine_guard.plugin
import pytest
from hypothesis import HealthCheck, settings
from support import run_report
from support.short_places import SHORT_PLACE

from agent import logs

#: The upper limit for `-n auto`: 8 is the most that was measured.
MOST_WORKERS = 8

settings.register_profile(
    "quick",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # so is a machine that does something else, too
)
#: For a second Python, which is to show that the language fits and not that the rules hold.
settings.register_profile("brief", settings.get_profile("quick"), max_examples=6)
settings.register_profile("campaign", max_examples=3000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """As tmp_path, where a socket has room below it: tmp_path holds the names of the user and of the test."""
    with tempfile.TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def level_of_logs() -> Iterator[None]:
    """What one test's command line does to the log, it does to no other's."""
    yield
    logs.set_level("info")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["TMPDIR"] = tempfile.tempdir = SHORT_PLACE
    machine_guard.plugin.start(config)
    config.pluginmanager.register(run_report)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kubelets")
    group.addoption(
        "--peers",
        action="store_true",
        help="run the scenarios with the real kubelet device managers instead, as far as they are built",
    )
    group.addoption(
        "--require-peers",
        action="store_true",
        help="the same, and a device manager that is not built is an error (what `make peers` asks for)",
    )
    group.addoption(
        "--one-of-each",
        action="store_true",
        help="run one scenario of each file (what CI does on a second Python)",
    )
    group.addoption(
        "--every-case",
        action="store_true",
        help="run every scenario with every kubelet and all cards, with --peers the simulated kubelets too",
    )
    parser.addoption(
        "--forecast",
        action="store_true",
        help="say how long `make test` will take on this machine",
    )
    parser.addoption(
        "--require-realnode",
        action="store_true",
        help="no node of its own, or no image for one, is an error (what `make cluster-test` asks for)",
    )
    parser.addoption(
        "--require-tools",
        action="store_true",
        help="helm or promtool not being here is an error (what `make chart` asks for)",
    )


def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: tests wait more than half of their time, so three for each core."""
    return min(3 * len(os.sched_getaffinity(0)), MOST_WORKERS)


def pytest_collection_finish() -> None:
    """What was collected stays to the end, and looking through it for garbage takes its time."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> str:
    from scenarios.kubelets import header

    return header(config)

"""The scheduler of docs/scheduler-guide.md, installed as a stranger's distribution."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.installed_example import installed
from support.short_places import SHORT_PLACE

EXAMPLE = Path(__file__).parents[2] / "docs/examples/scheduler"
#: Says of a pod as the agent keeps it which claims it has, and which locks and receipts are known.
HEARD = """
import json, pathlib, sys
from agent.cluster.pods import candidate
from agent.core.allocation.node_lock_rules import lock_keys
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import reads
from agent.scheduler_api.scheduler import common_dialects
(scene, _) = json.loads(pathlib.Path(sys.argv[1]).read_text())
pod = candidate(scene["pod"], reads(registered()))
names = [it.name for it in registered()]
its = [one.claims(pod, scene["resource"], scene["cards"]) for one in common_dialects(registered())]
print(json.dumps([names, [it.devices for one in its for it in one], lock_keys(registered(), ())]))
"""
pytestmark = pytest.mark.xdist_group("scheduler-example")


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        yield installed(Path(name), EXAMPLE)


def ran(python: Path, *args: str) -> str:
    done = subprocess.run(
        [str(python), *args],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        cwd=python.parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests_pass_where_it_is_installed(python: Path) -> None:
    said = ran(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "test_acme_scheduler.py")
    )

    assert "1 passed" in said


def test_its_checks_are_checks_of_the_doctor(python: Path) -> None:
    names = "from agent.doctor.checks import CHECKS; print([it.name for it in CHECKS])"

    assert "acme-pods" in ran(python, "-c", names)


def test_the_entry_point_makes_it_one_of_the_schedulers(python: Path) -> None:
    found = json.loads(ran(python, "-m", "agent", "plugins", "--json"))

    (row,) = (it for it in found if it.get("kind") == "scheduler" and it["name"] == "acme")
    assert (row["origin"], row["dialects"], row["reason"]) == ("acme-scheduler", ["acme"], "")


def test_it_is_heard_for_every_vendor_s_cards_and_its_lock_is_freed(python: Path) -> None:
    names, claims, locks = json.loads(ran(python, "-c", HEARD, str(EXAMPLE / "scenes.json")))

    assert names[0] == "acme"
    assert claims == [["CARD-1"]]
    assert "sched.acme.com/lock" in locks

"""Where the agent can be made to die under the campaign, and that it cannot be anywhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from .switches import Switches

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_no_failpoints() -> None:
    packed = list(WheelBuilder(str(ROOT)).recurse_included_files())

    assert packed
    for it in packed:
        assert it.distribution_path.startswith("agent/")
        content = Path(it.path).read_bytes().lower()
        for word in (b"failpoint", b"campaign"):
            assert word not in content, f"{it.distribution_path} knows of {word.decode()}"


@pytest.fixture
def switches(tmp_path: Path) -> Switches:
    return Switches(tmp_path)


def test_a_step_fires_when_it_is_armed_and_once_alone(switches: Switches) -> None:
    assert not switches.fires("allocate/admitted")
    switches.arm("allocate/admitted")

    assert not switches.fires("allocate/answered")
    assert switches.fires("allocate/admitted")
    assert switches.hit == "allocate/admitted"
    assert not switches.fires("allocate/admitted")


def test_a_step_can_be_armed_for_a_later_time(switches: Switches) -> None:
    switches.arm("checkpoint/opened", 3)

    assert [switches.fires("checkpoint/opened") for _ in range(4)] == [False, False, True, False]


def test_a_step_that_was_disarmed_does_not_fire(switches: Switches) -> None:
    switches.arm("checkpoint/opened")
    switches.disarm()

    assert not switches.fires("checkpoint/opened")
    assert switches.hit == ""

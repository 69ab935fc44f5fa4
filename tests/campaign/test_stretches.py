"""The short form of the stretches beside Koordinator; `make campaign` lives them in their own time."""

from __future__ import annotations

import pytest
from scenarios.kubelets import simulated

from .stretches import CASES, Case, beside_koordlet, without_the_api_server

#: Ten minutes in ten seconds.
SPEED = 60.0


@pytest.mark.parametrize("case", CASES, ids=lambda it: it.name)
@pytest.mark.timeout(120)
async def test_the_agent_beside_a_koordlet_never_flaps(case: Case) -> None:
    stretch = await beside_koordlet(simulated()[0], case, SPEED)

    assert not stretch.violations, stretch
    assert stretch.seen["lives"] == 2


@pytest.mark.timeout(120)
async def test_fifty_admissions_without_the_api_server_lose_nothing() -> None:
    stretch = await without_the_api_server(simulated()[0], SPEED)

    assert not stretch.violations, stretch
    assert stretch.seen["refused"] == 0

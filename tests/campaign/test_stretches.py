"""The short form of the stretches beside Koordinator; `make campaign` lives them in their own time."""

from __future__ import annotations

import pytest
from scenarios.kubelets import simulated

from .stretches import ADMISSIONS, CASES, all_of

#: Ten minutes in twenty seconds: a koordlet that is quiet for two counts as gone then.
SPEED = 30.0
#: The koordlet that the agent can only learn of by what it undoes; scenarios have the others.
UNSEEN = CASES[1:2]


@pytest.mark.timeout(180)
async def test_beside_a_koordlet_it_never_flaps_and_without_the_api_server_it_loses_nothing() -> None:
    *beside, without, idle = await all_of(simulated()[0], SPEED, UNSEEN)

    assert not [str(it) for it in (*beside, without, idle) if it.violations]
    assert [(it.name, it.seen["lives"]) for it in beside] == [(it.name, 2) for it in UNSEEN]
    assert idle.seen["writes of the agent"] <= 1
    assert (without.seen["admissions"], without.seen["refused"]) == (ADMISSIONS, 0)

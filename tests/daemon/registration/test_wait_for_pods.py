"""Which registrations wait for the pods, and how long."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from agent.cluster.pod_state import PodState
from agent.core.cell import Cell
from agent.core.model import Plan, Resource
from agent.daemon.registration.wait_for_pods import PodSync
from agent.vendor_api.agent import Placement, ResourceRule

XPU = "example.com/xpu"
LATE = "registered before the pods of this node are known"


def planned(placement: Placement) -> Cell[Plan]:
    return Cell({XPU: Resource(XPU, "acme", ResourceRule(XPU, placement=placement), "distributed")})


async def following(sync: PodSync) -> asyncio.Task[None]:
    """Let it see the plan."""
    task = asyncio.create_task(sync.run())
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("placement", ["auto", "claim"])
async def test_a_resource_whose_cards_schedulers_choose_has_the_pods_followed_and_waits_for_them(
    placement: Placement,
) -> None:
    scheduled = PodState()
    sync = PodSync(planned(placement), scheduled, 3600.0)
    task = await following(sync)
    assert scheduled.wanted.value

    registering = asyncio.create_task(sync.before(XPU))
    await asyncio.sleep(0)
    assert not registering.done()
    scheduled.follow_to(1)
    await registering
    task.cancel()


async def test_another_resource_waits_for_nobody_and_asks_for_nobody() -> None:
    scheduled = PodState()
    sync = PodSync(planned("local"), scheduled, 3600.0)
    task = await following(sync)

    await sync.before(XPU)

    assert not scheduled.wanted.value
    task.cancel()


async def test_where_no_pod_is_ever_seen_nothing_waits() -> None:
    scheduled = PodState()
    scheduled.unseen = "no API server is known here"

    await PodSync(planned("claim"), scheduled, 3600.0).before(XPU)


async def test_after_its_time_it_is_registered_without_them_which_is_said_and_waits_no_more() -> None:
    plan, scheduled = planned("auto"), PodState()
    sync = PodSync(plan, scheduled, 0.01)
    task = await following(sync)

    with capture_logs() as logs:
        await sync.before(XPU)
        plan.set({XPU: replace(plan.value[XPU], retired=True)})
        await sync.before(XPU)

    assert [it["event"] for it in logs] == [LATE, LATE]
    task.cancel()

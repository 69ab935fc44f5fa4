"""How fast the agent lives under the campaign: days of a node in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from agent.core.devices.health_thresholds import HealthThresholds
from agent.daemon.agent_timing import AgentTiming
from agent.demo.agent_process import PACE as PACE_OF_DEMO
from agent.isolation.deadlines import Deadlines
from agent.kubelet.session_timing import SessionTiming

PACE = replace(
    PACE_OF_DEMO,
    discover=0.1,
    reconcile=0.15,
    grace=0.8,  # the kubelet gets that long to write down an answer, on a slow machine, too
    request_again_after=0.3,
    settle=0.3,
    save=0.02,
    directory=0.3,
    pod_resources=0.03,
    specs=0.5,
    backoff=(0.05, 0.3),
    health=HealthThresholds(good_for=0.15, patience=0.5),
    session=SessionTiming(
        register=2.0, stream=1.0, shortest_pause=0.05, longest_pause=0.3, min_list_interval=0.02, allocate=3.0
    ),
    deadlines=Deadlines(open=5.0, discover=0.5, call=0.5, prepare=1.0),
)

#: Who runs a tool for each step is waited for longer.
SLOW = ("enflame",)


def pace(vendors: Mapping[str, Mapping[str, Any]]) -> AgentTiming:
    """As fast as the node's vendors are."""
    if not any(vendors.get(name, {}).get("enabled") for name in SLOW):
        return PACE
    deadlines = Deadlines(open=5.0, discover=5.0, call=3.0, prepare=9.0)
    session = replace(PACE.session, allocate=10.0)
    return replace(PACE, reconcile=0.4, deadlines=deadlines, session=session)

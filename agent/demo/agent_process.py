"""The agent's process in the demo: the real agent with intervals of fractions of a second."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import anyio

from agent import logs
from agent.cluster.credentials import find
from agent.config import ConfigWatch, Labels
from agent.core.cell import Cell
from agent.core.devices.health_thresholds import HealthThresholds
from agent.daemon.agent_timing import AgentTiming
from agent.daemon.process import serve
from agent.isolation.deadlines import Deadlines
from agent.kubelet.session_timing import SessionTiming
from agent.state.last_config_file import remembered_from

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PACE = AgentTiming(
    discover=0.2,
    reconcile=0.2,
    grace=0.2,
    settle=0.2,
    save=0.05,
    directory=0.5,
    pod_resources=0.1,
    lists_after=0.0,
    backoff=(0.1, 1.0),
    health=HealthThresholds(good_for=0.4),
    session=SessionTiming(shortest_pause=0.05, longest_pause=0.5),
    deadlines=Deadlines(open=5.0, discover=2.0),
)


def main() -> None:
    """Run with the config file that the argument names. The kernel ends the process when the demo ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    kubeconfig = os.environ.get("XPU_AGENT_KUBECONFIG")
    access = find(Path(kubeconfig) if kubeconfig else None, {})
    labels: Cell[Labels | None] | None = Cell(None) if access else None
    watch = ConfigWatch(
        Path(sys.argv[1]), os.environ["NODE_NAME"], every=0.1, labels=labels, recall=remembered_from
    )
    logs.configure(watch.cell.value.config.agent.log)
    anyio.run(serve, watch, os.environ["NODE_NAME"], PACE, access, labels)


if __name__ == "__main__":
    main()

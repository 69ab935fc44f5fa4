"""The agent's process under the campaign: the agent itself, with failpoints, and a clock that can jump."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from campaign.switches import VARIABLE, Switches

#: Names how many times as fast the agent is to live beside the API server.
SPEED = "CAMPAIGN_SPEED"


def main() -> None:
    """Run with the config file that the only argument names."""
    switches = Switches(Path(os.environ[VARIABLE]))
    _let_the_clock_jump(switches)  # before anybody takes it by name; the same holds for the next
    _show_cgroups()
    _live_faster(float(os.environ.get(SPEED, 1)))
    from agent.demo import agent_process
    from campaign import failpoints
    from campaign.pace import pace

    config = json.loads(Path(sys.argv[1]).read_text())
    failpoints.install(switches, Path(config["agent"]["stateDir"]))
    agent_process.PACE = pace(config["vendors"])
    agent_process.main()


def _show_cgroups() -> None:
    from agent.daemon.reconciling import evidence_sources
    from campaign.cgroups import VARIABLE as ROOT

    evidence_sources.running_pods = partial(evidence_sources.running_pods, Path(os.environ[ROOT]))


def _live_faster(speed: float) -> None:
    """All that is done at the API server so many times as often."""
    if speed == 1:
        return
    import anyio

    from agent.cluster import api_connection
    from agent.cluster.label_writer import LabelTiming, LabelWriter
    from agent.cluster.reflector import FollowTiming
    from agent.cluster.scheduler_report_follower import SchedulerReportFollower
    from agent.cluster.scheduler_report_timing import SchedulerReportTiming

    its = FollowTiming()
    following = replace(its, shortest=its.shortest / speed, longest=its.longest / speed)
    usual = SchedulerReportTiming()
    timing = replace(
        usual,
        between_writes=usual.between_writes / speed,
        between_reads=usual.between_reads / speed,
        kind_missing=usual.kind_missing / speed,
        look=usual.look / speed,
        away=(usual.away[0] / speed, usual.away[1] / speed),
        refused=(usual.refused[0] / speed, usual.refused[1] / speed),
        clock=lambda: anyio.current_time() * speed,
    )
    quick = partial(SchedulerReportFollower, timing=timing)
    labels = partial(LabelWriter, timing=LabelTiming(5.0 / speed, 300.0 / speed))
    options = partial(api_connection.ConnectionOptions, following=following)
    vars(api_connection).update(SchedulerReportFollower=quick, LabelWriter=labels, ConnectionOptions=options)


def _let_the_clock_jump(switches: Switches) -> None:
    right = time.time
    time.time = lambda: right() + switches.ahead


if __name__ == "__main__":
    main()

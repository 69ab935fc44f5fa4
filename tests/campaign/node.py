"""The agent's process under the campaign: the agent itself, with failpoints, and a clock that can jump."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

from campaign.switches import VARIABLE, Switches


def main() -> None:
    """Run with the config file that the only argument names."""
    switches = Switches(Path(os.environ[VARIABLE]))
    _let_the_clock_jump(switches)  # before anybody takes it by name; the same holds for the next
    _show_cgroups()
    from agent.demo import node
    from campaign import failpoints
    from campaign.pace import PACE

    config = json.loads(Path(sys.argv[1]).read_text())
    failpoints.install(switches, Path(config["agent"]["stateDir"]))
    node.PACE = PACE
    node.main()


def _show_cgroups() -> None:
    from agent import evidence
    from campaign.cgroups import VARIABLE as ROOT

    evidence.running_pods = partial(evidence.running_pods, Path(os.environ[ROOT]))


def _let_the_clock_jump(switches: Switches) -> None:
    right = time.time
    time.time = lambda: right() + switches.ahead


if __name__ == "__main__":
    main()

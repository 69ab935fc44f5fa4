"""The processes in the demo's containers, in the node's /proc and on the simulated cards."""

from __future__ import annotations

import asyncio
import shutil
from itertools import count, cycle
from pathlib import Path
from secrets import token_hex
from typing import Any

from agent.testing.node_kubelet import Pod
from agent.vendors.simulated.child.scenario import Scenario

#: The PIDs of a machine have this name, those of a container another one: Linux, include/linux/proc_ns.h.
MACHINE = "pid:[4026531836]"
#: Factors of the usual part of a card's time, and the seconds from one to the next.
SWAY, SECONDS = (0.8, 1.0, 0.6, 0.9), 1.0


class ContainerProcesses:
    """One process for each pod that uses a card."""

    def __init__(self, proc: Path, scenario: Scenario) -> None:
        """`proc`: the directory that becomes the node's /proc."""
        self.proc = proc
        self._scenario = scenario
        self._pids = count(4711, 13)
        #: By uid of the pod: the process as the scenario has it.
        self._running: dict[str, dict[str, Any]] = {}
        self._swaying: asyncio.Task[None] | None = None
        namespaces = proc / "self" / "ns"
        namespaces.mkdir(parents=True)
        (namespaces / "pid").symlink_to(MACHINE)

    def use(self, pod: Pod, card: str, memory: int, utilization: float) -> None:
        """Let the pod use so many bytes of the card and such a part of the card's time, from 0 to 1."""
        known = self._running.get(pod.uid)
        pid = known["pid"] if known else self._start(pod)
        self._running[pod.uid] = {"uuid": card, "pid": pid, "memory": memory, "utilization": utilization}
        self._scenario.run(*self._running.values())

    def end(self, pod: Pod) -> None:
        """End the pod's process, if there is one."""
        process = self._running.pop(pod.uid, None)
        if process is not None:
            self._scenario.run(*self._running.values())
            shutil.rmtree(self.proc / str(process["pid"]))

    def sway(self) -> None:
        """Let the use of the cards' time go up and down until `stop`, so that a person sees the use move."""
        self._swaying = asyncio.create_task(self._sway())

    def stop(self) -> None:
        """Let the use be as it is."""
        if self._swaying is not None:
            self._swaying.cancel()

    async def _sway(self) -> None:
        for part in cycle(SWAY):
            await asyncio.sleep(SECONDS)
            running = self._running.values()
            self._scenario.run(*({**it, "utilization": it["utilization"] * part} for it in running))

    def _start(self, pod: Pod) -> int:
        """Write what containerd under systemd makes of a container without requests for cpu and memory."""
        pid = next(self._pids)
        of_pod = f"kubepods-besteffort-pod{pod.uid.replace('-', '_')}.slice"
        cgroup = f"kubepods.slice/kubepods-besteffort.slice/{of_pod}/cri-containerd-{token_hex(32)}.scope"
        directory = self.proc / str(pid)
        directory.mkdir()
        (directory / "cgroup").write_text(f"0::/{cgroup}\n")
        # proc_pid_stat(5): 52 fields, the start time is the 22nd.
        (directory / "stat").write_text(f"{pid} (python3) S {'0 ' * 18}{pid * 100} {'0 ' * 29}0\n")
        return pid

"""The demo's node: a simulated kubelet and API server, a scenario of cards, the agent in its own process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from agent.demo import stage_objects
from agent.demo.container_processes import ContainerProcesses
from agent.http.admin_client import fetch
from agent.http.inspect_document import InspectDocument, decode
from agent.http.usage import usage_document
from agent.http.usage.usage_document import UsageDocument
from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Container, Pod
from agent.testing.simapi import SimApiServer
from agent.vendors.simulated.child.scenario import Scenario

#: Characters of a directory that leave room for the longest socket path below.
LONGEST_ROOT = 40
WHOLE = "example.com/xpu"
SHARED = "example.com/xpu.shared"
REPLICAS = 4
CONFIG = """\
version: v1
agent:
  kubeletDir: {kubelet_dir}
  podResourcesSocket: {pod_resources}
  stateDir: {state_dir}
  cdiDir: {cdi_dir}
  http: ""
  log: {{format: json}}
report: {{deviceInfosDir: {device_infos_dir}}}
usage: {{enabled: true, interval: 1s, procDir: {proc_dir}}}
vendors:
  nvidia: {{enabled: false}}
  simulated:
    enabled: true
    settings: {{scenario: {scenario}, labels: true}}
    resources:
      - {{name: {whole}, devices: [0, 1]}}
      - {{name: {shared}, devices: [2, 3], sharing: {{kind: replicas, replicas: {replicas}}}}}
"""


class Stage:
    """Everything that a step of the demo can use."""

    def __init__(self, root: Path, kubelet: SimKubelet, api: SimApiServer) -> None:
        self.kubelet = kubelet
        self.api = api
        self.scenario = Scenario(root / "scenario.json", devices=4)
        self.processes = ContainerProcesses(root / "proc", self.scenario)
        self.pods: dict[str, Pod] = {}
        self.state_dir = root / "state"
        self._log = root / "agent.log"
        self._config = root / "config.yaml"
        self._kubeconfig = api.kubeconfig(root / "kubeconfig")
        self._agent: asyncio.subprocess.Process | None = None
        api.put_object(stage_objects.node())
        self._config.write_text(
            CONFIG.format(
                kubelet_dir=kubelet.plugin_dir,
                pod_resources=kubelet.pod_resources_socket,
                state_dir=self.state_dir,
                cdi_dir=root / "cdi",
                device_infos_dir=root / "device-infos",
                scenario=self.scenario.path,
                proc_dir=self.processes.proc,
                whole=WHOLE,
                shared=SHARED,
                replicas=REPLICAS,
            )
        )

    async def start_agent(self) -> None:
        with self._log.open("ab") as log:
            self._agent = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "agent.demo.agent_process",
                str(self._config),
                env={
                    **os.environ,
                    "NODE_NAME": stage_objects.NODE_NAME,
                    "XPU_AGENT_KUBECONFIG": str(self._kubeconfig),
                },
                stderr=log,
                stdout=log,
            )

    async def kill_agent(self) -> None:
        """End the agent with SIGKILL, so that it cannot write anything more."""
        if self._agent is not None and self._agent.returncode is None:
            self._agent.send_signal(signal.SIGKILL)
            await self._agent.wait()

    async def end_agent(self) -> int | None:
        """End the agent with SIGTERM; returns the exit status, None without an agent."""
        if self._agent is None:
            return None
        if self._agent.returncode is None:
            self._agent.send_signal(signal.SIGTERM)
        return await self._agent.wait()

    async def inspect(self) -> InspectDocument:
        """What the agent knows; an empty document while no agent answers."""
        try:
            body = await asyncio.to_thread(fetch, self.state_dir / "agent.sock")
        except Exception:
            return InspectDocument()
        return decode(body)

    async def until(self, condition: Callable[[InspectDocument], object]) -> InspectDocument:
        """Ask the agent until the condition is true; returns that document."""
        while True:
            document = await self.inspect()
            if condition(document):
                return document
            await asyncio.sleep(0.02)

    async def usage(self) -> UsageDocument:
        """What the containers use of the cards; an empty document while no agent answers."""
        try:
            body = await asyncio.to_thread(fetch, self.state_dir / "agent.sock", "/inspect/usage")
        except Exception:
            return UsageDocument()
        return usage_document.decode(body)

    async def until_used(self, condition: Callable[[UsageDocument], object]) -> UsageDocument:
        """Ask the agent until the condition is true; returns that document."""
        while True:
            document = await self.usage()
            if condition(document):
                return document
            await asyncio.sleep(0.1)

    def labels(self) -> dict[str, str]:
        """The Node's labels at the API server."""
        node = self.api.find("Node", stage_objects.NODE_NAME)
        assert node is not None, "the demo does not delete the Node"
        return dict(node["metadata"].get("labels", {}))

    async def admit(self, name: str, limits: Mapping[str, int]) -> Pod:
        """Admit a pod with one container.

        Raises:
            AssertionError: The kubelet refused the pod.
        """
        pod = Pod(name, (Container(dict(limits)),))
        self.api.put_object(stage_objects.pod(pod))
        verdict = await self.kubelet.admit(pod)
        if not verdict.admitted:
            raise AssertionError(f"pod {name} was refused: {verdict.reason}: {verdict.message}")
        self.pods[name] = pod
        return pod

    async def delete(self, pod: Pod) -> None:
        """Delete the pod at the API server and in the kubelet, with its process."""
        self.processes.end(pod)
        self.api.delete_object("Pod", pod.name, pod.namespace)
        await self.kubelet.delete(pod.uid)

    def log_tail(self, lines: int = 15) -> str:
        """The end of the agent's log, for a step that did not hold."""
        try:
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    """Build the node in a new directory, and remove everything at the end.

    The directory has a short path, because the path of a unix socket has at most 107 bytes.
    """
    short = len(tempfile.gettempdir()) <= LONGEST_ROOT
    root = Path(tempfile.mkdtemp(prefix="xpu-", dir=None if short else "/tmp"))
    try:
        async with SimKubelet(root / "k", mode="1.36") as kubelet, SimApiServer() as api:
            stage = Stage(root, kubelet, api)
            try:
                yield stage
            finally:
                stage.processes.stop()
                await stage.kill_agent()
    finally:
        shutil.rmtree(root, ignore_errors=True)

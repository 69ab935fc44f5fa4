"""The patient: a whole node that is well, until a test breaks a part of it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from scenarios.cards import Nvidia
from scenarios.node import Node
from scenarios.process import AgentProcess
from support.short_places import SHORT_PLACE

from agent.cluster.credentials import NamedKubeconfig
from agent.doctor.checks import examined
from agent.doctor.doctor_arguments import DoctorArguments
from agent.doctor.surroundings import Surroundings
from agent.doctor.survey import survey
from agent.scheduler_api.findings import Finding
from agent.testing.kubelet import SimKubelet
from agent.testing.simapi import SimApiServer

GPU = "nvidia.com/gpu"
CARDS = 2
#: What containerd 1 starts containers by.
RUNTIME = """\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = {}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""


class Patient:
    """A healthy node: kubelet, two cards, API server; the agent runs where `start` was called.

    `given` are arguments of the command line, called as flags; `config` what the file says besides.
    """

    def __init__(self, root: Path, kubelet: SimKubelet, cards: Nvidia, server: SimApiServer) -> None:
        self.root = root
        self.kubelet = kubelet
        self.cards = cards
        self.server = server
        self.node = Node(root, kubelet, cards)
        self.given: dict[str, Any] = {"config": str(self.node.config)}
        self.kubeconfig: Path | None = server.kubeconfig(root / "kubeconfig")
        self.host = root / "host"
        self._install_runtime()
        self.agent = AgentProcess(self.node)
        #: What ends with the test.
        self.stack = AsyncExitStack()
        self.vendor: dict[str, Any] = dict(cards.settings)
        server.unserve("scheduling.koordinator.sh", "devices")  # not every cluster is one of Koordinator's
        self.configure()
        self.offer(CARDS)

    def configure(self, *nodes: Mapping[str, Any], **vendor: Any) -> None:
        """Write the file anew, with other settings of the vendor."""
        self.vendor |= vendor
        self.node.configure(nvidia={"enabled": True, "resources": [{"name": GPU}], **self.vendor})
        if nodes:
            document = json.loads(self.node.config.read_text())
            self.node.write(json.dumps({**document, "nodes": nodes}))

    def _install_runtime(self) -> None:
        """NVIDIA's container runtime, as the one that starts containers."""
        toolkit, config = (
            self.host / "usr/bin/nvidia-container-runtime",
            self.host / "etc/containerd/config.toml",
        )
        for path in (toolkit, config):
            path.parent.mkdir(parents=True, exist_ok=True)
        toolkit.touch()
        config.write_text(RUNTIME.format('"nvidia"'))

    def spoil(self, text: str) -> None:
        """Write a file that cannot be used, but for what `agent` says of where things are."""
        agent = json.loads(self.node.config.read_text())["agent"]
        self.node.write(f"{text}agent: {json.dumps(agent)}\n")

    def beside(self, vendor: str) -> None:
        """Leave a vendor without cards as it is where nobody names it."""
        document = json.loads(self.node.config.read_text())
        del document["vendors"][vendor]
        self.node.write(json.dumps(document))

    def offer(self, count: int | None, **labels: str) -> None:
        """Let the Node offer so many cards, and have these labels."""
        allocatable = {} if count is None else {GPU: str(count)}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "node", "labels": labels},
            "status": {
                "allocatable": allocatable,
                "capacity": allocatable,
                "nodeInfo": {"containerRuntimeVersion": "containerd://1.7.20"},
            },
        }
        self.server.put_object(node)

    def add_pod(self, name: str, container: Mapping[str, Any], **status: Any) -> None:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": "node", "containers": [{"name": "main", "image": "a", **container}]},
            "status": {"phase": "Running", **status},
        }
        self.server.put_object(pod)

    async def start(self) -> dict[str, Any]:
        """Start the agent; what it shows once it serves."""
        await self.agent.start()
        self.stack.push_async_callback(self.agent.kill)
        return await self.agent.until(lambda it: it["ready"] and it["resources"])

    async def look(self) -> Surroundings:
        named = NamedKubeconfig(self.kubeconfig)
        question = DoctorArguments("node", self.given, {}, named, self.host, vendor_patience=20)
        return await survey(question)

    async def findings(self) -> Sequence[Finding]:
        around = await self.look()
        found = await anyio.to_thread.run_sync(lambda: tuple(examined(around)))
        await anyio.wait_all_tasks_blocked()  # servers of this process have seen that the doctor hung up
        return found

    # What tests break

    def disk(self, at: Path, options: str) -> None:
        """Mount a small disk of its own there, where this is allowed; the test's end unmounts it."""
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], check=True, capture_output=True
        )
        self.stack.callback(subprocess.run, ["umount", "-l", str(at)], check=True)

    async def listen(self, path: Path) -> None:
        """Let a program of its own listen at a socket, as another plugin does."""
        code = (
            "import socket, sys; it = socket.socket(socket.AF_UNIX); it.bind(sys.argv[1]); it.listen();\n"
            "print(flush=True); sys.stdin.read()"
        )
        await self.program(code, str(path))

    async def program(self, code: str, *arguments: str) -> int:
        """Run Python until the test ends, and wait for its first line; its pid."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "python3", "-c", code, *arguments, stdin=pipe, stdout=pipe
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.stack.push_async_callback(process.wait)
        self.stack.callback(process.stdin.close)
        await process.stdout.readline()
        return process.pid


@asynccontextmanager
async def patient(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Patient]:
    cards = Nvidia(root, CARDS)
    for name, value in cards.environment.items():
        monkeypatch.setenv(name, value)
    (root / "k").mkdir()
    async with SimKubelet(root / "k") as kubelet, SimApiServer() as server:
        it = Patient(root, kubelet, cards, server)
        async with it.stack:
            yield it


@contextmanager
def short_directory() -> Iterator[Path]:
    """Below /tmp itself: sockets have 107 bytes for their path."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=SHORT_PLACE, prefix="d") as directory:
        yield Path(directory)


def may_mount() -> bool:
    """Whether disks can be made here; elsewhere the boundary is patched."""
    if os.geteuid():
        return False
    with short_directory() as place:
        tried = subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", str(place)], capture_output=True, check=False
        )
        if tried.returncode == 0:
            subprocess.run(["umount", "-l", str(place)], check=True)
        return tried.returncode == 0

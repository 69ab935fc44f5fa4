"""The agent on the node, installed as docs/install.md has it: the chart, by helm, with our image."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from deploy.chart import CHART

from . import cards, kubelet
from .api import Api, Object
from .place import ROOT, TOOLS, Place
from .until import PATIENCE, until

NAME = NAMESPACE = "xpu-agent"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
#: What `make image` makes; it has sh and python3, so pods of the scenarios run it as well.
IMAGE = f"localhost/xpu-agent:{VERSION}"
#: Where the chart has the agent's state, its CDI specs and its labels.
STATE, CDI = Path("/var/lib/xpu-agent"), Path("/var/run/cdi")
FEATURES = Path("/etc/kubernetes/node-feature-discovery/features.d")
_NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
}
#: By it the chart finds NVIDIA's nodes.
LABEL = "feature.node.kubernetes.io/pci-10de.present=true"

Values = Mapping[str, Any]


class HelmFailed(Exception):
    """helm ended with an error, here in its own words."""


class Release:
    """One installation of the chart. `port` is where the agent serves HTTP on the host's loopback."""

    def __init__(self, place: Place, api: Api, port: int) -> None:
        self.port = port
        self._api = api
        self._base = merged(cards.values(place), _on_this_node(api, port))

    async def hold(self, values: Values | None = None) -> None:
        """Install or upgrade, so that these values hold and no others of an earlier scenario, and roll out.

        Raises:
            HelmFailed: helm or the chart refuses them.
            AssertionError: The rollout does not end.
        """
        if not await self.holds(values):
            await self.upgrade(values)
        await self.rolled_out()

    async def upgrade(self, values: Values | None = None) -> None:
        """Have helm install or upgrade to these values over those of this node, whatever comes of it.

        Raises:
            HelmFailed: helm or the chart refuses them.
        """
        if await self.values() is not None:
            # One that is not ready is ended before the next one stands by.
            await self.ready()
        await self._api.apply(_NAMESPACE)
        # Not as YAML: what it leaves bare, helm may take for a number, such as the text 12e45678.
        wanted = json.dumps(merged(self._base, values or {}))
        await self.helm("upgrade", "--install", NAME, str(CHART), "--values=-", stdin=wanted)

    async def ready(self) -> None:
        """Wait until the kubelet calls the agent ready, which it does not ask for the chart's first 10 s."""
        await until(self._unprobed, lambda it: it == "", "the kubelet to call the agent ready")

    async def anew(self, values: Values | None = None) -> None:
        """Install it on a node where it never was: nobody holds cards, and nothing is left of its state.

        For two minutes after its start the agent believes nobody that a pod is gone, so what scenarios
        before this one held would be held still. The pods of all scenarios must be gone.
        """
        if await self.values() is not None:
            await self.uninstall()
        for directory in (STATE, CDI):
            shutil.rmtree(directory, ignore_errors=True)
        (FEATURES / "xpu-agent").unlink(missing_ok=True)
        await kubelet.forget()
        await self.hold(values)

    async def rolled_out(self) -> None:
        """Wait until the pods of every pool are of the newest template, no other is left, and they serve."""
        await until(self._standing, lambda it: it == "", "the agent's rollout")
        # Nobody else is left to answer, so no kubelet needs to have asked.
        await until(self._readiness, lambda it: it == "", "the agent to be ready")

    async def uninstall(self) -> None:
        """`helm uninstall`, and wait until the pods are gone."""
        await self.helm("uninstall", NAME)
        await until(self.pods, lambda it: not it, "the agent's pods to go", PATIENCE)

    async def values(self) -> Values | None:
        """What it is installed with; none where it is not."""
        try:
            told = json.loads(await self.helm("get", "values", NAME, "--output=json"))
        except HelmFailed:
            return None
        assert isinstance(told, dict)
        return told

    async def pods(self) -> list[Object]:
        return await self._api.items(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=xpu-agent.io/pool")

    async def pod(self) -> Object:
        """The one pod."""
        [pod] = await self.pods()
        return pod

    async def log(self) -> str:
        """What the agent's one pod has printed."""
        name = (await self.pod())["metadata"]["name"]
        return await self._api.text(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log")

    async def run(self, *command: str) -> str:
        """Run a command in the agent's one pod, such as xpu-agent inspect."""
        name = (await self.pod())["metadata"]["name"]
        return await self._api.kubectl("exec", f"--namespace={NAMESPACE}", name, "--", *command)

    async def metrics(self) -> dict[str, float]:
        """What it serves at /metrics: a sample's name with its labels to its value."""
        text = (await asyncio.to_thread(self._ask, "/metrics")).decode()
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    async def inspect(self) -> Object:
        """What it serves at /inspect: the view of the node that runs."""
        return cast("Object", json.loads(await asyncio.to_thread(self._ask, "/inspect")))

    async def holds(self, values: Values | None = None) -> bool:
        """Whether it is installed with exactly these values over those of this node."""
        return await self.values() == merged(self._base, values or {})

    async def is_fresh(self) -> bool:
        """Whether it is installed with the values of this node alone, and nobody has held a card yet."""
        if not await self.holds():
            return False
        try:
            return not await self._allocations()
        except OSError:  # a scenario that failed has left it so
            return False

    async def helm(self, verb: str, *arguments: str, stdin: str = "") -> str:
        options = [f"--kubeconfig={self._api.kubeconfig}", f"--namespace={NAMESPACE}"]
        command = [str(TOOLS / "helm"), verb, *arguments, *options]
        told = await asyncio.to_thread(
            subprocess.run, command, input=stdin, capture_output=True, text=True, timeout=PATIENCE
        )
        if told.returncode:
            raise HelmFailed(f"helm {verb}: {told.stderr}{told.stdout}")
        return told.stdout

    async def _allocations(self) -> dict[str, float]:
        return {
            name: count
            for name, count in (await self.metrics()).items()
            if name.startswith("xpu_agent_allocations{") and count
        }

    def _ask(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as answer:
            return bytes(answer.read())

    async def _readiness(self) -> str:
        """Why it is not ready; empty where it is."""
        try:
            await asyncio.to_thread(self._ask, "/readyz")
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode(errors="replace")
        except OSError as error:
            return str(error)
        return ""

    async def _standing(self) -> str:
        """What is still to come; empty where nothing is."""
        sets = await self._api.items(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets")
        everyone = await self.pods()
        for it in sets:
            name, status = it["metadata"]["name"], it["status"]
            wanted = status.get("desiredNumberScheduled", 0)
            if status.get("observedGeneration") != it["metadata"]["generation"]:
                return f"{name} is not looked at yet"
            new = status.get("updatedNumberScheduled", 0)
            pool = it["metadata"]["labels"]["xpu-agent.io/pool"]
            pods = [pod for pod in everyone if pod["metadata"]["labels"]["xpu-agent.io/pool"] == pool]
            run = sum(pod["status"].get("phase") == "Running" for pod in pods)
            if [new, run, len(pods)] != [wanted] * 3:
                return f"{name} has {len(pods)} pods, {new} of them new, {run} running, of {wanted}"
        return "" if sets else "no DaemonSet"

    async def _unprobed(self) -> str:
        """Which DaemonSet the kubelet does not call ready; empty where it does of all."""
        for it in await self._api.items(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"):
            wanted, ready = (it["status"].get(key, 0) for key in ("desiredNumberScheduled", "numberReady"))
            if ready != wanted:
                return f"{it['metadata']['name']} has {ready} ready of {wanted}"
        return ""


def merged(base: Values, over: Values) -> dict[str, Any]:
    """As helm merges values: maps go into each other, everything else is replaced."""
    both = dict(base)
    for key, value in over.items():
        mine = both.get(key)
        both[key] = merged(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return both


def _on_this_node(api: Api, port: int) -> Values:
    """What is special of this node: no network of pods, no service addresses, no registry."""
    host, _, api_port = api.url.removeprefix("https://").partition(":")
    return {
        "image": {"pullPolicy": "Never"},
        "hostNetwork": True,
        "http": {"address": "127.0.0.1", "port": port},
        "api": {"host": host, "port": api_port},
        # A test waits for it. The first one comes when the chart says: before, another agent might answer.
        "probes": {"readiness": {"periodSeconds": 1}},
    }

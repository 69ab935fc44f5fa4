"""Koordinator's programs beside one node, and the API server between them: played, or a real one."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from peers.apiserver import KubectlFailed, RealApiServer
from played_koordinator.manager import Manager
from played_koordinator.scheduler import ALLOCATED, Asking, Bound, Scheduler, booked
from played_koordinator.wishes import CORE
from support.waiting import eventually

from agent.testing.node_kubelet import Container, Pod
from agent.testing.simapi import SimApiServer

from .node import PATIENCE, Node
from .process import AgentProcess

NODE = "node"
KIND = "devices.scheduling.koordinator.sh"
CRD = Path(__file__).parents[2] / "deploy/crd" / f"{KIND}.yaml"
#: Nobody pulls it.
IMAGE = "none"


class Server(Protocol):
    """What a node's Device, Node and pods are kept in."""

    def kubeconfig(self, path: Path) -> Path: ...

    async def begins(self) -> None:
        """Have the Node, and nothing else."""

    async def device(self) -> dict[str, Any] | None: ...

    async def annotations(self) -> Mapping[str, str]:
        """Those of the Node."""

    async def annotates(self, annotations: Mapping[str, str]) -> None:
        """Write these on the Node."""

    async def creates(self, pod: dict[str, Any]) -> str:
        """Keep the pod; the uid that it has."""

    async def deletes(self, name: str, namespace: str) -> None: ...


class Played:
    """SimApiServer."""

    def __init__(self, api: SimApiServer) -> None:
        self.api = api

    def kubeconfig(self, path: Path) -> Path:
        return self.api.kubeconfig(path)

    async def begins(self) -> None:
        self.api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})

    async def device(self) -> dict[str, Any] | None:
        return self.api.find("Device", NODE)

    async def annotations(self) -> Mapping[str, str]:
        node = self.api.find("Node", NODE)
        assert node is not None
        found: Mapping[str, str] = node["metadata"].get("annotations") or {}
        return found

    async def annotates(self, annotations: Mapping[str, str]) -> None:
        node = self.api.find("Node", NODE)
        assert node is not None
        metadata = {**node["metadata"], "annotations": {**(await self.annotations()), **annotations}}
        self.api.put_object({**node, "metadata": metadata})

    async def creates(self, pod: dict[str, Any]) -> str:
        self.api.put_object(pod)
        return str(pod["metadata"]["uid"])

    async def deletes(self, name: str, namespace: str) -> None:
        self.api.delete_object("Pod", name, namespace)


class Real:
    """A kube-apiserver."""

    def __init__(self, server: RealApiServer) -> None:
        self.server = server

    def kubeconfig(self, path: Path) -> Path:
        return self.server.kubeconfig(path)

    async def begins(self) -> None:
        apply = ("apply", "--server-side", "--filename")
        await self.server.kubectl(*apply, str(CRD))
        await self.server.kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=30s")
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        await self.server.kubectl(*apply, "-", stdin=json.dumps(account))
        await self.ends()
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        await self.server.kubectl("create", "--filename", "-", stdin=json.dumps(node))

    async def ends(self) -> None:
        """Leave nothing of this node to the next test."""
        for what in (("pods", "--all", "--force", "--grace-period=0"), (KIND, NODE), ("node", NODE)):
            await self.server.kubectl("delete", *what, "--ignore-not-found")

    async def device(self) -> dict[str, Any] | None:
        return await self._get(KIND)

    async def annotations(self) -> Mapping[str, str]:
        node = await self._get("node")
        assert node is not None
        found: Mapping[str, str] = node["metadata"].get("annotations", {})
        return found

    async def _get(self, kind: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(await self.server.kubectl("get", kind, NODE, "-o", "json"))
        except KubectlFailed:
            return None
        return found

    async def annotates(self, annotations: Mapping[str, str]) -> None:
        said = (f"{key}={value}" for key, value in annotations.items())
        await self.server.kubectl("annotate", "node", NODE, "--overwrite", *said)

    async def creates(self, pod: dict[str, Any]) -> str:
        metadata = {key: value for key, value in pod["metadata"].items() if key != "uid"}
        spec = {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0, **pod["spec"]}
        whole = {**pod, "metadata": metadata, "spec": spec}
        create = ("create", "--field-manager=koord-scheduler", "--filename", "-", "-o", "json")
        made = json.loads(await self.server.kubectl(*create, stdin=json.dumps(whole)))
        return str(made["metadata"]["uid"])

    async def deletes(self, name: str, namespace: str) -> None:
        await self.server.kubectl("delete", "pod", name, "-n", namespace, "--force", "--grace-period=0")


@dataclass
class Koordinator:
    """Scheduler and manager of tests/played_koordinator: they know of cards what the Device says."""

    api: Server
    node: Node
    process: AgentProcess
    scheduler: Scheduler = field(default_factory=Scheduler)
    manager: Manager = field(default_factory=Manager)
    pods: dict[str, Bound] = field(default_factory=dict)
    #: The scheduler binds one pod after the other; a lock of long ago is one that nobody waits for.
    clock: itertools.count[int] = field(default_factory=lambda: itertools.count(int(time.time()) - 60))

    async def starts(self, offered: Mapping[str, int], *rules: Mapping[str, Any]) -> None:
        """Start the agent, and wait for what it is to offer and to tell."""
        self.node.configure(*rules)
        document = json.loads(self.node.config.read_text())
        document["report"] = {"mode": "device", "deviceInfosDir": str(self.node.root / "infos")}
        self.node.write(json.dumps(document, default=list))
        await self.process.start()
        await self.hears()
        await self.node.counts({name: (count, count) for name, count in offered.items()})
        await self.sees(*[True] * len(self.node.cards.uuids))

    async def hears(self) -> None:
        await self.process.until(lambda it: it["apiServer"] and it["apiServer"]["synced"])

    async def sees(self, *health: bool) -> None:
        """Wait until the Device says so of the cards, and let the Node have what follows."""

        async def says() -> bool:
            device = await self.api.device()
            return device is not None and tuple(it["health"] for it in device["spec"]["devices"]) == health

        await eventually(says, PATIENCE)
        self.manager.sees(await self.api.device())
        assert self.manager.resources[CORE] == 100 * sum(health)

    async def binds(
        self, name: str, *containers: Mapping[str, str], annotations: Mapping[str, str] | None = None
    ) -> Pod:
        """The pod as it comes to the node's kubelet; its containers are called a, b, and so on.

        Raises:
            Unschedulable: It stays where it is.
        """
        asking = Asking(name, containers, annotations or {})
        counted = {it: count.allocatable for it, count in (await self.node.kubelet.capacity()).items()}
        bound = self.scheduler.bind(
            asking,
            await self.api.device(),
            list(self.pods.values()),
            allocatable=counted | self.manager.resources,
            locks=await self.api.annotations(),
            now=next(self.clock),
        )
        self.pods[name] = bound
        if bound.locks:
            await self.api.annotates(bound.locks)
        its = [Asking("", (it,)).total for it in containers]
        pod = Pod(name, tuple(Container(it, "abc"[n]) for n, it in enumerate(its)))
        uid = await self.api.creates(as_object(pod, bound))
        return Pod(name, pod.containers, uid=uid)

    def promised(self, pod: Pod) -> list[str]:
        return [it["id"] for it in json.loads(self.pods[pod.name].annotations[ALLOCATED])["gpu"]]

    async def ends(self, pod: Pod) -> None:
        await self.node.kubelet.delete(pod.uid)
        await self.api.deletes(pod.name, pod.namespace)
        del self.pods[pod.name]

    async def is_one_with_the_agent(self) -> None:
        """Wait until the agent's ledger has, pod by pod, the cards that the scheduler has in its book."""
        book = {
            (name, it["id"])
            for name, bound in self.pods.items()
            for it in json.loads(bound.annotations[ALLOCATED])["gpu"]
        }
        assert {it for _, it in book} == {
            self.node.cards.uuids[minor] for minor in booked(self.pods.values()).get("gpu", {})
        }
        await self.process.until(lambda it: _ledger(it) == book)


def _ledger(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {
        ((it["owner"] or it["claim"] or {"pod": ""})["pod"], uuid)
        for it in document["allocations"]
        if it["state"] == "done"
        for uuid in it["devices"]
    }


def as_object(pod: Pod, bound: Bound) -> dict[str, Any]:
    """The pod, bound to the node, with what its author and the scheduler wrote on it."""
    containers = [
        {
            "name": it.name,
            "image": IMAGE,
            "resources": {"limits": {name: str(count) for name, count in it.limits.items()}},
        }
        for it in pod.containers
    ]
    annotations = {**bound.asking.annotations, **bound.annotations}
    metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "annotations": annotations, "labels": dict(bound.labels)},
        "spec": {"nodeName": NODE, "schedulerName": "koord-scheduler", "containers": containers},
        "status": {"phase": "Pending"},
    }

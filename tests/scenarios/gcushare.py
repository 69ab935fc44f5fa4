"""GCUShare's scheduler beside one node: it binds pods as the real one did, and reads what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from agent.scheduler_api.quantities import whole
from agent.schedulers.gcushare.pod_records import RECORDS
from agent.testing.node_kubelet import Container, Pod
from agent.testing.simapi import SimApiServer

from .enflame import DRS, GCU, SHARED, Enflame
from .node import PATIENCE, Node
from .process import AgentProcess

__all__ = ["ASSIGNED", "DOCUMENT_002", "RECORDS", "SCENES", "GCUShare", "Shown", "first", "fourth", "offered"]

SCHEDULER = "gcushare-scheduler"
ASSIGNED = "enflame.com/gcu-assigned"
CAPACITY = "enflame.com/gcu-shared-capacity"
#: When the manual's third pod was bound, in nanoseconds; later ones count on from there.
TIME = 1662453232515055293
#: Units of memory of the manual's pods, and the minor of the card that each got on eight of 16 GB.
DOCUMENT_002 = {"gcushare-pod-1": (4, 0), "gcushare-pod-2": (8, 0), "gcushare-pod-3": (12, 1)}
_RECORDED = Path(__file__).parents[1] / "schedulers" / "gcushare" / "recorded_gcushare.json"


@dataclass(frozen=True)
class Shown:
    """A pod of a scene that was recorded of the real scheduler; without annotations it was refused."""

    name: str
    #: Container to its limits.
    limits: Mapping[str, Mapping[str, int]]
    annotations: Mapping[str, str]

    @property
    def pod(self) -> Pod:
        return Pod(self.name, tuple(Container(dict(its), name) for name, its in self.limits.items()))

    @property
    def asking(self) -> list[str]:
        return [name for name, its in self.limits.items() if its]

    @property
    def minor(self) -> str:
        return self.annotations["enflame.com/gcu-assigned-minor"]


def _scenes() -> Iterator[tuple[str, Sequence[Shown]]]:
    for scene in json.loads(_RECORDED.read_text())["scenes"]:
        yield scene["scene"], tuple(map(_shown, scene["pods"]))


def _shown(said: Mapping[str, Any]) -> Shown:
    counts = {
        it["name"]: {key: n for key, text in it["limits"].items() if "/" in key and (n := whole(text))}
        for it in said["containers"]
    }
    return Shown(said["pod"], counts, said["annotations"])


SCENES: Mapping[str, Sequence[Shown]] = dict(_scenes())


def offered(count: int, slices: int = 6) -> dict[str, int]:
    """What the kubelet counts of so many cards in the later dialects."""
    return {GCU: count, SHARED: count * slices, DRS: count * 6}


def first(minor: int, total: int, at: int = 0) -> dict[str, str]:
    """What the first generation's scheduler writes on a pod that it puts on a card of 16 GB."""
    return {
        "enflame.com/gcu-device-assign-time": str(TIME + at),
        "enflame.com/gcu-device-assigned": "false",
        "enflame.com/gcu-device-id": str(minor),
        "enflame.com/gcu-device-memory": "16",
        "enflame.com/gcu-device-memory-request": str(total),
    }


def fourth(minor: int, total: int, at: int = 0, **profiles: str) -> dict[str, str]:
    """What the fourth generation's writes; of slices of the hardware with each container's PROFILE:NUMBER."""
    said = {
        ASSIGNED: "false",
        f"{ASSIGNED}-minor": str(minor),
        f"{ASSIGNED}-time": str(TIME + at),
        "enflame.com/gcu-request-size": str(total),
    }
    if profiles:
        its = {name: it.split(":") for name, it in profiles.items()}
        known = {
            name: {"allocated": False, "request": int(it[0]), "profileID": number, "profileName": it}
            for name, (it, number) in its.items()
        }
        said |= {f"{ASSIGNED}-index": str(minor), RECORDS: json.dumps(known, separators=(",", ":"))}
    return said


def registered(resource: Mapping[str, Any]) -> bool:
    """Whether the kubelet has it from the agent, as the agent shows it."""
    return bool(resource["session"] == "registered")


@dataclass
class GCUShare:
    """`enflame`: the cards of the node."""

    api: SimApiServer
    node: Node
    process: AgentProcess
    enflame: Enflame

    async def starts(self, dialect: str, offered: Mapping[str, int], **settings: Any) -> None:
        """Start the agent; wait until it follows the pods and the kubelet counts so much, and all else."""
        self.enflame.dialect, self.enflame.more = dialect, settings
        self.node.configure()
        await self.begins()
        await self.node.counts({name: (count, count) for name, count in offered.items()})
        told = await self.process.until(lambda it: all(map(registered, it["resources"])))
        await self.node.counts({it["name"]: (it["capacity"], it["allocatable"]) for it in told["resources"]})

    async def begins(self) -> None:
        await self.process.start()
        await self.process.until(lambda it: it["ready"] and it["apiServer"] and it["apiServer"]["synced"])

    def binds(self, pod: Pod, said: Mapping[str, str], scheduler: str = SCHEDULER) -> Pod:
        """Show the pod as it is once a scheduler bound it."""
        its: dict[bool, list[Any]] = {True: [], False: []}
        for it in pod.containers:
            limits = {name: str(count) for name, count in it.limits.items()}
            restarts = {"restartPolicy": "Always"} if it.restartable else {}
            its[it.init].append(
                {"name": it.name, "image": "none", "resources": {"limits": limits}, **restarts}
            )
        spec = {"nodeName": "node", "schedulerName": scheduler, "containers": its[False]}
        metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        self.api.put_object(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**metadata, "annotations": dict(said)},
                "spec": spec | ({"initContainers": its[True]} if its[True] else {}),
                "status": {"phase": "Pending"},
            }
        )
        return pod

    async def ends(self, pod: Pod) -> None:
        await self.node.kubelet.delete(pod.uid)
        self.api.delete_object("Pod", pod.name, pod.namespace)

    def read(self, pod: Pod) -> Mapping[str, str]:
        """What stands on the pod."""
        found = self.api.find("Pod", pod.name, pod.namespace)
        assert found is not None
        its: Mapping[str, str] = found["metadata"]["annotations"]
        return its

    async def reads(self, pod: Pod, key: str, text: str) -> None:
        """Wait until the pod says so."""
        with anyio.fail_after(PATIENCE):
            await self.api.wait(lambda _: self.read(pod).get(key) == text)

    async def slices(self, minors: Mapping[str, int]) -> None:
        """Wait until the Node says that its cards, by their numbers, have so many slices to share."""

        def told() -> Mapping[str, int]:
            node = self.api.find("Node", "node")
            assert node is not None
            found: Mapping[str, int] = json.loads(node["metadata"].get("annotations", {}).get(CAPACITY, "{}"))
            return found

        with anyio.fail_after(PATIENCE):
            await self.api.wait(lambda _: told() == minors)

    async def is_told(self, pod: Pod, key: str = ASSIGNED) -> None:
        """Admit the pod and wait for its receipt: what is owed to pods of before is then written, too."""
        await self.node.admit_pod(pod)
        await self.reads(pod, key, "true")

    async def is_told_again(self, pod: Pod) -> None:
        """Undo the receipt of the pod and wait for it: the same where no card has room for one more pod."""
        found = self.api.find("Pod", pod.name, pod.namespace)
        assert found is not None
        found["metadata"]["annotations"][ASSIGNED] = "false"
        self.api.put_object(found)
        await self.reads(pod, ASSIGNED, "true")

    async def records(self, pod: Pod, *containers: str) -> Mapping[str, Mapping[str, Any]]:
        """Wait until the pod says that all has been given out; the records of these, which are all."""
        await self.reads(pod, ASSIGNED, "true")
        found: Mapping[str, Mapping[str, Any]] = json.loads(self.read(pod)[RECORDS])
        assert found.keys() == {*containers}
        assert all(it["allocated"] for it in found.values())
        return found

    async def tells(self, pod: Pod, /, **words: str) -> None:
        """Wait until the record of the pod's main container has these."""

        def record() -> Mapping[str, Any]:
            its: Mapping[str, Mapping[str, Any]] = json.loads(self.read(pod)[RECORDS])
            return its["main"]

        with anyio.fail_after(PATIENCE):
            await self.api.wait(lambda _: record().items() >= words.items())

    async def is_on(self, pod: Pod, minor: int | str, *containers: str) -> None:
        """Fail unless each of these containers, or the only one, starts with this card and no other."""
        for name in containers or tuple(it.name for it in pod.containers):
            assert await self.node.cards_of(pod, name) == {self.enflame.named(str(minor))}, name

"""Who uses the cards, on a real node: containers are shown with what they use, and nothing else is."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from support.card_users import USER, card_user

from .api import Object
from .cluster import Cluster
from .release import Release
from .space import GPU, Space, pod
from .until import until

MIB = 1 << 20
#: Where the pods of these scenarios see the directory in which processes register with the stub.
REGISTRY = "/registry"
#: Each card twice, and a sample each second.
SHARED = {
    "version": "v1",
    "usage": {"interval": "1s"},
    "vendors": {"nvidia": {"resources": [{"name": GPU, "sharing": {"kind": "replicas", "replicas": 2}}]}},
}
VALUES = {
    "usage": {"enabled": True},
    "metrics": {"compat": ["dcgm", "hami", "gpu-manager"]},
    "config": {"map": {"shared": yaml.safe_dump(SHARED)}, "default": "shared"},
}
SERIES = re.compile(r"(?P<name>\w+)\{(?P<labels>.*)\}")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def registry(cluster: Cluster) -> Path:
    """The directory in which processes register with NVIDIA's stub."""
    found = Path(f"{cluster.cards.control}.processes")
    found.mkdir(exist_ok=True)
    return found


def user(cluster: Cluster, name: str, *memory: int) -> Object:
    """A pod with one card, whose container has a process for each of these MiB of the card."""
    claim = '"$NVIDIA_VISIBLE_DEVICES {} 25"'
    starts = [
        f"python3 -c {shlex.quote(USER)} {REGISTRY}/{name}-{number} {claim.format(it * MIB)} &"
        for number, it in enumerate(memory)
    ]
    script = "\n".join([*starts, 'echo "cards: $NVIDIA_VISIBLE_DEVICES"', "wait"])
    made = pod(name, script)
    made["spec"]["volumes"] = [
        {"name": "registry", "hostPath": {"path": str(registry(cluster)), "type": "Directory"}}
    ]
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "registry", "mountPath": REGISTRY}]
    return made


async def series(agent: Release, name: str, **labels: str) -> dict[tuple[str, ...], float]:
    """The values of one metric whose series have these labels, by the values of the other labels."""
    found = {}
    for sample, value in (await agent.metrics()).items():
        if (match := SERIES.fullmatch(sample)) and match["name"] == name:
            has = dict(LABEL.findall(match["labels"]))
            if labels.items() <= has.items():
                found[tuple(it for key, it in has.items() if key not in labels)] = value
    return found


async def used(agent: Release, space: Space) -> Mapping[str, float]:
    """MiB that the containers of the pods use, by the pod's name."""
    found = await series(agent, "xpu_container_memory_used_bytes", namespace=space.name, container="main")
    return {pod: value / MIB for (pod, *_), value in found.items()}


async def measured(cluster: Cluster) -> Release:
    """The agent with the measuring of use."""
    if not await cluster.agent.holds(VALUES):
        await cluster.agent.anew(VALUES)
    await cluster.offers(8)
    return cluster.agent


async def test_containers_that_use_a_card_are_shown_with_what_their_processes_use(
    cluster: Cluster, space: Space
) -> None:
    agent = await measured(cluster)
    await space.apply(user(cluster, "one", 300), user(cluster, "two", 100, 200), pod("idle"))
    await space.running(3)

    shown = {"one": 300.0, "two": 300.0, "idle": 0.0}
    await until(lambda: used(agent, space), lambda it: it == shown, "what the containers use")
    [card] = await space.cards("two")
    two = {"namespace": space.name, "pod": "two", "container": "main", "uuid": card, "resource": GPU}
    assert await series(agent, "xpu_container_processes", **two) == {(): 2.0}
    assert await series(agent, "xpu_container_utilization_ratio", **two) == {(): 0.5}
    assert [*(await series(agent, "vGPU_device_memory_usage_in_bytes", podname="two")).values()] == [
        300 * MIB
    ]
    top: dict[str, Any] = json.loads(await agent.run("xpu-agent", "top", "--once", "--json"))
    assert "Zombie processes" not in await agent.log(), "orphans go to the image's init, which is not PID 1"
    named = {it["pod"]: it for it in top["containers"] if it["namespace"] == space.name}
    assert named["two"]["memoryBytes"] == 300 * MIB
    assert {it["pod"] for it in top["processes"]} >= {"one", "two"}


async def test_a_pod_that_ends_loses_its_series_and_its_memory_is_of_nobody(
    cluster: Cluster, space: Space
) -> None:
    agent = await measured(cluster)
    await space.apply(user(cluster, "brief", 64), user(cluster, "other", 32))
    await space.running(2)
    await until(lambda: used(agent, space), lambda it: it.get("brief") == 64.0, "the use of the pod")

    await space.kubectl("delete", "pod", "brief")

    await until(lambda: used(agent, space), lambda it: it == {"other": 32.0}, "the series of the pod to end")


async def test_a_process_of_the_node_is_charged_to_no_container(cluster: Cluster, space: Space) -> None:
    agent = await measured(cluster)
    card = cluster.cards.uuid(3)
    with card_user(registry(cluster), f"{card} {50 * MIB} 10\n"):
        await until(
            lambda: series(agent, "xpu_unattributed_memory_bytes", uuid=card, kind="host"),
            lambda it: it == {(): 50.0 * MIB},
            "the memory of the node's process",
        )
        assert not await used(agent, space)


async def test_a_library_that_hangs_over_use_keeps_no_pod_from_its_card(
    cluster: Cluster, space: Space
) -> None:
    agent = await measured(cluster)
    cluster.cards.hang("nvmlDeviceGetComputeRunningProcesses_v3")
    try:
        await until(
            lambda: series(agent, "xpu_usage_up", vendor="nvidia"),
            lambda it: it == {(): 0.0},
            "the hang to show",
        )
        await space.apply(pod("one"))
        await space.running(1)
        assert (await agent.inspect())["ready"] is True
    finally:
        cluster.cards.clear("nvmlDeviceGetComputeRunningProcesses_v3")

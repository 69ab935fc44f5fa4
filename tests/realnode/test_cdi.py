"""Cards by CDI names: what containerd gives a container by our spec, and that a restart takes no agent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
import yaml

from .cards import LIBRARIES
from .cluster import Cluster
from .place import ROOT
from .release import CDI, Release
from .space import Space, pod
from .until import until

#: As docs/install.md has it for a node without NVIDIA's runtime.
EXAMPLE = yaml.safe_load((ROOT / "deploy/examples/nvidia-cdi/values.yaml").read_text())
#: How the kubelet and the runtime hear of the names.
STRATEGIES = ("cdi-annotations", "cdi-cri")
SPEC = CDI / "k8s.device-plugin.nvidia.com-gpu.json"
#: By this name programs open it; on the node it is a link.
LIBRARY = LIBRARIES / "libnvidia-ml.so.1"
#: Prints what the container was given, and fails once it is told to.
SHOW = f"""
for it in /dev/nvidia*; do echo "node $it $(stat --format=%t:%T $it)"; done
echo "library $(sha256sum <{LIBRARY})"
echo "variable $NVIDIA_VISIBLE_DEVICES"
echo shown
until [ -e /tmp/fail ]; do sleep 0.1; done
exit 1
"""


@dataclass(frozen=True)
class Given:
    """What a container has: device nodes with major:minor, the library's sum, what the variable says."""

    nodes: dict[str, str]
    library: str
    variable: str


def values(strategy: str) -> dict[str, Any]:
    """The example's, with this strategy."""
    config = yaml.safe_load(EXAMPLE["config"]["map"]["default"])
    config["flags"]["plugin"]["deviceListStrategy"] = [strategy]
    return {**EXAMPLE, "config": {"map": {strategy: yaml.safe_dump(config)}, "default": strategy}}


async def by_cdi(cluster: Cluster, strategy: str) -> Release:
    """The agent with this strategy."""
    if not await cluster.agent.holds(values(strategy)):
        await cluster.agent.anew(values(strategy))
    await cluster.offers(4)
    return cluster.agent


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_container_has_the_nodes_of_its_card_and_the_library_whatever_it_asks_for_by_itself(
    cluster: Cluster, space: Space, strategy: str
) -> None:
    agent = await by_cdi(cluster, strategy)
    greedy = pod("greedy", SHOW)
    greedy["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    await space.apply(pod("one", SHOW), greedy)

    await space.running(2)
    spec = json.loads(SPEC.read_text())
    held = {name: (await allocation(agent, space, name))["devices"] for name in ("one", "greedy")}
    assert held["one"] != held["greedy"]
    for name, cards in held.items():
        given = await shown(space, name)
        assert given.nodes == dict.fromkeys(nodes(spec, cards), "1:3"), "null's, as all nodes of this node"
        assert given.library == sha256(LIBRARY.read_bytes()).hexdigest()
        assert given.variable == "void"


async def test_a_container_starts_anew_with_its_card_while_there_is_no_agent(
    cluster: Cluster, space: Space
) -> None:
    agent = await by_cdi(cluster, "cdi-cri")
    await space.apply(pod("one", SHOW, restartPolicy="Always"))
    await space.running(1)
    given = await shown(space, "one")
    before = await allocation(agent, space, "one")

    await agent.uninstall()
    await cluster.offers(0)
    await space.kubectl("exec", "one", "--", "touch", "/tmp/fail")
    await until(
        lambda: starts(space, "one"), lambda it: it == 2, "the container to start for the second time"
    )
    assert await shown(space, "one") == given

    await agent.hold(values("cdi-cri"))
    await cluster.offers(4)
    assert await allocation(agent, space, "one") == before


def nodes(spec: dict[str, Any], cards: list[str]) -> set[str]:
    """The paths of the device nodes that the spec has for these cards: theirs, and those of all."""
    edits = [it["containerEdits"] for it in spec["devices"] if it["name"] in cards]
    assert len(edits) == len(cards)
    return {node["path"] for each in (*edits, spec["containerEdits"]) for node in each["deviceNodes"]}


async def shown(space: Space, name: str) -> Given:
    """Wait until the pod's container has printed what it has."""
    log = await until(lambda: space.log(name), lambda it: "shown\n" in it, f"{name} to print what it has")
    lines = [line.split() for line in log.splitlines()]
    [library] = [words[1] for words in lines if words[0] == "library"]
    [variable] = [words[1] for words in lines if words[0] == "variable"]
    return Given({words[1]: words[2] for words in lines if words[0] == "node"}, library, variable)


async def allocation(agent: Release, space: Space, pod: str) -> dict[str, Any]:
    """Wait until the agent knows whose the pod's allocation is: its id, devices and owner."""

    async def owned() -> list[dict[str, Any]]:
        told = json.loads(await agent.run("xpu-agent", "inspect", "--json"))["allocations"]
        return [it for it in told if it["owner"] and is_his(it["owner"])]

    def is_his(owner: dict[str, str]) -> bool:
        return (owner["namespace"], owner["pod"], owner["container"]) == (space.name, pod, "main")

    [found] = await until(owned, lambda it: len(it) == 1, f"the allocation of {pod}")
    return {key: found[key] for key in ("id", "devices", "owner", "state")}


async def starts(space: Space, name: str) -> int:
    """How often the pod's container was started, where it runs now."""
    [status] = (await space.pods(name))[0]["status"]["containerStatuses"]
    return int(status["restartCount"]) + 1 if "running" in status["state"] else 0

"""Document 003's traps, and those of NVIDIA's variable: what a pod sees, and who says what is wrong.

One installation for all of them: the Node's label names the config that a trap needs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from .api import Object
from .cluster import Cluster
from .release import NAMESPACE
from .space import GPU, Space, pod
from .test_sharing import CONFIG
from .until import until

SHARED = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
TWICE = f"version: v1\n{SHARED}"
#: The config of each name; `default` holds without a label. All share cards in the same way: what a gone pod
#: held is held for a while, and could not be given out in another way.
CONFIGS = {
    "default": TWICE,
    "twice": TWICE,
    "one-each": TWICE.replace("timeSlicing: {", "timeSlicing: {failRequestsGreaterThanOne: true, "),
    "specs": f"{TWICE}flags: {{plugin: {{passDeviceSpecs: true}}}}\n",
    "misspelled": "version: v1\nvendors: {nvidia: {resorces: [{name: nvidia.com/gpu}]}}\n",
    "ignored": TWICE.replace("replicas: 2}", "replicas: 2, replcas: 9}"),
}
VALUES = {"config": {"map": CONFIGS}}
MISSPELLED = "misspelled"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
#: Prints the variable, and the cards whose device nodes the container has and can open.
PRINT_NODES = (
    'echo "cards: $NVIDIA_VISIBLE_DEVICES"; '
    "for it in /dev/nvidia[0-9]*; do (: <$it) 2>/dev/null && echo node $it; done; "
    "echo end; exec sleep infinity"
)

Choose = Callable[[str], Awaitable[None]]


@pytest.fixture
async def choose(cluster: Cluster) -> AsyncIterator[Choose]:
    """Have the agent take the config of this name, by the Node's label; without a name there is none."""
    if not await cluster.agent.holds(VALUES):
        await cluster.agent.anew(VALUES)
    await cluster.offers(8)
    labelled = False

    async def chosen(name: str) -> None:
        nonlocal labelled
        labelled = True
        await cluster.label(f"{CONFIG}={name}")
        await in_force(cluster, name)

    await in_force(cluster, "default")
    yield chosen
    if labelled:
        await cluster.label(f"{CONFIG}-")
        await in_force(cluster, "default")


async def in_force(cluster: Cluster, name: str) -> None:
    await until(
        lambda: config(cluster),
        lambda it: Path(it["source"]).name == name and not it["error"],
        f"the config {name} to be in force",
    )


async def config(cluster: Cluster) -> dict[str, str]:
    """What the running agent says of its config."""
    told = (await cluster.agent.inspect())["config"]
    assert isinstance(told, dict)
    return told


async def findings(cluster: Cluster, check: str) -> list[Object]:
    """What the doctor finds in the agent's own pod."""
    told = json.loads(await cluster.agent.run("sh", "-c", "xpu-agent doctor --json || [ $? = 1 ]"))
    return [it for it in told["findings"] if it["check"] == check]


def with_variable(made: Object, value: str) -> Object:
    """The pod, with the variable in its own spec."""
    made["spec"]["containers"][0]["env"] = [{"name": VARIABLE, "value": value}]
    return made


def privileged(made: Object) -> Object:
    made["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    return made


async def nodes(space: Space, name: str) -> set[str]:
    """The device nodes that PRINT_NODES told of."""

    async def told() -> list[str]:
        return (await space.log(name)).splitlines()

    lines = await until(told, lambda it: "end" in it, f"the log of {name} to tell its device nodes")
    return {it.removeprefix("node ") for it in lines if it.startswith("node ")}


ALL = {f"/dev/nvidia{index}" for index in range(4)}


async def test_a_variable_in_the_pod_wins_over_its_card_and_the_doctor_names_the_pod(
    cluster: Cluster, choose: Choose, space: Space
) -> None:
    await space.apply(with_variable(pod("asks"), "all"), with_variable(pod("goes-around", cards=0), "all"))

    await space.running(2)
    assert [await space.cards(it) for it in ("asks", "goes-around")] == [["all"], ["all"]]
    found = [it for it in await findings(cluster, "pods-around") if space.name in it["what"]]
    assert {it["ailment"] for it in found} == {"pod-chooses-devices"}
    assert sorted(it["what"] for it in found) == [
        f"{space.name}/asks, container main asks for {GPU} and sets {VARIABLE}=all",
        f"{space.name}/goes-around, container main asks for no device and sets {VARIABLE}=all",
    ]


async def test_a_privileged_container_sees_all_cards_and_the_doctor_names_its_pod(
    cluster: Cluster, choose: Choose, space: Space
) -> None:
    await space.apply(privileged(pod("mighty", PRINT_NODES)))

    await space.running(1)
    assert await nodes(space, "mighty") == ALL
    assert len(await space.cards("mighty")) == 1, "it was given one"
    [found] = [it for it in await findings(cluster, "pods-around") if space.name in it["what"]]
    assert found["ailment"] == "pod-privileged"
    assert f"{space.name}/mighty, container main" in found["what"]


async def test_the_variable_alone_is_text_and_device_specs_are_cards_without_nvidia_s_runtime(
    cluster: Cluster, choose: Choose, space: Space
) -> None:
    await space.apply(pod("text", PRINT_NODES))
    await space.running(1)
    await choose("specs")
    await space.apply(pod("specs", PRINT_NODES))
    await space.running(2)

    assert await nodes(space, "text") == set()
    [card] = await space.cards("specs")
    assert await nodes(space, "specs") == {node_of(cluster, card)}


def node_of(cluster: Cluster, card: str) -> str:
    return f"/dev/nvidia{[cluster.cards.uuid(it) for it in range(4)].index(card)}"


async def test_replicas_of_one_card_for_one_pod_name_it_once(
    cluster: Cluster, choose: Choose, space: Space
) -> None:
    await space.apply(pod("six", cards=6))

    await space.running(1)
    cards = await space.cards("six")
    assert sorted(cards) == [cluster.cards.uuid(index) for index in range(4)]


async def test_more_than_one_replica_is_refused_with_the_reason_on_the_pod(
    cluster: Cluster, choose: Choose, space: Space
) -> None:
    await choose("one-each")
    await cluster.offers(8)
    reason = "maximum request size for shared resources is 1; found 2"

    await space.apply(pod("greedy", cards=2), pod("modest"))

    await space.running(1, "modest")
    refused = await until(
        lambda: space.pods("greedy"), lambda it: it[0]["status"]["phase"] == "Failed", "the pod to be refused"
    )
    assert refused[0]["status"]["reason"] == "UnexpectedAdmissionError"
    assert reason in refused[0]["status"]["message"]
    [found] = [it for it in await findings(cluster, "pods-refused") if space.name in it["what"]]
    assert found["ailment"] == "pod-refused"
    assert reason in found["what"]
    assert found["remedy"] == f"ask for one; then kubectl -n {space.name} delete pod greedy"
    await until(
        lambda: space.events("greedy"),
        lambda it: [e["message"] for e in it if e["reason"] == "AllocateRefused" and reason in e["message"]],
        "an Event of ours on the pod",
    )


async def test_a_misspelled_key_keeps_the_last_good_config_and_is_named(
    cluster: Cluster, choose: Choose, space: Space
) -> None:
    await choose("twice")

    await cluster.label(f"{CONFIG}={MISSPELLED}")

    refused = await until(lambda: config(cluster), lambda it: it["error"], "the config to be refused")
    assert "resorces" in refused["error"]
    assert "resources" in refused["error"], "the nearest key"
    assert Path(refused["source"]).name == "twice"
    await until(lambda: told_of_node(cluster), lambda it: "resorces" in it, "an Event on the Node")
    assert "resorces" in str(await findings(cluster, "config"))
    await space.apply(pod("served"))
    await space.running(1)
    assert await cluster.allocatable() == 8


async def test_a_key_that_is_not_nvidia_s_is_ignored_and_told(cluster: Cluster, choose: Choose) -> None:
    await choose("ignored")

    await until(cluster.agent.log, lambda it: "replcas" in it, "the log to name the key")


async def test_a_config_that_is_not_there_leaves_the_last_one_and_tells_the_names(
    cluster: Cluster, choose: Choose
) -> None:
    await choose("twice")
    await cluster.offers(8)
    before = await cluster.agent.pod()

    await cluster.label(f"{CONFIG}=nowhere")

    refused = await until(lambda: config(cluster), lambda it: it["error"], "the config to be refused")
    assert "nowhere" in refused["error"]
    assert all(name in refused["error"] for name in CONFIGS)
    assert await cluster.allocatable() == 8
    after = await cluster.agent.pod()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_an_edit_of_the_config_map_is_taken_in_and_a_bad_one_is_not(
    cluster: Cluster, choose: Choose
) -> None:
    try:
        await edit(cluster, "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu}]}}\n")
        refused = await until(lambda: config(cluster), lambda it: it["error"], "the edit to be refused")
        assert "no replicas specified" in refused["error"]
        assert await cluster.allocatable() == 8

        await edit(cluster, TWICE.replace("replicas: 2", "replicas: 3"))
        await cluster.offers(12)
    finally:
        await edit(cluster, CONFIGS["default"])
    await cluster.offers(8)


async def edit(cluster: Cluster, text: str) -> None:
    """What `kubectl edit configmap` does to the file `default`."""
    patch = json.dumps({"data": {"default": text}})
    await cluster.api.kubectl("patch", "configmap", "xpu-agent-config", f"-n={NAMESPACE}", f"-p={patch}")


async def told_of_node(cluster: Cluster) -> str:
    """The newest words of ConfigRefused."""
    events = await cluster.api.items("/apis/events.k8s.io/v1/events")
    return " ".join(it["note"] for it in events if it["reason"] == "ConfigRefused")


async def test_a_sick_card_takes_all_its_replicas_with_it(cluster: Cluster, choose: Choose) -> None:
    cluster.cards.lose(1)
    try:
        await cluster.offers(6)
    finally:
        cluster.cards.restore(1)
        await cluster.agent.run("xpu-agent", "health", "clear", cluster.cards.uuid(1))
    await cluster.offers(8)

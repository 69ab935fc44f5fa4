"""Leaving: pods keep their cards, and nothing of the agent is left on node or server but what is said."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from peers.nodefeatures import node_features

from agent.state.last_config_file import NAME as LAST_CONFIG
from agent.state.uninstall_record import NAME as REMAINS
from agent.state.uninstall_record import UninstallRecord

from .api import Object
from .cluster import Cluster
from .kubelet import DIRECTORY
from .place import ROOT
from .release import CDI, FEATURES, NAME, NAMESPACE, STATE, HelmFailed, Release
from .space import Space, pod
from .test_cdi import SPEC
from .test_cdi import values as by_cdi
from .until import until

PLUGINS = DIRECTORY / "device-plugins"
NODE_FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/nodefeatures"
#: All kinds of the chart, of hooks, and of what controllers make for them.
NAMESPACED = "daemonsets,jobs,pods,controllerrevisions,configmaps,secrets,serviceaccounts,roles,rolebindings"
CLUSTER = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
#: What a namespace has that nobody put there, and the Events.
EVERYWHERE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
#: Keys that the agent writes to its Node.
OURS = ("nvidia.com/", "xpu-agent.io/")
HOOK = {"uninstall": {"hook": True}}


@pytest.fixture
async def nfd(cluster: Cluster) -> AsyncIterator[None]:
    """The API server knows NodeFeature objects."""
    await cluster.api.apply(node_features({"type": "object", "x-kubernetes-preserve-unknown-fields": True}))
    crd = "crd/nodefeatures.nfd.k8s-sigs.io"
    await cluster.api.kubectl("wait", crd, "--for=condition=Established")
    yield
    await cluster.api.kubectl("delete", crd)


async def installed(cluster: Cluster, output: str, more: dict[str, Any]) -> Release:
    """The agent with CDI specs and labels by this output, and all that it leaves is there."""
    await cluster.agent.anew({**by_cdi("cdi-cri"), "labels": {"output": output}, **more})
    await cluster.offers(4)
    await until(lambda: told(cluster, output), bool, f"labels by {output}")
    assert SPEC.exists()
    assert [*PLUGINS.glob("xpu-*.sock")]
    return cluster.agent


async def told(cluster: Cluster, output: str) -> bool:
    """Whether the node's labels are told so."""
    match output:
        case "file":
            return (FEATURES / "xpu-agent").exists()
        case "node":
            return ours(await cluster.node()) != set()
    return bool(await cluster.api.items(NODE_FEATURES))


def ours(node: Object) -> set[str]:
    """Labels and annotations of the Node that are the agent's."""
    metadata = node["metadata"]
    return {key for key in (*metadata["labels"], *metadata.get("annotations", {})) if key.startswith(OURS)}


async def holders(space: Space) -> dict[str, str]:
    """Two pods that hold cards, and their containers."""
    await space.apply(pod("one"), pod("two"))
    await space.running(2)
    return await containers(space)


async def containers(space: Space) -> dict[str, str]:
    """Of the pods that run: the container of each, started once."""
    found = {}
    for it in await space.pods():
        [status] = it["status"]["containerStatuses"]
        if "running" in status["state"] and status["restartCount"] == 0:
            found[it["metadata"]["name"]] = status["containerID"]
    return found


async def left_on_server(cluster: Cluster) -> set[str]:
    """What the chart made and has not removed, and all that is in its namespace."""
    labelled = f"--selector=app.kubernetes.io/instance={NAME}"
    everywhere = await cluster.api.kubectl("get", CLUSTER, labelled, "--output=name")
    here = await cluster.api.kubectl("get", NAMESPACED, f"--namespace={NAMESPACE}", "--output=name")
    return {*everywhere.split(), *here.split()} - EVERYWHERE


def left_on_node() -> set[str]:
    """What the agent might have left where it writes, but for checkpoint and logs."""
    state = {it for it in STATE.iterdir() if not it.name.startswith(("checkpoint.json", "xpu-agent.log"))}
    plugins = {it for it in PLUGINS.iterdir() if it.name.startswith(("xpu-", ".xpu-"))}
    return {str(it) for it in (*state, *plugins, *CDI.iterdir(), *FEATURES.iterdir())}


async def clean(cluster: Cluster) -> None:
    """Nothing is left on the node but checkpoint and logs, nor at the API server."""
    assert left_on_node() == set()
    assert (STATE / "checkpoint.json").exists()
    assert ours(await cluster.node()) == set()
    await until(lambda: left_on_server(cluster), lambda it: it == set(), "the server to have nothing of ours")
    await cluster.offers(0)


@pytest.mark.parametrize("output", ["node", pytest.param("nodeFeature", marks=pytest.mark.long)])
@pytest.mark.usefixtures("nfd")
async def test_the_hook_leaves_the_pods_their_cards_and_nothing_else_when_helm_is_done(
    cluster: Cluster, space: Space, output: str
) -> None:
    agent = await installed(cluster, output, HOOK)
    held = await holders(space)

    await agent.helm("uninstall", NAME)

    # Helm has waited, so that it is all gone by now.
    assert left_on_node() == set()
    assert not await told(cluster, output)
    await clean(cluster)
    assert await containers(space) == held


@pytest.mark.long
async def test_labels_that_went_by_file_leave_no_file_when_they_go_another_way(cluster: Cluster) -> None:
    agent = await installed(cluster, "file", HOOK)

    await agent.hold({**by_cdi("cdi-cri"), "labels": {"output": "node"}, **HOOK})

    await until(lambda: told(cluster, "file"), lambda it: not it, "the file to go")
    await until(lambda: told(cluster, "node"), bool, "labels on the Node")
    await agent.helm("uninstall", NAME)
    await clean(cluster)


@pytest.mark.long
async def test_an_agent_that_has_its_places_elsewhere_leaves_nothing_there(cluster: Cluster) -> None:
    state, cdi, features = (Path(it) for it in ("/var/lib/elsewhere/xpu", "/etc/cdi", "/opt/nfd/features.d"))
    places = {"stateDir": str(state), "cdi": {"dir": str(cdi)}, "labels": {"directory": str(features)}}
    await cluster.agent.anew({**by_cdi("cdi-cri"), **places, **HOOK})
    await cluster.offers(4)
    await until(anyio.Path(features / "xpu-agent").exists, bool, "the file of labels")
    assert (cdi / SPEC.name).exists()
    listed = {cdi / SPEC.name, features / "xpu-agent"}
    assert set(UninstallRecord(state / REMAINS).all()) == listed, "as they are called on the host"

    await cluster.agent.helm("uninstall", NAME)

    assert {it.name for it in state.iterdir()} == {"checkpoint.json"}
    assert [it for it in listed if it.exists()] == []
    await until(lambda: left_on_server(cluster), lambda it: it == set(), "the server to have nothing of ours")


@pytest.mark.long
async def test_a_node_that_can_not_be_cleaned_fails_the_uninstall_and_is_told(cluster: Cluster) -> None:
    agent = await installed(cluster, "file", {"uninstall": {"hook": True, "seconds": 10}})
    in_the_way = CDI / "no-file"
    os.mkdir(in_the_way)  # not even root unlinks a directory
    UninstallRecord(STATE / REMAINS).note(in_the_way)

    with pytest.raises(HelmFailed, match=f"{NAME}-uninstall-nvidia: done on 0 of 1 nodes"):
        await agent.helm("uninstall", NAME)

    kept = {in_the_way, STATE / REMAINS, STATE / LAST_CONFIG, STATE / "agent.lock"}
    assert left_on_node() == {str(it) for it in kept}, "the next try needs the list"
    os.rmdir(in_the_way)
    for command in by_hand():
        await cluster.api.kubectl(*command)
    await clean(cluster)


def by_hand() -> list[list[str]]:
    """The arguments of each kubectl that docs/install.md says to remove it by hand with."""
    page = (ROOT / "docs/install.md").read_text()
    _, _, after = page.partition("By hand:\n")
    block = after.split("```")[1]
    commands = [shlex.split(line.removeprefix("$ ")) for line in block.splitlines() if line.startswith("$ ")]
    assert {command[0] for command in commands} == {"kubectl"}
    return [command[1:] for command in commands]


@pytest.mark.long
async def test_by_hand_as_the_docs_say_nothing_is_left_and_pods_keep_their_cards(
    cluster: Cluster, space: Space
) -> None:
    agent = await installed(cluster, "file", {})
    held = await holders(space)

    await agent.uninstall()
    assert SPEC.exists(), "a container that starts anew needs it"
    assert await told(cluster, "file")
    assert await containers(space) == held
    for command in by_hand():
        await cluster.api.kubectl(*command)

    await clean(cluster)
    assert await containers(space) == held

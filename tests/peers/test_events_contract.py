"""The real API server takes our Events, and kubectl shows them where people look."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs
from support.waiting import eventually

from agent.cluster.api_client import open_api
from agent.cluster.credentials import find
from agent.cluster.event_correlation import BURST
from agent.cluster.event_writer import NOTE, Events
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.event_notices import ACTIONS, Notice, PodRef

from .apiserver import RealApiServer

PATIENCE = 30.0
SICK = Notice("DeviceUnhealthy", "acme card GPU-0 is unhealthy: xid-79: fell off the bus")


@pytest.fixture
async def namespace(api_server: RealApiServer) -> str:
    """A namespace of the test's own, in which pods can be made."""
    name = f"test-{secrets.token_hex(4)}"
    await api_server.kubectl("create", "namespace", name)
    await api_server.kubectl("create", "serviceaccount", "default", "--namespace", name)
    return name


@pytest.fixture
def node() -> str:
    """The name of a node of the test's own."""
    return f"node-{secrets.token_hex(4)}"


@asynccontextmanager
async def telling(
    server: RealApiServer, directory: Path, node: str, token: str | None = None
) -> AsyncIterator[Events]:
    access = find(server.kubeconfig(directory / secrets.token_hex(4), token), {})
    assert access is not None
    api = await open_api(access)
    events = Events(node, pauses=Pauses(0.01, 0.1))
    task = asyncio.create_task(events.run(api, Cell(0)))
    try:
        yield events
    finally:
        task.cancel()
        await asyncio.wait([task])
        await api.close()


async def written(events: Events, *notices: Notice) -> None:
    """Tell these one after the other; each must come through."""
    for number, it in enumerate(notices, events.counts["sent"] + 1):
        events.add(it)
        await eventually(lambda wanted=number: events.counts["sent"] + events.counts["refused"] >= wanted)  # type: ignore[misc]
        assert not events.counts["refused"]


async def events_on(server: RealApiServer, namespace: str, name: str) -> list[dict[str, Any]]:
    """The Events on an object, as the old API shows them to kubectl."""
    found = await server.kubectl(
        *("get", "events", "--namespace", namespace, "--output", "json"),
        *("--field-selector", f"involvedObject.name={name},reportingComponent=xpu-agent.io/agent"),
    )
    its: list[dict[str, Any]] = json.loads(found)["items"]
    return sorted(its, key=lambda it: (it["eventTime"], it["message"]))


async def test_every_reason_is_taken_on_a_node_and_on_a_pod(
    api_server: RealApiServer, namespace: str, node: str, tmp_path: Path
) -> None:
    about_node = [Notice(reason, f"{reason} on the node") for reason in ACTIONS]
    about_pod = [Notice(it, f"{it} on the pod", "Normal", PodRef(namespace, "web", "u-1")) for it in ACTIONS]

    for first in range(0, len(ACTIONS), BURST):  # of one object an agent writes no more at once
        those = slice(first, first + BURST)
        async with telling(api_server, tmp_path, node) as events:
            await written(events, *about_node[those], *about_pod[those])

    on_node = await events_on(api_server, "default", node)
    on_pod = await events_on(api_server, namespace, "web")
    assert [(it["reason"], it["action"], it["type"]) for it in on_node] == [
        (reason, action, "Warning") for reason, action in ACTIONS.items()
    ]
    assert [it["message"] for it in on_pod] == [it.message for it in about_pod]


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "\x00\x1b[31m\u202e" * 500, "\ud800" * 500])
async def test_the_longest_and_strangest_words_are_taken(
    api_server: RealApiServer, namespace: str, node: str, tmp_path: Path, text: str
) -> None:
    pod = PodRef(namespace, "p" * 253, "u" * 128)

    async with telling(api_server, tmp_path, f"{node}." + "n" * (252 - len(node))) as events:
        await written(
            events, structs.replace(SICK, message=text), structs.replace(SICK, message=text, pod=pod)
        )

    (found,) = await events_on(api_server, namespace, pod.name)
    assert NOTE - 12 <= len(found["message"].encode()) <= NOTE


async def test_a_series_is_counted_and_made_anew_once_its_event_is_gone(
    api_server: RealApiServer, node: str, tmp_path: Path
) -> None:
    async with telling(api_server, tmp_path, node) as events:
        await written(events, SICK, SICK, SICK)
        (found,) = await events_on(api_server, "default", node)
        assert found["series"]["count"] == 3
        await api_server.kubectl("delete", "event", found["metadata"]["name"], "--namespace", "default")
        await written(events, SICK)

    (anew,) = await events_on(api_server, "default", node)
    assert anew["series"]["count"] == 4
    assert anew["eventTime"] == found["eventTime"]


async def test_kubectl_describe_shows_them_on_the_node_and_on_the_pod(
    api_server: RealApiServer, namespace: str, node: str, tmp_path: Path
) -> None:
    await api_server.kubectl("create", "-f", "-", stdin=json.dumps(a_node(node)))
    await api_server.kubectl("create", "--namespace", namespace, "-f", "-", stdin=json.dumps(a_pod()))
    where = ("--namespace", namespace)
    uid = await api_server.kubectl("get", "pod", "web", *where, "--output", "jsonpath={.metadata.uid}")
    refused = Notice("AllocateRefused", "no such device", pod=PodRef(namespace, "web", uid))

    async with telling(api_server, tmp_path, node) as events:
        await written(events, SICK, refused)

    assert SICK.message in await api_server.kubectl("describe", "node", node)
    assert "AllocateRefused" in await api_server.kubectl("describe", "pod", "web", *where)


async def test_a_namespace_that_is_not_there_or_ends_is_no_trouble(
    api_server: RealApiServer, namespace: str, node: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await api_server.kubectl("delete", "namespace", namespace, "--wait=false")
    capsys.readouterr()

    async with telling(api_server, tmp_path, node) as events:
        events.add(structs.replace(SICK, pod=PodRef(f"no-{namespace}", "web")))
        events.add(structs.replace(SICK, pod=PodRef(namespace, "web")))
        await eventually(lambda: events.counts["refused"] + events.counts["sent"] == 2)

    assert events.counts == {"refused": 2}
    assert "event refused" not in capsys.readouterr().out


async def test_create_and_patch_are_all_the_rights_that_events_need(
    api_server: RealApiServer, node: str, tmp_path: Path
) -> None:
    token = api_server.token_for("agent")
    async with telling(api_server, tmp_path, node, token) as events:
        events.add(SICK)
        await eventually(lambda: events.counts["refused"] == 1)

        name = f"events-{node}"
        rights = ("--verb=create,patch", "--resource=events.events.k8s.io")
        await api_server.kubectl("create", "clusterrole", name, *rights)
        await api_server.kubectl(
            "create", "clusterrolebinding", name, f"--clusterrole={name}", "--user=agent"
        )
        try:
            told = 1
            with anyio.fail_after(PATIENCE):
                while not events.counts["sent"]:  # a new right counts some time after it was given
                    events.add(structs.replace(SICK, pod=PodRef("default", secrets.token_hex(4))))
                    told += 1
                    await eventually(lambda wanted=told: sum(events.counts.values()) >= wanted)  # type: ignore[misc]
            events.counts.clear()
            again = structs.replace(SICK, reason="VendorFailed")
            await written(events, again, again)
        finally:
            await api_server.kubectl("delete", "clusterrolebinding", name)
            await api_server.kubectl("delete", "clusterrole", name)


def a_node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def a_pod() -> dict[str, Any]:
    containers = [{"name": "main", "image": "localhost/none"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": containers},
    }

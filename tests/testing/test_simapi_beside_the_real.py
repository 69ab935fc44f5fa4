"""The same scenarios with the simulated and the real API server: both must answer the same."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from peers.apiserver import RealApiServer, built_cluster

from agent.testing.simapi import Resource, SimApiServer

from .apiclient import JSON_PATCH, LEASES, MERGE, NODES, STRATEGIC, Client, Reply, Stream, lease, node

Told = list[Any]
Scenario = Callable[[Client], Awaitable[Told]]

#: A custom resource of one group, with its CRD: the scenarios about CRs use it on both.
CR = Resource("xpu.example.com", "v1", "boxes", "Box", namespaced=False, custom=True, status=True)
BOXES = "/apis/xpu.example.com/v1/boxes"
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "boxes.xpu.example.com"},
    "spec": {
        "group": "xpu.example.com",
        "scope": "Cluster",
        "names": {"plural": "boxes", "singular": "box", "kind": "Box", "listKind": "BoxList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
VERSION = re.compile(r"(?<=in record \()\d+")
#: Fields that only the real server has, or that are different in every life.
OWN = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink", "deletionTimestamp")


def box(name: str = "b", **more: Any) -> dict[str, Any]:
    return {"apiVersion": "xpu.example.com/v1", "kind": "Box", "metadata": {"name": name}, **more}


def plain(value: Any) -> Any:
    """What can be compared: without what no two servers have in common, and without causes said twice."""
    if isinstance(value, dict):
        return {key: plain(it) for key, it in value.items() if key not in OWN}
    if isinstance(value, list):
        return [plain(it) for n, it in enumerate(value) if it not in value[:n]]
    if isinstance(value, str):
        return VERSION.sub("N", UUID.sub("UID", value))
    return value


def said(reply: Reply) -> Any:
    return reply.code, plain(reply.body)


def shaped(reply: Reply) -> Any:
    """Code and metadata: of the rest the real server fills in defaults."""
    return reply.code, plain(reply.body.get("metadata")), reply.body.get("kind")


async def refusals(client: Client) -> Told:
    await client.post(NODES, node("r"))
    await client.post(LEASES, lease("r"))
    one = (await client.get(f"{NODES}/r")).body
    stale = {**one, "metadata": {**one["metadata"], "resourceVersion": "1", "labels": {"a": "b"}}}
    other = {**one, "metadata": {**one["metadata"], "uid": "00000000-0000-4000-8000-000000000000"}}
    old = {"preconditions": {"uid": "no"}}
    asked = [
        await client.get(f"{NODES}/missing"),
        await client.get(f"{LEASES}/missing"),
        await client.get("/api/v1/unheards"),
        await client.get("/apis/no.such.group/v1/things"),
        await client.get("/api/v1/pods/no-namespace"),
        await client.post(NODES, node("r")),
        await client.post(LEASES, lease("r")),
        await client.post(NODES, node("")),
        await client.post(NODES, node("Not_A_Name")),
        await client.post(NODES, node("v", resourceVersion="5")),
        await client.post(LEASES, lease("r", namespace="kube-system")),
        await client.put(f"{NODES}/r", stale),
        await client.put(f"{NODES}/r", node("other")),
        await client.put(f"{NODES}/missing", node("missing")),
        await client.put(f"{LEASES}/r", lease("r")),
        await client.patch(f"{NODES}/r", {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}),
        await client.patch(f"{NODES}/r", {"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}}),
        await client.patch(f"{NODES}/missing", {}),
        await client.patch(f"{NODES}/r", {}, "application/unheard-of"),
        await client.patch(
            f"{NODES}/r", [{"op": "test", "path": "/metadata/name", "value": "x"}], JSON_PATCH
        ),
        await client.patch(f"{NODES}/r", [{"op": "remove", "path": "/metadata/labels/no"}], JSON_PATCH),
        await client.patch(f"{NODES}/r", {"metadata": {"labels": {"a": "b c"}}}),
        await client.patch(f"{NODES}/r", {"metadata": {"labels": {"a": "x" * 64}}}),
        await client.patch(f"{NODES}/r", {"metadata": {"labels": {"-/a": "b"}}}),
        await client.post(NODES, node("x", labels={"a": 1})),
        await client.patch(f"{NODES}/r", {"metadata": {"labels": {"-a": "b"}}}),
        await client.patch(f"{NODES}/r", {"metadata": {"annotations": {"a b": "c"}}}),
        await client.delete(f"{NODES}/missing"),
        await client.delete(f"{NODES}/r", old),
        await client.delete(f"{LEASES}/r", {"preconditions": {"resourceVersion": "1"}}),
        await client.get(NODES, fieldSelector="spec.color=red"),
        await client.get(LEASES, fieldSelector="spec.color=red"),
        await client.get(NODES, labelSelector="=1"),
        await client.get(NODES, labelSelector="a=1 2"),
        await client.get(NODES, limit="x"),
        await client.get(NODES, watch="true", resourceVersion="x"),
        await client.get("/apis/coordination.k8s.io/v1/unheards"),
        await client.get("/api/v1/namespaces/default/nodes"),
        await client.get(f"{NODES}/r/unheard"),
        await client.post(NODES, {**node("r"), "kind": "Pod"}),
        await client.post(NODES, {**node("r"), "apiVersion": "v2"}),
        await client.post(NODES, node("x" * 254)),
        await client.post(NODES, node("x", annotations={"a": "x" * (256 << 10)})),
        await client.post(NODES, node("x", annotations={"a": "x" * (3 << 20)})),
        await client.post("/api/v1/pods", {}),
        await client.put(f"{NODES}/r", node("")),
        await client.put(f"{NODES}/r", other),
        await client.ask("PATCH", NODES, {}, media=MERGE),
        await client.ask("POST", f"{NODES}/r", node("r")),
    ]
    unread = await client.get(NODES, **{"continue": "nonsense"})
    return [*(said(it) for it in asked), (unread.code, unread.body["reason"])]


async def objects(client: Client) -> Told:
    made = await client.post(NODES, node("o", labels={"a": "b"}, annotations={"x.io/y": "z"}))
    same = await client.patch(f"{NODES}/o", {"metadata": {"labels": {"a": "b"}}})
    changed = await client.patch(f"{NODES}/o", {"metadata": {"labels": {"a": None, "c": "d"}}})
    unconditional = dict(changed.body, metadata={"name": "o", "labels": {"only": "this"}})
    put = await client.put(f"{NODES}/o", unconditional)
    version = [int(it.body["metadata"]["resourceVersion"]) for it in (made, same, changed, put)]
    gone = await client.delete(f"{NODES}/o")
    return [
        *(plain_labels(it) for it in (made, same, changed, put)),
        [version[0] == version[1], version[1] < version[2] < version[3]],
        said(gone),
    ]


def plain_labels(reply: Reply) -> Any:
    metadata = reply.body["metadata"]
    return reply.code, reply.body["kind"], metadata.get("labels"), metadata.get("annotations")


async def names(client: Client) -> Told:
    made = await client.post(LEASES, {**lease(), "metadata": {"generateName": "xpu-"}})
    name = made.body["metadata"]["name"]
    again = await client.put(f"{LEASES}/fresh", lease("fresh"))
    return [
        made.code,
        re.fullmatch("xpu-[bcdfghjklmnpqrstvwxz2456789]{5}", name) is not None,
        shaped(again),
        (await client.delete(f"{LEASES}/{name}")).code,
        (await client.delete(f"{LEASES}/fresh")).code,
    ]


async def lists(client: Client) -> Told:
    for name, labels in (("a", {"t": "1", "u": "x"}), ("b", {"t": "2"}), ("c", {}), ("d", {"t": "3"})):
        await client.post(LEASES, lease(f"s-{name}", labels=labels))
    told: Told = []
    for selector in (
        "t=1",
        "t==1",
        "t!=1",
        "t in (1,2)",
        "t notin (1, 2)",
        "t",
        "!t",
        "t,u=x",
        "t=1,t=2",
        "",
    ):
        reply = await client.get(LEASES, labelSelector=selector)
        kept = [it["metadata"]["name"] for it in reply.body["items"]]
        told.append((selector, reply.body["kind"], [it for it in kept if it.startswith("s-")]))
    for selector in (
        "metadata.name=s-b",
        "metadata.name!=s-b,metadata.namespace=default",
        "metadata.name=no",
    ):
        reply = await client.get(LEASES, fieldSelector=selector)
        kept = [it["metadata"]["name"] for it in reply.body["items"]]
        told.append((selector, [it for it in kept if it.startswith("s-")]))
    first = await client.get(LEASES, limit="2")
    then = await client.get(LEASES, limit="2", **{"continue": first.body["metadata"]["continue"]})
    told += ["kind" in first.body["items"][0], first.body["metadata"]["remainingItemCount"] > 0]
    told.append(first.body["metadata"]["resourceVersion"] == then.body["metadata"]["resourceVersion"])
    await client.delete(f"{LEASES}/s-a")
    return told


async def paged_over_a_change(client: Client) -> Told:
    """A page is of the moment of the first, whatever happened meanwhile."""
    for name in "abc":
        await client.post(NODES, node(f"page-{name}"))
    query = {"labelSelector": "!beta", "limit": "1"}
    first = await client.get(NODES, **query)
    await client.delete(f"{NODES}/page-c")
    seen, following = first.body["items"], first.body["metadata"]["continue"]
    while following:
        reply = await client.get(NODES, **query, **{"continue": following})
        seen += reply.body["items"]
        following = reply.body["metadata"].get("continue")
    return [[it["metadata"]["name"] for it in seen if it["metadata"]["name"].startswith("page-")]]


async def watches(client: Client) -> Told:
    await client.post(NODES, node("w", labels={"w": "1"}))
    told: Told = []
    async with client.watch(NODES, labelSelector="w=1") as stream:
        told.append(event(await stream.next()))
        await client.patch(f"{NODES}/w", {"metadata": {"annotations": {"a.io/b": "c"}}})
        await client.patch(f"{NODES}/w", {"metadata": {"labels": {"w": "2"}}})
        await client.patch(f"{NODES}/w", {"metadata": {"labels": {"w": "1"}}})
        await client.delete(f"{NODES}/w")
        told += [event(await stream.next()) for _ in range(4)]
    version = (await client.get(NODES)).body["metadata"]["resourceVersion"]
    await client.post(NODES, node("w2"))
    async with client.watch(NODES, resourceVersion=version, fieldSelector="metadata.name=w2") as stream:
        told.append(event(await stream.next()))
    await client.delete(f"{NODES}/w2")
    return told


def event(seen: tuple[str, Any]) -> Any:
    kind, document = seen
    metadata = document["metadata"]
    return kind, document["kind"], document["apiVersion"], metadata["name"], metadata.get("labels")


async def ends(client: Client) -> Told:
    """A watch ends at its time, and a bookmark says how far it came with what it was not to see."""
    told: Told = []
    query = {"timeoutSeconds": "4", "allowWatchBookmarks": "true", "fieldSelector": "metadata.name=none"}
    before = await client.post(NODES, node("e"))
    version = before.body["metadata"]["resourceVersion"]
    async with client.watch(NODES, resourceVersion=version, **query) as stream:
        after = await client.patch(f"{NODES}/e", {"metadata": {"labels": {"a": "b"}}})
        kind, document = await stream.next()
        told += [stream.code, kind, document["kind"], document["apiVersion"]]
        reached = int(document["metadata"]["resourceVersion"])
        told += [reached >= int(after.body["metadata"]["resourceVersion"]), await rest(stream)]
    return told


async def rest(stream: Stream) -> Any:
    """What kinds of events come until the end."""
    kinds = set()
    try:
        while True:
            kinds.add((await stream.next())[0])
    except EOFError:
        return kinds - {"BOOKMARK"}


async def patches(client: Client) -> Told:
    await client.post(NODES, node("p", labels={"a": "1", "b": "2"}))
    conditions = [{"type": "Ready", "status": "True"}, {"type": "XpuReady", "status": "False"}]
    status = f"{NODES}/p/status"
    told: Told = []
    for path, body, media in (
        (f"{NODES}/p", {"metadata": {"labels": {"a": None, "c": "3"}}}, STRATEGIC),
        (f"{NODES}/p", [{"op": "add", "path": "/metadata/labels/x.io~1y", "value": "4"}], JSON_PATCH),
        (f"{NODES}/p", [{"op": "remove", "path": "/metadata/labels/b"}], JSON_PATCH),
        (f"{NODES}/p", {"metadata": {"labels": {"$patch": "replace", "z": "9"}}}, STRATEGIC),
        (f"{NODES}/p", {"status": {"phase": "Running"}}, MERGE),
        (status, {"status": {"conditions": conditions}}, STRATEGIC),
        (status, {"status": {"conditions": [{"type": "XpuReady", "status": "True"}]}}, STRATEGIC),
        (status, {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}, STRATEGIC),
        (status, {"status": {"capacity": {"x.io/y": "4", "x.io/z": "5"}}}, MERGE),
        (status, {"metadata": {"labels": {"s": "8"}}, "status": {"capacity": {"x.io/y": None}}}, MERGE),
        (status, {"spec": {"unschedulable": True}}, MERGE),
        (f"{NODES}/p", {"spec": {"unschedulable": True}}, MERGE),
    ):
        reply = await client.patch(path, body, media)
        kept = reply.body.get("status", {})
        of_conditions = [(it["type"], it["status"]) for it in kept.get("conditions", ())]
        told.append((reply.code, reply.body["metadata"].get("labels"), kept.get("phase"), of_conditions))
        told.append((kept.get("capacity"), reply.body.get("spec", {}).get("unschedulable")))
    await client.delete(f"{NODES}/p")
    return told


async def finalizers(client: Client) -> Told:
    await client.post(LEASES, lease("f", finalizers=["xpu.example.com/keep"]))
    marked = await client.delete(f"{LEASES}/f")
    there = await client.get(f"{LEASES}/f")
    freed = await client.patch(f"{LEASES}/f", {"metadata": {"finalizers": None}})
    after = await client.get(f"{LEASES}/f")
    marks = sorted(set(there.body["metadata"]) - {"managedFields"})
    return [shaped(marked), marks, freed.code, said(after)]


async def custom(client: Client) -> Told:
    made = await client.post(BOXES, box("c", spec={"size": 1}, status={"full": True}))
    again = await client.put(f"{BOXES}/c", box("c", spec={"size": 2}))
    body = {**made.body, "spec": {"size": 2}}
    put = await client.put(f"{BOXES}/c", body)
    state = await client.patch(f"{BOXES}/c/status", {"status": {"full": True}, "spec": {"size": 3}})
    listed = await client.get(BOXES)
    told = [plain(it.body) for it in (made, put, state)]
    told += [said(again), plain(listed.body["items"]), listed.body["kind"]]
    told.append(said(await client.patch(f"{BOXES}/c", {}, STRATEGIC)))
    told.append(said(await client.put(f"{BOXES}/c", body)))
    told.append(said(await client.get(BOXES, fieldSelector="spec.size=2")))
    told.append(said(await client.delete(f"{BOXES}/c")))
    return told


async def events(client: Client) -> Told:
    """Where an Event may lie."""
    about = {"kind": "Node", "name": "n", "apiVersion": "v1"}
    told: Told = []
    for namespace, involved in (
        ("default", about),
        ("kube-system", about),
        ("default", {**about, "kind": "Pod", "namespace": "kube-system"}),
        ("kube-system", {**about, "kind": "Pod", "namespace": "kube-system"}),
    ):
        body = {"metadata": {"name": "e"}, "involvedObject": involved, "reason": "R", "type": "Normal"}
        reply = await client.post(f"/api/v1/namespaces/{namespace}/events", body)
        told.append(said(reply) if reply.code != 201 else 201)
    reply = await client.get("/api/v1/events", fieldSelector="involvedObject.name=n,reason=R")
    told.append(sorted(it["metadata"]["namespace"] for it in reply.body["items"]))
    return told


SCENARIOS = (
    *(refusals, objects, names, lists, paged_over_a_change, watches, ends),
    *(patches, finalizers, custom, events),
)


@pytest.fixture
def binary(request: pytest.FixtureRequest) -> Path:
    found = built_cluster()
    if found is None:
        words = "no cluster is built: run `make peers`"
        assert not request.config.getoption("--require-peers"), words
        pytest.skip(words)
    return found


@pytest.fixture
async def real(binary: Path, tmp_path: Path) -> AsyncIterator[RealApiServer]:
    async with RealApiServer(binary, tmp_path, users={"agent": ()}) as server:
        yield server


async def test_both_answer_the_same(real: RealApiServer) -> None:
    tls = ssl.create_default_context(cafile=str(real.ca))
    async with (
        SimApiServer() as sim,
        Client(sim.url, sim.token) as to_sim,
        Client(real.url, real.token, tls) as to_real,
    ):
        sim.serve(CR)
        await to_real.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD)
        await real.kubectl("wait", "--for=condition=Established", "crd/boxes.xpu.example.com")
        for scenario in SCENARIOS:
            simulated, told = await scenario(to_sim), await scenario(to_real)
            assert simulated == told, scenario.__name__


async def test_both_refuse_the_same(real: RealApiServer) -> None:
    """Who has no rights, who has no token, and who has a wrong one."""
    tls = ssl.create_default_context(cafile=str(real.ca))
    asked: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("GET", f"{NODES}/n", {}),
        ("GET", NODES, {}),
        ("GET", NODES, {"watch": "true"}),
        ("GET", NODES, {"fieldSelector": "metadata.name=n"}),
        ("GET", LEASES, {}),
        ("POST", LEASES, {}),
        ("PATCH", f"{NODES}/n/status", {}),
        ("PUT", f"{LEASES}/l", {}),
        ("DELETE", f"{NODES}/n", {}),
        ("GET", "/metrics", {}),
    )
    async with SimApiServer(user="agent") as sim:
        for _, path, _ in asked[:-1]:
            sim.forbid("*", path)
        for tokens in ((sim.token, real.token_for("agent")), (None, None), ("no", "no")):
            async with Client(sim.url, tokens[0]) as to_sim, Client(real.url, tokens[1], tls) as to_real:
                for method, path, query in asked:
                    if path == "/metrics" and tokens[0] == sim.token:
                        continue
                    pair = [await it.ask(method, path, query=query) for it in (to_sim, to_real)]
                    assert said(pair[0]) == said(pair[1]), (method, path, tokens[0] is None)

"""Lists of the simulated API server: what is selected, and in how many pages."""

from __future__ import annotations

import pytest

from agent.testing.simapi import SimApiServer

from .apiclient import LEASES, NODES, Client, Reply, lease, node

PODS = "/api/v1/pods"


def names(reply: Reply) -> list[str]:
    return [it["metadata"]["name"] for it in reply.body["items"]]


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("", "abcd"),
        ("t=1", "a"),
        ("t==1", "a"),
        ("t!=1", "bcd"),
        ("t in (1, 2)", "ab"),
        ("t notin (1,2)", "cd"),
        ("t", "abd"),
        ("!t", "c"),
        ("t,x.io/u=v", "b"),
        ("t=", ""),
    ],
)
async def test_labels_select(sim: SimApiServer, api: Client, selector: str, chosen: str) -> None:
    for name, labels in {"a": {"t": "1"}, "b": {"t": "2", "x.io/u": "v"}, "c": {}, "d": {"t": "3"}}.items():
        sim.put_object(node(name, labels=labels))

    assert "".join(names(await api.get(NODES, labelSelector=selector))) == chosen


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ("=1", "found '=', expected: !, identifier, or 'end of string'"),
        ("t=1 2", "found '2', expected: ',' or 'end of string'"),
        ("t in (1", "found 'in (1', expected: ',' or 'end of string'"),
    ],
)
async def test_a_selector_that_can_not_be_read_is_refused(api: Client, selector: str, words: str) -> None:
    reply = await api.get(NODES, labelSelector=selector)

    assert (reply.code, reply.body["reason"], reply.words) == (400, "BadRequest", words)


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [("spec.nodeName=n1", ["p1"]), ("spec.nodeName!=n1", ["p2"]), ("metadata.name=p2,spec.nodeName=n1", [])],
)
async def test_fields_select(sim: SimApiServer, api: Client, selector: str, chosen: list[str]) -> None:
    for number in (1, 2):
        metadata = {"name": f"p{number}", "namespace": f"ns{number}"}
        spec = {"nodeName": f"n{number}"}
        sim.put_object({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    assert names(await api.get(PODS, fieldSelector=selector)) == chosen


async def test_a_field_that_nobody_indexes_is_refused(api: Client) -> None:
    reply = await api.get(PODS, fieldSelector="spec.color=red")

    assert (reply.code, reply.words) == (400, "field label not supported: spec.color")


async def test_a_namespace_s_list_is_of_that_namespace(sim: SimApiServer, api: Client) -> None:
    for namespace in ("default", "other"):
        sim.put_object(lease(namespace=namespace))

    assert len(names(await api.get(LEASES))) == 1
    assert len(names(await api.get("/apis/coordination.k8s.io/v1/leases"))) == 2


async def test_items_of_built_in_resources_do_not_say_their_kind_and_custom_ones_do(
    sim: SimApiServer, api: Client
) -> None:
    sim.put_object(node())
    box = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": "n"}}
    sim.put_object(box)

    listed = (await api.get(NODES)).body
    devices = (await api.get("/apis/scheduling.koordinator.sh/v1alpha1/devices")).body

    assert (listed["kind"], devices["kind"]) == ("NodeList", "DeviceList")
    assert "kind" not in listed["items"][0]
    assert devices["items"][0]["kind"] == "Device"


async def test_pages_are_all_of_the_moment_of_the_first(sim: SimApiServer, api: Client) -> None:
    for name in "abcde":
        sim.put_object(node(name))
    first = await api.get(NODES, limit="2")
    sim.put_object(node("bb"))
    sim.delete_object("Node", "d")
    sim.put_object(node("e", labels={"new": "yes"}))

    pages = [first]
    while following := pages[-1].body["metadata"].get("continue"):
        pages.append(await api.get(NODES, limit="2", **{"continue": following}))

    assert [names(it) for it in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert {it.body["metadata"]["resourceVersion"] for it in pages} == {
        first.body["metadata"]["resourceVersion"]
    }
    assert "labels" not in pages[-1].body["items"][0]["metadata"]
    assert first.body["metadata"]["remainingItemCount"] == 3


async def test_a_page_that_comes_too_late_is_gone_and_says_how_to_go_on(
    sim: SimApiServer, api: Client
) -> None:
    for name in "abc":
        sim.put_object(node(name))
    first = await api.get(NODES, limit="1")
    sim.forget_history()

    reply = await api.get(NODES, limit="1", **{"continue": first.body["metadata"]["continue"]})

    assert (reply.code, reply.body["reason"]) == (410, "Expired")
    assert names(await api.get(NODES, **{"continue": reply.body["metadata"]["continue"]})) == ["b", "c"]


async def test_a_continuation_that_is_none_is_refused(api: Client) -> None:
    for token in ("nonsense", "e30", "!"):
        assert (await api.get(NODES, **{"continue": token})).code == 400

"""Watches of the simulated API server: what is seen, in which order, until when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.testing.simapi import SimApiServer

from .apiclient import LEASES, NODES, Client, lease, node


def told(event: tuple[str, Any]) -> tuple[str, str]:
    return event[0], event[1]["metadata"]["name"]


async def version(api: Client) -> str:
    return str((await api.get(NODES)).body["metadata"]["resourceVersion"])


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}])
async def test_a_watch_without_a_version_begins_with_what_there_is(
    sim: SimApiServer, api: Client, query: dict[str, str]
) -> None:
    sim.put_object(node("b"))
    sim.put_object(node("a"))

    async with api.watch(NODES, **query) as stream:
        assert [told(await stream.next()) for _ in range(2)] == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_watch_from_a_version_misses_nothing_and_repeats_nothing(
    sim: SimApiServer, api: Client
) -> None:
    sim.put_object(node("old"))
    since = await version(api)
    sim.put_object(node("between"))

    async with api.watch(NODES, resourceVersion=since) as stream:
        sim.put_object(node("between", labels={"a": "b"}))
        sim.delete_object("Node", "old")

        seen = [await stream.next() for _ in range(3)]

    assert [told(it) for it in seen] == [("ADDED", "between"), ("MODIFIED", "between"), ("DELETED", "old")]
    versions = [int(it["metadata"]["resourceVersion"]) for _, it in seen]
    assert versions == sorted(set(versions))
    assert all((it["kind"], it["apiVersion"]) == ("Node", "v1") for _, it in seen)


async def test_a_change_that_changes_nothing_is_not_seen(sim: SimApiServer, api: Client) -> None:
    sim.put_object(node(labels={"a": "b"}))

    async with api.watch(NODES, resourceVersion=await version(api)) as stream:
        await api.patch(f"{NODES}/n", {"metadata": {"labels": {"a": "b"}}})
        sim.put_object(node("next"))

        assert told(await stream.next()) == ("ADDED", "next")


async def test_what_comes_to_match_is_added_and_what_ceases_to_is_deleted(
    sim: SimApiServer, api: Client
) -> None:
    sim.put_object(node())
    async with api.watch(NODES, resourceVersion=await version(api), labelSelector="pool=train") as stream:
        for pool in ("train", "train", "infer", "train"):
            sim.put_object(node(labels={"pool": pool}, annotations={"of": pool}))
        sim.put_object(node(labels={"pool": "train", "more": "yes"}))
        sim.delete_object("Node", "n")

        assert [(await stream.next())[0] for _ in range(5)] == [
            "ADDED",
            "DELETED",
            "ADDED",
            "MODIFIED",
            "DELETED",
        ]


async def test_a_watch_is_of_its_resource_and_its_namespace(sim: SimApiServer, api: Client) -> None:
    async with api.watch(LEASES, resourceVersion=await version(api)) as stream:
        sim.put_object(node("here"))
        sim.put_object(lease("there", namespace="other"))
        sim.put_object(lease("here"))

        assert told(await stream.next()) == ("ADDED", "here")


async def test_bookmarks_come_to_whom_asked_for_them(sim: SimApiServer, api: Client) -> None:
    asked, not_asked = {"allowWatchBookmarks": "true"}, {"allowWatchBookmarks": "false"}
    since = await version(api)
    async with (
        api.watch(NODES, resourceVersion=since, **asked) as marked,
        api.watch(NODES, resourceVersion=since, **not_asked) as plain,
    ):
        sim.put_object(lease())
        sim.send_bookmarks()
        sim.put_object(node())

        kind, document = await marked.next()
        assert (kind, document["kind"]) == ("BOOKMARK", "Node")
        assert int(document["metadata"]["resourceVersion"]) > int(since)
        assert told(await plain.next()) == ("ADDED", "n")


async def test_bookmarks_come_by_themselves() -> None:
    async with (
        SimApiServer(bookmark_every=0.01) as sim,
        Client(sim.url, sim.token) as client,
        client.watch(NODES, resourceVersion="1", allowWatchBookmarks="true") as stream,
    ):
        assert [(await stream.next())[0] for _ in range(2)] == ["BOOKMARK", "BOOKMARK"]


async def test_a_list_by_watch_ends_with_a_bookmark_that_says_so(sim: SimApiServer, api: Client) -> None:
    sim.put_object(node())
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}

    async with api.watch(NODES, allowWatchBookmarks="true", **query) as stream:
        assert told(await stream.next()) == ("ADDED", "n")
        kind, document = await stream.next()

    assert kind == "BOOKMARK"
    assert document["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_ends_at_its_time_after_a_bookmark(api: Client) -> None:
    query = {"resourceVersion": "1", "allowWatchBookmarks": "true", "timeoutSeconds": "1"}
    async with api.watch(NODES, **query) as stream:
        assert (await stream.next())[0] == "BOOKMARK"
        with pytest.raises(EOFError):
            await stream.next()


async def test_a_watch_can_be_ended_in_order(sim: SimApiServer, api: Client) -> None:
    async with api.watch(NODES, resourceVersion="1") as stream:
        sim.end_watches()

        with pytest.raises(EOFError):
            await stream.next()


async def test_a_forgotten_version_is_an_error_in_the_stream(sim: SimApiServer, api: Client) -> None:
    sim.put_object(node())
    since = await version(api)
    sim.forget_history()

    async with api.watch(NODES, resourceVersion=since) as stream:
        kind, status = await stream.next()
        with pytest.raises(EOFError):
            await stream.next()

    assert (stream.code, kind) == (200, "ERROR")
    assert (status["code"], status["reason"]) == (410, "Expired")
    assert status["message"] == f"too old resource version: {since} ({int(since) + 1})"


async def test_a_forgotten_version_can_be_http_s_410(sim: SimApiServer, api: Client) -> None:
    sim.forget_history(answer="status")

    async with api.watch(NODES, resourceVersion="1") as stream:
        assert (stream.code, (await stream.body())["reason"]) == (410, "Expired")


async def test_watches_that_run_can_be_told_of_the_forgetting(sim: SimApiServer, api: Client) -> None:
    async with api.watch(NODES, resourceVersion="1") as stream:
        sim.forget_history(running=True)

        kind, status = await stream.next()

    assert (kind, status["code"]) == ("ERROR", 410)


async def test_a_list_after_the_forgetting_is_a_new_beginning(sim: SimApiServer, api: Client) -> None:
    sim.forget_history()

    async with api.watch(NODES, resourceVersion=await version(api)) as stream:
        sim.put_object(node())
        assert told(await stream.next()) == ("ADDED", "n")


async def test_a_version_that_is_no_number_is_refused(api: Client) -> None:
    async with api.watch(NODES, resourceVersion="abc") as stream:
        assert stream.code == 500
        assert 'resourceVersion: Invalid value: "abc"' in (await stream.body())["message"]


async def test_who_goes_away_is_forgotten(sim: SimApiServer, api: Client) -> None:
    async with api.watch(NODES, resourceVersion="1"):
        assert sim.watchers == 1

    async with asyncio.timeout(30):
        await sim.wait(lambda it: it.watchers == 0)

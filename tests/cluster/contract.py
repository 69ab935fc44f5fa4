"""What our client and mirror rely on an API server for; run with the simulated one and with the real one.

A module that takes these tests in (`from cluster.contract import *`) gives the fixture `served`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from agent.cluster.api_client import Client, open_api
from agent.cluster.api_errors import ApiRefused, Conflict, Forbidden, Gone, NotFound
from agent.cluster.api_protocol import Object, Patch, WatchMessage
from agent.cluster.credentials import ApiAccess
from agent.cluster.reflector import FollowTiming, MirroredObjects, Reflector

__all__ = [
    "test_a_conflict_is_told_from_other_refusals",
    "test_a_list_comes_in_pages",
    "test_a_list_of_what_the_server_has_in_memory_comes_in_one_answer_whatever_the_limit",
    "test_a_mirror_outlives_a_restart_of_the_server",
    "test_a_mirror_whose_version_is_forgotten_is_listed_anew",
    "test_a_patch_of_each_kind_is_taken",
    "test_a_token_without_rights_is_refused",
    "test_a_watch_brings_a_bookmark_before_it_ends",
    "test_a_watch_brings_every_change_since_the_list",
    "test_a_watch_from_a_version_long_gone_is_refused",
    "test_objects_are_written_read_and_deleted",
    "test_what_is_not_there_is_not_found",
]

PATIENCE = 30.0
QUICK = FollowTiming(watch=20, page=2, shortest=0.05, longest=0.5)


@dataclass(frozen=True, slots=True)
class Served:
    """An API server for a test: a way in with all rights and one with none, and a namespace of its own."""

    access: ApiAccess
    stranger: ApiAccess
    namespace: str
    #: Go away, with every connection, and come back.
    stop: Callable[[], Awaitable[None]]
    start: Callable[[], Awaitable[None]]
    #: Cut every watch, and know nothing more of the versions up to now.
    forget: Callable[[Client], Awaitable[None]]

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"


@asynccontextmanager
async def talking(access: ApiAccess) -> AsyncIterator[Client]:
    client = await open_api(access)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def mirroring(client: Client, path: str) -> AsyncIterator[Reflector[str]]:
    reflector = Reflector(client, path, {"labelSelector": "ours"}, colour, QUICK)
    async with anyio.create_task_group() as group:
        group.start_soon(reflector.run)
        yield reflector
        group.cancel_scope.cancel()


async def shown(
    reflector: Reflector[str], holds: Callable[[MirroredObjects[str]], Any]
) -> MirroredObjects[str]:
    with anyio.fail_after(PATIENCE):
        async for mirror in reflector.cell.watch():
            if holds(mirror):
                return mirror
    raise AssertionError("unreachable")


def config_map(name: str, colour: str = "red", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"ours": ""}, **metadata},
        "data": {"colour": colour},
    }


def colour(it: Object) -> str | None:
    data: Mapping[str, str] = it.get("data") or {}
    return data.get("colour")


def version(it: Object) -> str:
    value: str = it["metadata"]["resourceVersion"]
    return value


def names(it: Object) -> list[str]:
    return [each["metadata"]["name"] for each in it["items"]]


async def followed(client: Client, path: str, query: Mapping[str, str], count: int = 1) -> list[WatchMessage]:
    """The first messages of a watch."""
    with anyio.fail_after(PATIENCE):
        async with client.watch(path, query) as events:
            return [await anext(events) for _ in range(count)]


async def test_objects_are_written_read_and_deleted(served: Served) -> None:
    async with talking(served.access) as client:
        made = await client.post(served.path, config_map("a"))
        await client.put(f"{served.path}/a", config_map("a", "blue", resourceVersion=version(made)))
        read = await client.get(f"{served.path}/a")
        await client.delete(f"{served.path}/a", {"preconditions": {"uid": made["metadata"]["uid"]}})
        with pytest.raises(NotFound, match='404 NotFound: configmaps "a" not found'):
            await client.delete(f"{served.path}/a")

    assert read["data"] == {"colour": "blue"}
    assert read["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_list_of_what_the_server_has_in_memory_comes_in_one_answer_whatever_the_limit(
    served: Served,
) -> None:
    async with talking(served.access) as client:
        for name in "abc":
            await client.post(served.path, config_map(name))
        query = {"limit": "1", "labelSelector": "ours", "resourceVersion": "0"}
        page: Mapping[str, Any] = {"items": []}
        with anyio.fail_after(PATIENCE):
            while len(page["items"]) < 3:
                page = await client.get(served.path, query)
                assert "continue" not in page["metadata"]


async def test_a_list_comes_in_pages(served: Served) -> None:
    async with talking(served.access) as client:
        for name in "abcde":
            await client.post(served.path, config_map(name))
        first = await client.get(served.path, {"limit": "2", "labelSelector": "ours"})
        more = first["metadata"]["continue"]
        rest = await client.get(served.path, {"limit": "9", "labelSelector": "ours", "continue": more})
        async with mirroring(client, served.path) as reflector:
            mirror = await shown(reflector, lambda it: it.synced)

    assert names(first) + names(rest) == list("abcde")
    assert version(first) == version(rest)
    assert sorted(mirror.objects) == [f"{served.namespace}/{name}" for name in "abcde"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("merge", {"data": {"colour": "blue", "size": None}}),
        ("strategic", {"data": {"colour": "blue", "size": None}}),
        (
            "json",
            [
                {"op": "replace", "path": "/data/colour", "value": "blue"},
                {"op": "remove", "path": "/data/size"},
            ],
        ),
    ],
)
async def test_a_patch_of_each_kind_is_taken(served: Served, kind: Patch, body: Any) -> None:
    async with talking(served.access) as client:
        await client.post(served.path, {**config_map("a"), "data": {"colour": "red", "size": "big"}})
        patched = await client.patch(f"{served.path}/a", body, kind)

    assert patched["data"] == {"colour": "blue"}


async def test_a_conflict_is_told_from_other_refusals(served: Served) -> None:
    async with talking(served.access) as client:
        old = await client.post(served.path, config_map("a"))
        await client.patch(f"{served.path}/a", {"data": {"colour": "blue"}})
        with pytest.raises(Conflict) as stale:
            await client.put(f"{served.path}/a", config_map("a", resourceVersion=version(old)))
        with pytest.raises(Conflict) as exists:
            await client.post(served.path, config_map("a"))
        with pytest.raises(ApiRefused) as invalid:
            await client.post(served.path, config_map("No Name"))

    assert (stale.value.reason, exists.value.reason) == ("Conflict", "AlreadyExists")
    assert (invalid.value.status, invalid.value.reason) == (422, "Invalid")


async def test_what_is_not_there_is_not_found(served: Served) -> None:
    async with talking(served.access) as client:
        for path in (f"{served.path}/none", "/apis/no.such/v1/things"):
            with pytest.raises(NotFound):
                await client.get(path)
        with pytest.raises(NotFound):
            await followed(client, "/apis/no.such/v1/things", {})


async def test_a_token_without_rights_is_refused(served: Served) -> None:
    async with talking(served.stranger) as client:
        with pytest.raises(
            Forbidden, match=r'403 Forbidden: .*cannot list resource .?"configmaps'
        ) as listing:
            await client.get(served.path)
        with pytest.raises(Forbidden, match="cannot watch"):
            await followed(client, served.path, {"resourceVersion": "1"})

    assert listing.value.status == 403


async def test_a_watch_brings_every_change_since_the_list(served: Served) -> None:
    async with talking(served.access) as client:
        since = version(await client.get(served.path))
        await client.post(served.path, config_map("a"))
        await client.patch(f"{served.path}/a", {"data": {"colour": "blue"}})
        await client.delete(f"{served.path}/a")
        seen = await followed(client, served.path, {"resourceVersion": since}, 3)

    assert [(it.kind, colour(it.object)) for it in seen] == [
        ("ADDED", "red"),
        ("MODIFIED", "blue"),
        ("DELETED", "blue"),
    ]


async def test_a_watch_brings_a_bookmark_before_it_ends(served: Served) -> None:
    async with talking(served.access) as client:
        since = version(await client.get(served.path))
        query = {"resourceVersion": since, "timeoutSeconds": "5", "allowWatchBookmarks": "true"}
        with anyio.fail_after(PATIENCE):
            async with client.watch(served.path, query) as events:
                # Nothing is promised to a watch that saw nothing.
                made = await client.post(served.path, config_map("a"))
                seen = [await anext(events), await anext(events)]

    assert [it.kind for it in seen] == ["ADDED", "BOOKMARK"]
    assert int(version(seen[1].object)) >= int(version(made))


async def test_a_watch_from_a_version_long_gone_is_refused(served: Served) -> None:
    async with talking(served.access) as client:
        await client.post(served.path, config_map("a"))
        await served.forget(client)
        with pytest.raises(Gone, match="410 Expired: too old resource version"):
            await followed(client, served.path, {"resourceVersion": "1"})


async def test_a_mirror_outlives_a_restart_of_the_server(served: Served) -> None:
    async with talking(served.access) as client:
        await client.post(served.path, config_map("a"))
        async with mirroring(client, served.path) as reflector:
            before = await shown(reflector, lambda it: it.synced)
            await served.stop()
            away = await shown(reflector, lambda it: it.error)
            await served.start()
            await shown(reflector, lambda it: not it.error)
            await client.patch(f"{served.path}/a", {"data": {"colour": "blue"}})
            after = await shown(reflector, lambda it: "blue" in it.objects.values())

    assert away.objects == before.objects
    assert after.synced


async def test_a_mirror_whose_version_is_forgotten_is_listed_anew(served: Served) -> None:
    async with talking(served.access) as client:
        await client.post(served.path, config_map("a"))
        async with mirroring(client, served.path) as reflector:
            await shown(reflector, lambda it: it.synced)
            await served.forget(client)
            await client.post(served.path, config_map("b", "green"))
            await client.delete(f"{served.path}/a")
            mirror = await shown(reflector, lambda it: list(it.objects.values()) == ["green"])

    assert not mirror.error

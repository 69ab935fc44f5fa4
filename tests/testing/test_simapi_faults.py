"""What a simulated API server does to its clients when told to."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import aiohttp
import pytest

from agent.testing.simapi import SimApiServer

from .apiclient import LEASES, NODES, Client, node


async def test_an_outage_refuses_connections_and_keeps_the_objects(sim: SimApiServer, api: Client) -> None:
    sim.put_object(node())
    url = sim.url
    before = (await api.get(NODES)).body

    await sim.go_away()

    with pytest.raises(aiohttp.ClientConnectorError):
        await api.get(NODES)
    await sim.come_back()
    assert sim.url == url
    assert (await api.get(NODES)).body == before


async def test_an_outage_cuts_streams_off_and_does_not_end_them(sim: SimApiServer, api: Client) -> None:
    async with api.watch(NODES, resourceVersion="1") as stream:
        await sim.go_away()

        with pytest.raises(aiohttp.ClientError):
            await stream.next()

    assert sim.watchers == 0


async def test_an_outage_cuts_requests_off_that_wait_for_an_answer(sim: SimApiServer, api: Client) -> None:
    sim.hang()
    asking = asyncio.create_task(api.get(NODES))
    await connected(asking)

    await sim.go_away()

    with pytest.raises(aiohttp.ClientError):
        await asking


async def connected(asking: asyncio.Task[object]) -> None:
    """Let the request reach the server, which answers nothing."""
    for _ in range(100):
        await asyncio.sleep(0)
    assert not asking.done()


async def test_a_watch_goes_on_after_an_outage_where_it_was(sim: SimApiServer, api: Client) -> None:
    since = (await api.get(NODES)).body["metadata"]["resourceVersion"]
    await sim.go_away()
    sim.put_object(node())
    await sim.come_back()

    async with api.watch(NODES, resourceVersion=since) as stream:
        assert (await stream.next())[0] == "ADDED"


async def test_going_twice_and_coming_twice_is_once(sim: SimApiServer, api: Client) -> None:
    for _ in range(2):
        await sim.go_away()
    for _ in range(2):
        await sim.come_back()

    assert (await api.get(NODES)).code == 200


async def test_a_busy_server_says_when_to_come_again(sim: SimApiServer, api: Client) -> None:
    sim.be_busy(2, retry_after=7)

    replies = [await api.get(NODES) for _ in range(3)]

    assert [it.code for it in replies] == [429, 429, 200]
    assert [it.headers.get("Retry-After") for it in replies] == ["7", "7", None]
    assert replies[0].body == "Too many requests, please try again later.\n"


async def test_a_broken_server_says_so_as_often_as_told(sim: SimApiServer, api: Client) -> None:
    sim.be_broken(1, "etcdserver: leader changed")

    reply = await api.get(NODES)

    assert (reply.code, reply.body["reason"]) == (500, "InternalError")
    assert reply.words == "Internal error occurred: etcdserver: leader changed"
    assert (await api.get(NODES)).code == 200


async def test_a_server_that_hangs_answers_once_it_is_well(sim: SimApiServer, api: Client) -> None:
    sim.hang()
    asking = asyncio.create_task(api.get(NODES))
    await connected(asking)

    sim.hang(False)

    assert (await asking).code == 200


@pytest.mark.parametrize("token", ["wrong", ""])
async def test_a_wrong_token_is_nobody_s(sim: SimApiServer, token: str) -> None:
    async with Client(sim.url, token) as stranger:
        reply = await stranger.get(NODES)

    assert (reply.code, reply.body["reason"], reply.words) == (401, "Unauthorized", "Unauthorized")


async def test_who_has_no_token_may_ask_how_the_server_is_and_no_more(sim: SimApiServer) -> None:
    async with Client(sim.url, None) as stranger:
        assert (await stranger.get("/readyz")).body == "ok"
        reply = await stranger.get(NODES)

    text = 'nodes is forbidden: User "system:anonymous" cannot list resource "nodes"'
    assert (reply.code, reply.words) == (403, f'{text} in API group "" at the cluster scope')


async def test_a_token_that_was_renewed_is_the_only_one(sim: SimApiServer, api: Client) -> None:
    sim.renew_token()

    assert (await api.get(NODES)).code == 401
    async with Client(sim.url, sim.token) as again:
        assert (await again.get(NODES)).code == 200


async def test_what_is_forbidden_is_refused_as_rbac_does(sim: SimApiServer, api: Client) -> None:
    sim.put_object(node())
    sim.forbid("get", f"{NODES}/n")
    sim.forbid("create", LEASES)

    replies = [await api.get(f"{NODES}/n"), await api.post(LEASES, {})]

    may_not = f'is forbidden: User "{sim.user}" cannot'
    leases = 'resource "leases" in API group "coordination.k8s.io" in the namespace "default"'
    assert [it.words for it in replies] == [
        f'nodes "n" {may_not} get resource "nodes" in API group "" at the cluster scope',
        f"leases.coordination.k8s.io {may_not} create {leases}",
    ]
    assert {(it.code, it.body["reason"]) for it in replies} == {(403, "Forbidden")}


@pytest.mark.parametrize(
    ("verb", "path", "query", "code"),
    [
        ("watch", NODES, {}, 200),
        ("list", NODES, {}, 403),
        ("list", NODES, {"fieldSelector": "metadata.name=n"}, 403),
        ("list", "/api/v1/pods", {}, 200),
        ("*", NODES, {}, 403),
        ("list", f"{NODES}/other", {"fieldSelector": "metadata.name=n"}, 200),
        ("list", f"{NODES}/n", {"fieldSelector": "metadata.name=n"}, 403),
        ("list", f"{NODES}/n/status", {"fieldSelector": "metadata.name=n"}, 200),
    ],
)
async def test_a_refusal_is_of_a_verb_and_a_place(
    sim: SimApiServer, api: Client, verb: str, path: str, query: dict[str, str], code: int
) -> None:
    sim.forbid(verb, path)

    assert (await api.get(NODES, **query)).code == code


async def test_what_was_forbidden_can_be_permitted_again(sim: SimApiServer, api: Client) -> None:
    sim.forbid("list", NODES)
    sim.permit("list", NODES)

    assert (await api.get(NODES)).code == 200


@pytest.mark.parametrize(("verb", "allowed"), [("patch", False), ("get", True)])
async def test_a_client_can_ask_what_it_may(sim: SimApiServer, api: Client, verb: str, allowed: bool) -> None:
    sim.forbid("patch", NODES)
    attributes = {"verb": verb, "resource": "nodes", "name": "n"}
    review = {"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}

    reply = await api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)

    assert (reply.code, reply.body["status"]["allowed"]) == (201, allowed)


async def test_a_body_that_is_too_large_is_refused(api: Client) -> None:
    reply = await api.post(NODES, node(annotations={"a": "x" * (3 << 20)}))

    assert (reply.code, reply.body["reason"]) == (413, "RequestEntityTooLarge")


async def test_the_kubeconfig_leads_here_and_is_nobody_else_s(sim: SimApiServer, tmp_path: Path) -> None:
    path = sim.kubeconfig(tmp_path / "kubeconfig")

    config = json.loads(path.read_text())
    assert config["clusters"][0]["cluster"] == {"server": sim.url}
    assert config["users"][0]["user"] == {"token": sim.token}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

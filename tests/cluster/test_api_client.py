"""What the client makes of every answer, and of everything that can happen to a connection."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent.cluster import server_restart
from agent.cluster.api_client import TURN, CallTimeouts, Client, open_api
from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, Busy, Conflict, Forbidden, Gone, NotFound
from agent.cluster.api_protocol import Patch, WatchMessage
from agent.cluster.credentials import ApiAccess
from agent.cluster.renewed_certificates import ClientPool, Connections
from agent.cluster.token_file import FixedToken
from agent.cluster.watch_pace import LEAST

from .wire import Answer, Asked, Wire, head, line, nothing, says, sends, wire

SMALL = CallTimeouts(call=30, connect=30, silence=30, body=2000, line=1000)
#: For what never comes.
QUICK = replace(SMALL, call=1.0, silence=1.0)
NODE = "/api/v1/nodes/n"


@asynccontextmanager
async def talking(
    answer: Answer,
    limits: CallTimeouts | None = None,
    token_file: Path | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[tuple[Client, Wire]]:
    async with (
        wire(answer) as server,
        opened(ApiAccess(server.url, token_file=token_file), limits, sleep) as client,
    ):
        yield client, server


@asynccontextmanager
async def opened(
    access: ApiAccess,
    limits: CallTimeouts | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[Client]:
    client = await open_api(access, limits, sleep=sleep)
    try:
        yield client
    finally:
        await client.close()


async def followed(client: Client, path: str = "/api/v1/nodes", **query: str) -> list[WatchMessage]:
    async with client.watch(path, {"resourceVersion": "5", **query}) as events:
        return [seen async for seen in events]


async def test_an_object_is_read() -> None:
    async with talking(says(200, {"kind": "Node"})) as (client, server):
        assert await client.get(NODE, {"a": "b c"}) == {"kind": "Node"}

    (asked,) = server.asked
    assert (asked.method, asked.target) == ("GET", f"{NODE}?a=b+c")
    assert asked.headers["accept"] == "application/json"
    assert asked.headers["accept-encoding"] == "identity"
    assert asked.headers["user-agent"].startswith("xpu-agent/")
    assert "authorization" not in asked.headers


@pytest.mark.parametrize(
    ("kind", "body", "content"),
    [
        ("merge", {"metadata": {"labels": {"a": None}}}, "application/merge-patch+json"),
        ("strategic", {"metadata": {}}, "application/strategic-merge-patch+json"),
        ("json", [{"op": "remove", "path": "/a"}], "application/json-patch+json"),
    ],
)
async def test_a_patch_is_sent_as_its_kind(kind: Patch, body: Any, content: str) -> None:
    async with talking(says(200, {})) as (client, server):
        await client.patch(NODE, body, kind)

    (asked,) = server.asked
    assert asked.method == "PATCH"
    assert asked.headers["content-type"] == content
    assert json.loads(asked.body) == body


async def test_what_is_written_is_json() -> None:
    async with talking(says(201, {})) as (client, server):
        await client.post("/api/v1/x", {"a": "é"})
        await client.put(NODE, {"b": [1]})
        await client.delete(NODE)
        await client.delete(NODE, {"preconditions": {"uid": "u"}})

    assert [(it.method, json.loads(it.body or b"null")) for it in server.asked] == [
        ("POST", {"a": "é"}),
        ("PUT", {"b": [1]}),
        ("DELETE", None),
        ("DELETE", {"preconditions": {"uid": "u"}}),
    ]
    assert {it.headers["content-type"] for it in server.asked} == {"application/json"}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, ApiRefused),
        (401, Forbidden),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (422, ApiRefused),
        (429, Busy),
        (500, ApiAway),
        (503, ApiAway),
        (504, ApiAway),
    ],
)
async def test_a_refusal_is_what_its_status_says(code: int, error: type[ApiError]) -> None:
    status = {"kind": "Status", "reason": "Because", "message": "it is so", "code": code}
    async with talking(says(code, status)) as (client, _):
        with pytest.raises(ApiError, match=f"{code} Because: it is so") as called:
            await client.get(NODE)
        with pytest.raises(ApiError, match=f"{code} Because: it is so") as watched:
            await followed(client)

    assert type(called.value) is type(watched.value) is error


async def test_a_version_that_the_server_has_not_reached_is_gone() -> None:
    """It was set back to an older state; to wait for the version would take for ever."""
    status = {
        "reason": "Timeout",
        "message": "Timeout: Too large resource version: 9, current: 5",
        "code": 504,
    }
    async with talking(says(504, status)) as (client, _):
        with pytest.raises(Gone):
            await followed(client)


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "7"}, {}, 7.0),
        ({}, {"retryAfterSeconds": 3}, 3.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, None),
        ({"Retry-After": "-1"}, {"retryAfterSeconds": -1}, None),
        ({}, [], None),
    ],
)
async def test_a_busy_server_says_when_to_come_again(
    headers: dict[str, str], details: Any, seconds: float | None
) -> None:
    async with talking(says(429, {"details": details}, **headers)) as (client, _):
        with pytest.raises(Busy) as busy:
            await client.get(NODE)

    assert busy.value.retry_after == seconds


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (says(200, b"<html>a proxy's page</html>"), "answered 200 with no object"),
        (says(200, [1]), "answered 200 with no object"),
        (says(200, b"[" * 1500), "answered 200 with no object"),
        (says(200, {"a": "x" * 3000}), "longer than 2000 bytes"),
        (says(502, b"<html>bad gateway</html>"), "502 Unexpected: <html>bad gateway"),
        (says(200, b'{"a', **{"Content-Length": "100"}), "payload"),
        (nothing, "no answer in time"),
    ],
    ids=["html", "list", "deep", "long", "gateway", "cut", "silent"],
)
async def test_an_answer_that_is_none_is_a_server_away(answer: Answer, said: str) -> None:
    async with talking(answer, QUICK if answer is nothing else SMALL) as (client, server):
        with pytest.raises(ApiAway, match=said):
            await client.get(NODE)

    assert len(server.asked) == 1


async def test_a_call_ends_in_its_time_whatever_it_waits_for() -> None:
    async def never() -> ClientPool:
        raise AssertionError("there are no files that could be others")

    class Stuck:
        async def call_api(self, *_: Any, **__: Any) -> None:
            """As with a program for tokens that hangs."""
            await asyncio.Event().wait()

    client = Client(Connections(ClientPool("here", Stuck(), FixedToken()), never), (), QUICK, asyncio.sleep)

    with pytest.raises(ApiAway, match="here: no answer in time"):
        await client.get(NODE)
    with pytest.raises(ApiAway, match="here: no answer in time"):
        await followed(client)


async def test_a_connection_that_is_cut_or_speaks_no_http_is_a_server_away() -> None:
    async def cut(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def garbage(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")

    for answer in (cut, garbage):
        async with talking(answer, SMALL) as (client, server):
            with pytest.raises(ApiAway, match=server.url):
                await client.post("/api/v1/x", {})


async def test_nobody_at_the_address_is_a_server_away() -> None:
    url = "http://127.0.0.1:1"  # no port that a server beside us is ever given
    async with opened(ApiAccess(url)) as client:
        with pytest.raises(ApiAway, match=url):
            await client.get(NODE)
        with pytest.raises(ApiAway, match=url):
            await followed(client)


async def test_a_watch_brings_what_happens_until_the_server_ends_it() -> None:
    lines = line("ADDED", name="a") + line("BOOKMARK", resourceVersion="9")
    async with talking(sends(lines[:30], lines[30:])) as (client, server):
        seen = await followed(client)

    assert [it.kind for it in seen] == ["ADDED", "BOOKMARK"]
    assert seen[1].object == {"metadata": {"resourceVersion": "9"}}
    assert server.asked[0].target == "/api/v1/nodes?resourceVersion=5&watch=true"


@pytest.mark.parametrize(
    ("stream", "error", "said"),
    [
        (sends(line("ADDED", name="b")[:20], end=False), ApiAway, "payload"),
        (sends(line("ADDED", name="b")[:20]), ApiAway, "cut in mid-line"),
        (sends(b"{}\n"), ApiAway, "is no event"),
        (sends(b'{"type": "ADDED", "object": 5}\n'), ApiAway, "is no event"),
        (sends(b"\xff\n"), ApiAway, "is no event"),
        (sends(b"[" * 900 + b"\n"), ApiAway, "is no event"),
        (sends(b"x" * 2000 + b"\n"), ApiAway, "1000"),
        (sends(b'{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}\n'), Gone, "410 Expired"),
        (sends(b'{"type": "ERROR", "object": {"code": 500}}\n'), ApiAway, "500"),
        (sends(b'{"type": "ERROR", "object": {}}\n'), ApiAway, "500"),
    ],
    ids=["cut", "half", "empty", "number", "bytes", "deep", "long", "gone", "error", "bare"],
)
async def test_a_watch_that_goes_wrong_says_how(stream: Answer, error: type[ApiError], said: str) -> None:
    async with talking(stream, SMALL) as (client, _):
        with pytest.raises(error, match=said):
            await followed(client)


@pytest.mark.parametrize("items", [0, 1, 5])
async def test_a_long_list_is_decoded_item_by_item_with_a_turn_for_others_after_each(items: int) -> None:
    turns: list[float] = []

    async def rest(seconds: float) -> None:
        turns.append(seconds)

    page = {
        "kind": "PodList",
        "metadata": {"resourceVersion": "5", "remark": "x" * TURN},
        "items": [{"metadata": {"name": f"ä-{it}"}, "spec": [1, None, {"a": 1.5}]} for it in range(items)],
    }
    async with talking(says(200, page), sleep=rest) as (client, _):
        assert await client.get("/api/v1/pods") == page

    assert turns == [0] * items


async def test_a_long_object_without_items_is_read_as_it_is() -> None:
    node = {"kind": "Node", "metadata": {"annotations": {"remark": "x" * TURN}}}
    async with talking(says(200, node)) as (client, _):
        assert await client.get(NODE) == node


@pytest.mark.parametrize("items", [None, "none", {"a": 1}])
async def test_a_long_answer_whose_items_are_no_list_is_read_as_it_is(items: Any) -> None:
    page = {"items": items, "remark": "x" * TURN}
    async with talking(says(200, page)) as (client, _):
        assert await client.get("/api/v1/pods") == page


BULKY = {"metadata": {"annotations": {"remark": "x" * (CallTimeouts().line + 1)}}}


@pytest.mark.parametrize(
    "page",
    [BULKY, {"items": None, **BULKY}, {"items": [], **BULKY}, {"items": [{"metadata": {}}, BULKY]}],
    ids=["object", "no-list", "beside-items", "item"],
)
async def test_an_object_that_is_longer_than_a_line_of_a_watch_is_refused(page: Any) -> None:
    """Each is decoded in one go: 23 MiB of small objects held the event loop for 2.7 s."""
    async with talking(says(200, page)) as (client, server):
        with pytest.raises(
            ApiAway, match=f"{server.url}: an object in its answer has 41943.. bytes; .* 4194304"
        ):
            await client.get(NODE)


async def test_250_pods_of_a_common_size_are_read_in_one_answer() -> None:
    pod = {"metadata": {"annotations": {"remark": "x" * 30_000}}}
    async with talking(says(200, {"items": [pod] * 250})) as (client, _):
        page = await client.get("/api/v1/pods")

    assert page == {"items": [pod] * 250}


@pytest.mark.parametrize("small", [b'{"":0}', b"{}", b"[0]", b'{"a":{}}'])
def test_an_answer_as_long_as_may_be_takes_256_mib_when_it_is_decoded(small: bytes) -> None:
    """The worst are small objects; a part of the length shows what each of its bytes takes."""
    of = 16
    length = CallTimeouts().body // of
    body = b"[" + b",".join([small] * (length // (len(small) + 1))) + b"]"

    tracemalloc.start()
    decoded = msgspec.json.decode(body)
    took, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(body) == pytest.approx(length, rel=0.01)
    assert decoded
    assert of * (took + 2 * len(body)) < 256 << 20


@pytest.mark.parametrize(
    "body", [b"[" + b"1," * TURN + b"1]", b"{" * TURN * 2, b'{"items": [' + b"1," * TURN]
)
async def test_a_long_answer_that_is_no_object_is_a_server_away(body: bytes) -> None:
    async with talking(says(200, body)) as (client, _):
        with pytest.raises(ApiAway, match="answered 200 with no object"):
            await client.get(NODE)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_an_answer_that_was_compressed_unasked_is_a_server_away(encoding: str) -> None:
    """A megabyte of it may be a gigabyte, and the loop inflates it."""
    content = gzip.compress(line("ADDED", name="a"))
    async with talking(says(200, content, **{"Content-Encoding": encoding})) as (client, _):
        with pytest.raises(ApiAway, match=f"its answer is compressed .{encoding}."):
            await client.get(NODE)
        with pytest.raises(ApiAway, match=f"its answer is compressed .{encoding}."):
            await followed(client)


async def test_an_answer_that_is_said_to_be_plain_is_read() -> None:
    async with talking(says(200, {"kind": "Node"}, **{"Content-Encoding": "identity"})) as (client, _):
        assert await client.get(NODE) == {"kind": "Node"}


async def test_each_line_of_a_watch_gives_others_a_turn_and_a_flood_of_them_is_slowed_down() -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    limits = replace(SMALL, rate=0.001, burst=4 * LEAST)
    async with talking(sends(line("MODIFIED", name="a") * 6), limits, sleep=rest) as (client, _):
        seen = await followed(client)

    assert len(seen) == 6
    assert [it > 0 for it in rests] == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("other", "query", "rests"),
    [
        ("/api/v1/pods", {}, False),
        ("/api/v1/nodes", {"fieldSelector": "a=b"}, False),
        ("/api/v1/nodes", {"labelSelector": "a=b"}, False),
        ("/api/v1/nodes", {"resourceVersion": "9"}, True),
    ],
    ids=["path", "fields", "labels", "begun anew"],
)
async def test_a_flood_of_one_watch_slows_no_other_down_and_goes_on_when_the_watch_begins_anew(
    other: str, query: dict[str, str], rests: bool
) -> None:
    """An Allocate waits 0.5 s for news of the pods."""
    rested: list[float] = []

    async def rest(seconds: float) -> None:
        rested.append(seconds)

    limits = replace(SMALL, rate=0.001, burst=4 * LEAST)
    async with talking(sends(line("MODIFIED", name="a") * 4), limits, sleep=rest) as (client, _):
        await followed(client)
        assert not any(rested)
        await followed(client, other, **query)

    assert [it > 0 for it in rested[4:]] == [rests] * 4


async def test_a_watch_that_went_silent_is_a_server_away() -> None:
    async def silent(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, **{"Transfer-Encoding": "chunked"}))
        await asyncio.Event().wait()

    async with talking(silent, QUICK) as (client, _):
        with pytest.raises(ApiAway, match=r"[Tt]imeout"):
            await followed(client)


async def test_a_watch_that_nobody_reads_on_is_closed() -> None:
    closed = asyncio.Event()

    async def endless(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200))
        try:
            while True:
                writer.write(line("ADDED", name="a"))
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            closed.set()

    async with talking(endless) as (client, _):
        async with client.watch("/api/v1/nodes", {}) as events:
            assert (await anext(events)).kind == "ADDED"
        async with asyncio.timeout(30):
            await closed.wait()


async def test_a_watch_is_cancelled_cleanly() -> None:
    began = asyncio.Event()

    async def waits(_: Asked, writer: asyncio.StreamWriter) -> None:
        began.set()
        writer.write(head(200))
        await asyncio.Event().wait()

    async with talking(waits) as (client, _):
        task = asyncio.create_task(followed(client))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_token_s_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with talking(says(200, {}), token_file=token) as (client, server):
        await client.get(NODE)
        (tmp_path / "new").write_text("second")
        (tmp_path / "new").rename(token)
        await client.get(NODE)
        token.unlink()
        await client.get(NODE)

    sent = [it.headers["authorization"] for it in server.asked]
    assert sent == ["Bearer first", "Bearer second", "Bearer second"]


@pytest.mark.parametrize("content", [None, "", " \n", "a\nb", "é"])
async def test_a_token_that_is_none_is_said_without_being_shown(tmp_path: Path, content: str | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)

    with pytest.raises(ApiAway, match=f"{token}: no token to read") as refused:
        await open_api(ApiAccess("http://127.0.0.1:1", token_file=token))

    assert "é" not in str(refused.value)


def kubeconfig(path: Path, server: str, user: dict[str, Any], **cluster: Any) -> ApiAccess:
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return ApiAccess(server, kubeconfig=path)


def plugin(directory: Path, **status: str) -> dict[str, Any]:
    """A program that gives token1, then token2, and so on."""
    script = directory / "plugin"
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    script.write_text(
        f"""#!/bin/sh
n=$(($(cat {directory}/n 2>/dev/null || echo 0) + 1)); echo $n > {directory}/n
echo '{json.dumps(answer)}' | sed s/N/$n/
"""
    )
    script.chmod(0o755)
    return {"exec": {"apiVersion": answer["apiVersion"], "command": str(script)}}


async def authorizations(access: ApiAccess, server: Wire, calls: int) -> list[str]:
    async with opened(access) as client:
        for _ in range(calls):
            with suppress(Forbidden):
                await client.get(NODE)
    return [it.headers["authorization"] for it in server.asked]


async def test_a_kubeconfig_s_token_is_sent(tmp_path: Path) -> None:
    async with wire(says(200, {})) as server:
        access = kubeconfig(tmp_path / "k", server.url, {"token": "t"})

        assert await authorizations(access, server, 1) == ["Bearer t"]


async def test_a_plugin_is_asked_again_only_when_its_token_is_refused(tmp_path: Path) -> None:
    answers = iter([says(200, {}), says(401, {}), says(200, {}), says(200, {})])

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await next(answers)(asked, writer)

    async with wire(answer) as server:
        access = kubeconfig(tmp_path / "k", server.url, plugin(tmp_path, token="tokenN"))
        sent = await authorizations(access, server, 4)

    assert sent == ["Bearer token1", "Bearer token1", "Bearer token2", "Bearer token2"]


@pytest.mark.filterwarnings(r"ignore:datetime.datetime.utcnow\(\):DeprecationWarning")  # kubernetes-asyncio's
async def test_a_plugin_is_asked_again_when_its_token_is_over(tmp_path: Path) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    async with wire(says(200, {})) as server:
        user = plugin(tmp_path, token="tokenN", expirationTimestamp=now)
        sent = await authorizations(kubeconfig(tmp_path / "k", server.url, user), server, 1)

    assert sent == ["Bearer token2"]


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"exec": {"apiVersion": "v1", "command": "/no/such"}}, "/no/such"),
        ({"exec": {"apiVersion": "v1", "command": "false"}}, "process returned 1"),
        ({"exec": {}}, "k: "),
        ({"client-certificate-data": "!", "client-key-data": "!"}, "certificate cannot be used"),
    ],
)
async def test_a_kubeconfig_that_gives_nothing_to_speak_with_is_said(
    tmp_path: Path, user: dict[str, Any], said: str
) -> None:
    with pytest.raises(ApiAway, match=said):
        await open_api(kubeconfig(tmp_path / "k", "https://127.0.0.1:1", user))


# A server that has just come back


def answers(*each: Answer) -> Answer:
    """Answer each request as the next of these, the last ones as the last."""
    left = list(each)

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(asked, writer)

    return answer


async def cut(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


FORBIDS = says(403, {"reason": "Forbidden", "message": "nodes is forbidden", "code": 403})


async def test_a_server_that_has_just_come_back_forbids_nothing_in_earnest() -> None:
    """It answers before it has read its roles."""
    async with talking(answers(cut, FORBIDS, FORBIDS, says(200, {}))) as (client, _):
        with pytest.raises(ApiAway):
            await client.post(NODE, {})
        with pytest.raises(ApiAway, match=r"only just come back.*nodes is forbidden"):
            await client.get(NODE)
        with pytest.raises(ApiAway, match="only just come back"):
            await followed(client)
        assert await client.get(NODE) == {}


async def test_what_is_still_forbidden_after_a_moment_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_restart, "GRACE", 0.0)
    async with talking(answers(cut, FORBIDS)) as (client, _):
        with pytest.raises(ApiAway):
            await client.post(NODE, {})
        with pytest.raises(Forbidden):
            await client.get(NODE)


async def test_other_refusals_of_a_server_that_has_just_come_back_are_believed() -> None:
    async with talking(answers(cut, says(404, {"reason": "NotFound", "code": 404}))) as (client, _):
        with pytest.raises(ApiAway):
            await client.post(NODE, {})
        with pytest.raises(NotFound):
            await client.get(NODE)

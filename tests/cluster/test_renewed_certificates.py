"""When connections are made anew, and what becomes of those before."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.cluster import api_client as client_module
from agent.cluster.api_client import Client
from agent.cluster.api_errors import ApiAway
from agent.cluster.credentials import ApiAccess, of_kubeconfig
from agent.cluster.renewed_certificates import ClientPool, Connections, marks
from agent.cluster.token_file import FixedToken

from .contract import talking
from .wire import says, wire

NODE = "/api/v1/nodes/n"


class Closable:
    """An ApiClient that is closed no sooner than it may be."""

    def __init__(self) -> None:
        self.may_close = asyncio.Event()
        self.closing = asyncio.Event()
        self.closed = asyncio.Event()

    async def close(self) -> None:
        self.closing.set()
        await self.may_close.wait()
        self.closed.set()


class Making:
    """Makes a pool when it may."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.may = asyncio.Event()
        self.may.set()
        self.began = asyncio.Event()
        self.made: list[ClientPool] = []

    async def pool(self) -> ClientPool:
        self.began.set()
        await self.may.wait()
        self.made.append(pool_of(self.file))
        return self.made[-1]


def pool_of(file: Path) -> ClientPool:
    return ClientPool("here", Closable(), FixedToken(), (file,), marks((file,)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "ca.crt"
    file.write_text("old")
    return file


@asynccontextmanager
async def connected(first: ClientPool, making: Making) -> AsyncIterator[Connections]:
    connections = Connections(first, making.pool)
    async with asyncio.timeout(60):
        yield connections
        for pool in (first, *making.made):
            pool.client.may_close.set()
        await connections.close()


async def used_until(connections: Connections, condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            async with connections.use():
                pass
            await asyncio.sleep(0.005)


def replace_file(file: Path, text: str) -> None:
    fresh = file.with_name("fresh")
    fresh.write_text(text)
    fresh.replace(file)


async def test_while_new_ones_are_made_the_present_ones_serve(file: Path) -> None:
    first, making = pool_of(file), Making(file)
    making.may.clear()
    async with connected(first, making) as connections:
        replace_file(file, "new")
        await used_until(connections, making.began.is_set)
        async with asyncio.timeout(30), connections.use() as pool:
            assert pool is first

        making.may.set()
        await used_until(connections, lambda: making.made)
        async with connections.use() as pool:
            assert [pool] == making.made


async def test_a_caller_that_goes_takes_no_making_with_it(file: Path) -> None:
    first, making = pool_of(file), Making(file)
    making.may.clear()
    async with connected(first, making) as connections:
        replace_file(file, "new")

        async def call() -> None:
            async with connections.use():
                await asyncio.Event().wait()

        caller = asyncio.create_task(call())
        async with asyncio.timeout(30):
            await making.began.wait()
        caller.cancel()
        await asyncio.wait([caller])
        making.may.set()

        await used_until(connections, lambda: making.made)

    assert len(making.made) == 1


async def test_those_before_are_closed_after_their_last_use(file: Path) -> None:
    first, making = pool_of(file), Making(file)
    first.client.may_close.set()
    async with connected(first, making) as connections:
        async with connections.use():
            replace_file(file, "new")
            await used_until(connections, lambda: first.retired)
            assert not first.client.closing.is_set()

        async with asyncio.timeout(30):
            await first.client.closed.wait()


async def test_those_before_are_closed_though_their_last_user_is_cancelled(file: Path) -> None:
    first, making = pool_of(file), Making(file)
    async with connected(first, making) as connections:
        leave = asyncio.Event()

        async def call() -> None:
            async with connections.use():
                await leave.wait()

        caller = asyncio.create_task(call())
        replace_file(file, "new")
        await used_until(connections, lambda: first.retired)
        leave.set()
        async with asyncio.timeout(30):
            await first.client.closing.wait()
            caller.cancel()
            await asyncio.wait([caller])
            first.client.may_close.set()

            await first.client.closed.wait()


async def test_files_that_are_written_anew_with_the_same_content_change_nothing(file: Path) -> None:
    first, making = pool_of(file), Making(file)
    before = first.marks
    async with connected(first, making) as connections:
        with capture_logs() as logs:
            replace_file(file, "old")
            await used_until(connections, lambda: making.made or first.marks != before)
            async with connections.use() as pool:
                assert pool is first

    assert (making.made, logs) == ([], [])
    assert first.marks == marks((file,))


async def test_what_can_not_be_made_is_told_once_and_tried_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cluster.renewed_certificates.AGAIN", 0.0)
    first, making = pool_of(file), Making(file)
    tries = 0

    async def make() -> ClientPool:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ApiAway("no certificate") if tries == 1 else ValueError("no certificate")
        return await making.pool()

    connections = Connections(first, make)
    with capture_logs() as logs:
        replace_file(file, "new")
        await used_until(connections, lambda: making.made)
    for pool in (first, *making.made):
        pool.client.may_close.set()
    await connections.close()

    warnings = [it for it in logs if it["log_level"] == "warning"]
    assert [it["error"] for it in warnings] == ["no certificate"]


async def test_files_that_are_read_for_long_are_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.cluster.renewed_certificates.SLOW", 0.01)
    first, making = pool_of(file), Making(file)
    making.may.clear()
    async with connected(first, making) as connections:
        with capture_logs() as logs:
            replace_file(file, "new")
            await used_until(connections, lambda: logs)
        making.may.set()

    assert logs[0]["error"] == f"{file}: not read within 0.01 s"


async def test_closing_waits_for_no_making(file: Path) -> None:
    first, making = pool_of(file), Making(file)
    making.may.clear()
    async with connected(first, making) as connections:
        replace_file(file, "new")
        await used_until(connections, making.began.is_set)

    assert first.client.closed.is_set()
    assert making.made == []


def kubeconfig(path: Path, server: str, **user: Any) -> None:
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    fresh = path.with_name("fresh")
    fresh.write_text(json.dumps(content))
    os.replace(fresh, path)


def tokens(directory: Path) -> None:
    for name in ("first", "second"):
        (directory / name).write_text(name)


async def said(client: Client) -> str:
    with pytest.raises(ApiAway) as away:
        await client.get(NODE)
    return str(away.value)


async def test_a_kubeconfig_rewritten_before_the_first_call_is_read_anew(tmp_path: Path) -> None:
    tokens(tmp_path)
    path = tmp_path / "k"
    async with wire(says(200, {})) as server:
        kubeconfig(path, server.url, tokenFile="first")
        access = of_kubeconfig(path)
        kubeconfig(path, server.url, tokenFile="second")
        async with talking(access) as client:
            await client.get(NODE)

    assert [it.headers["authorization"] for it in server.asked] == ["Bearer second"]


async def test_a_kubeconfig_rewritten_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens(tmp_path)
    path = tmp_path / "k"
    reads = 0

    def read(path: Path) -> ApiAccess:
        nonlocal reads
        reads += 1
        access = of_kubeconfig(path)
        if reads == 1:
            kubeconfig(path, access.server, tokenFile="second")
        return access

    monkeypatch.setattr(client_module, "of_kubeconfig", read)
    async with wire(says(200, {})) as server:
        kubeconfig(path, server.url, tokenFile="first")
        async with talking(of_kubeconfig(path)) as client, asyncio.timeout(30):
            await client.get(NODE)
            while server.asked[-1].headers["authorization"] != "Bearer second":
                await client.get(NODE)


async def test_an_error_names_the_server_that_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "k"
    kubeconfig(path, "http://127.0.0.1:1", token="t")
    async with talking(of_kubeconfig(path)) as client, asyncio.timeout(30):
        assert (await said(client)).startswith("http://127.0.0.1:1: ")
        kubeconfig(path, "http://127.0.0.1:2", token="t")
        while not (await said(client)).startswith("http://127.0.0.1:2: "):
            pass
        assert client.server == "http://127.0.0.1:2"

"""The client and the mirror with the simulated API server; tests/peers has the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from agent.cluster.api_client import Client
from agent.cluster.api_errors import Busy, Forbidden
from agent.cluster.credentials import ApiAccess, find
from agent.cluster.reflector import Reflector
from agent.testing.simapi import SimApiServer

from .contract import *  # noqa: F403
from .contract import Served, config_map, mirroring, shown, talking


@pytest.fixture
async def sim() -> AsyncIterator[SimApiServer]:
    async with SimApiServer(bookmark_every=0.5) as server:
        yield server


@pytest.fixture
async def served(sim: SimApiServer, tmp_path: Path) -> AsyncIterator[Served]:
    access = find(sim.kubeconfig(tmp_path / "k"), {})
    assert access is not None
    async with SimApiServer() as other:
        path = "/api/v1/namespaces/default/configmaps"
        for verb in ("list", "watch"):
            other.forbid(verb, path)
        stranger = find(other.kubeconfig(tmp_path / "s"), {})
        assert stranger is not None

        async def forget(client: Client) -> None:
            sim.forget_history(running=True)

        yield Served(access, stranger, "default", sim.go_away, sim.come_back, forget)


@asynccontextmanager
async def everything_mirrored(access: ApiAccess) -> AsyncIterator[Reflector[str]]:
    async with talking(access) as client, mirroring(client, "/api/v1/configmaps") as reflector:
        yield reflector


async def test_a_mirror_follows_a_token_that_is_renewed(sim: SimApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(sim.token)
    async with everything_mirrored(ApiAccess(sim.url, token_file=token)) as reflector:
        await shown(reflector, lambda it: it.synced)
        renewed = sim.renew_token()
        sim.end_watches()
        refused = await shown(reflector, lambda it: it.error)
        token.write_text(renewed)
        await shown(reflector, lambda it: not it.error)

    assert refused.error.startswith("401 Unauthorized")


async def test_a_token_that_is_not_taken_is_forbidden(sim: SimApiServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("another")
    async with talking(ApiAccess(sim.url, token_file=tmp_path / "token")) as client:
        with pytest.raises(Forbidden) as refused:
            await client.get("/api/v1/nodes")

    assert refused.value.status == 401


async def test_a_mirror_outlives_a_busy_a_broken_and_a_silent_server(
    sim: SimApiServer, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(sim.token)
    sim.put_object(config_map("a"))
    sim.be_busy(times=1)
    async with everything_mirrored(ApiAccess(sim.url, token_file=tmp_path / "token")) as reflector:
        busy = await shown(reflector, lambda it: it.error)
        await shown(reflector, lambda it: it.synced)
        sim.be_broken(times=2)
        sim.end_watches()
        broken = await shown(reflector, lambda it: it.error)
        await shown(reflector, lambda it: not it.error)
        await sim.go_away()
        away = await shown(reflector, lambda it: it.error)
        await sim.come_back()
        back = await shown(reflector, lambda it: not it.error)

    assert busy.error.startswith("429 ")
    assert "500" in broken.error
    assert sim.url in away.error
    assert broken.objects == away.objects == back.objects == {"default/a": "red"}


async def test_a_busy_server_s_pause_is_known(sim: SimApiServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(sim.token)
    sim.be_busy(retry_after=7)
    async with talking(ApiAccess(sim.url, token_file=tmp_path / "token")) as client:
        with pytest.raises(Busy) as busy:
            await client.get("/api/v1/nodes")

    assert busy.value.retry_after == 7


async def test_watches_leave_connections_for_calls(sim: SimApiServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(sim.token)
    async with (
        talking(ApiAccess(sim.url, token_file=tmp_path / "token")) as client,
        anyio.create_task_group() as group,
    ):
        for _ in range(4):
            group.start_soon(_follow, client)
        with anyio.fail_after(30):
            await sim.wait(lambda it: it.watchers == 4)
            await client.get("/api/v1/nodes")
        group.cancel_scope.cancel()


async def _follow(client: Client) -> None:
    async with client.watch("/api/v1/nodes", {}) as events:
        async for _ in events:
            pass

"""Locks of schedulers on the Node: freed by a patch that names them, through outages, and never another's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.waiting import eventually

from agent.cluster.api_client import open_api
from agent.cluster.api_errors import ApiAway
from agent.cluster.api_protocol import Api, Object, Patch
from agent.cluster.credentials import find
from agent.cluster.node_lock_state import NodeLockState
from agent.cluster.node_lock_writer import LockWriter
from agent.core.allocation.node_lock_rules import Lock, parsed_lock
from agent.core.backoff import Pauses
from agent.schedulers.common.node_lock import LOCKS
from agent.testing.simapi import SimApiServer

NODE = "node-1"
(KEY,) = LOCKS
MINE, OTHERS = "2026-11-20T21:34:09Z,default,web", "2026-11-20T21:34:10Z,default,job"


class Here:
    """A writer, its server, and between them a wire that is cut `fails` times."""

    def __init__(self, server: SimApiServer, locks: NodeLockState, writer: LockWriter, api: Api) -> None:
        self.server, self.locks, self.writer = server, locks, writer
        self.fails = self.tried = 0
        #: Called while a patch is under way.
        self.meanwhile: Callable[[], None] = lambda: None
        self._patch = api.patch
        setattr(api, "patch", self.patch)  # noqa: B010

    async def patch(self, path: str, body: Any, kind: Patch = "merge") -> Object:
        self.meanwhile()
        if self.fails:
            self.fails -= 1
            raise ApiAway("gone")
        try:
            return await self._patch(path, body, kind)
        finally:
            self.tried += 1

    def stands(self, value: str) -> None:
        annotations = {KEY: value, "others": "word"}
        metadata = {"name": NODE, "annotations": annotations}
        self.server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": metadata})

    @property
    def annotations(self) -> dict[str, str]:
        node = self.server.find("Node", NODE)
        assert node is not None
        found: dict[str, str] = node["metadata"]["annotations"]
        return found


@asynccontextmanager
async def writing(tmp_path: Path, pauses: Pauses | None = None) -> AsyncIterator[Here]:
    async with SimApiServer() as server:
        access = find(server.kubeconfig(tmp_path / "kubeconfig"), {})
        assert access is not None
        api, locks = await open_api(access), NodeLockState()
        writer = LockWriter(api, NODE, locks, pauses or Pauses(0.01, 0.05))
        try:
            async with anyio.create_task_group() as group:
                here = Here(server, locks, writer, api)
                group.start_soon(writer.run)
                yield here
                group.cancel_scope.cancel()
        finally:
            await api.close()


def over(value: str) -> dict[Lock, str]:
    found = parsed_lock(KEY, value)
    assert found is not None
    return {found: "its pod has its devices"}


async def test_a_lock_that_is_over_is_freed_and_nothing_else_is_touched(tmp_path: Path) -> None:
    async with writing(tmp_path) as here:
        here.stands(MINE)

        here.locks.over.set(over(MINE))

        await eventually(lambda: here.writer.freed)
        assert here.annotations == {"others": "word"}


async def test_a_lock_that_another_pod_has_by_now_stays(tmp_path: Path) -> None:
    async with writing(tmp_path) as here:
        here.stands(OTHERS)

        here.locks.over.set(over(MINE))

        await eventually(lambda: here.tried)
        assert here.annotations[KEY] == OTHERS
        assert here.writer.freed == 0


async def test_a_lock_that_may_not_be_freed_is_said_until_it_is_over_otherwise(tmp_path: Path) -> None:
    async with writing(tmp_path) as here:
        here.stands(MINE)
        here.server.forbid("patch", f"/api/v1/nodes/{NODE}")

        here.locks.over.set(over(MINE))

        await eventually(lambda: here.writer.error)
        assert "403 Forbidden" in here.writer.error
        assert "where labels.output is not none" in here.writer.error
        assert here.annotations[KEY] == MINE
        here.locks.over.set({})  # a scheduler has ended it, which the mirror of the Node shows
        await eventually(lambda: not here.writer.error)


async def test_a_lock_is_freed_once_the_right_is_given(tmp_path: Path) -> None:
    async with writing(tmp_path) as here:
        here.stands(MINE)
        here.server.forbid("patch", f"/api/v1/nodes/{NODE}")
        here.locks.over.set(over(MINE))
        await eventually(lambda: here.tried)

        here.server.permit("patch", f"/api/v1/nodes/{NODE}")

        await eventually(lambda: here.writer.freed)
        assert here.annotations == {"others": "word"}


async def test_a_lock_is_freed_once_the_api_server_is_back(tmp_path: Path) -> None:
    async with writing(tmp_path) as here:
        here.stands(MINE)
        here.fails = 3

        here.locks.over.set(over(MINE))

        await eventually(lambda: KEY not in here.annotations)
        await eventually(lambda: here.writer.freed)
        assert (here.fails, here.writer.error) == (0, "")


@pytest.mark.parametrize("fails", [0, 1])
async def test_a_lock_that_is_over_while_another_one_is_freed_does_not_wait_for_a_pause(
    tmp_path: Path, fails: int
) -> None:
    async with writing(tmp_path, Pauses(3600.0, 3600.0)) as here:
        here.stands(OTHERS)
        here.fails = fails

        def takes() -> None:
            here.locks.over.set(over(OTHERS))

        here.meanwhile = takes
        here.locks.over.set(over(MINE))

        await eventually(lambda: here.writer.freed)
        assert here.annotations == {"others": "word"}


async def test_a_lock_that_is_over_no_more_is_left_alone(tmp_path: Path) -> None:
    async with writing(tmp_path) as here:
        here.stands(MINE)
        here.server.forbid("patch", f"/api/v1/nodes/{NODE}")
        here.locks.over.set(over(MINE))
        await eventually(lambda: here.writer.error)

        here.locks.over.set({})
        await eventually(lambda: not here.writer.error)
        here.server.permit("patch", f"/api/v1/nodes/{NODE}")

        here.stands(OTHERS)
        here.locks.over.set(over(OTHERS))
        await eventually(lambda: here.writer.freed)
        assert here.writer.freed == 1

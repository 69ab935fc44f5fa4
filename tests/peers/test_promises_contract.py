"""What schedulers write at the real API server: whose an annotation is, and how a lock of a Node is freed."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from support.read_annotations import READS
from support.waiting import eventually

from agent.cluster.api_client import open_api
from agent.cluster.api_errors import ApiRefused
from agent.cluster.api_protocol import Api
from agent.cluster.credentials import find
from agent.cluster.node_lock_writer import LockWriter
from agent.cluster.own_node import path
from agent.cluster.pod_state import PodState
from agent.cluster.pods import candidate
from agent.core.allocation.node_lock_rules import Lock, freeing_patch, parsed_lock
from agent.core.backoff import Pauses
from agent.schedulers.common.node_lock import LOCKS
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED

from .apiserver import RealApiServer

(KEY,) = LOCKS
MINE, OTHERS = "2026-11-20T21:34:09Z,default,web", "2026-11-20T21:34:10Z,default,job"


@pytest.mark.parametrize(
    ("managers", "scheduler"),
    [
        (["koord-scheduler"], "koord-scheduler"),
        (["koord-scheduler", "kubectl-annotate"], "default-scheduler"),
        (["kubectl-annotate"], "default-scheduler"),
    ],
    ids=["it wrote", "somebody wrote after it", "somebody wrote"],
)
async def test_whose_an_annotation_is_tells_koord_scheduler_under_another_name(
    api_server: RealApiServer, managers: list[str], scheduler: str
) -> None:
    namespace = f"promises-{secrets.token_hex(4)}"
    await api_server.kubectl("create", "namespace", namespace)
    await api_server.kubectl("create", "serviceaccount", "default", "-n", namespace)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none"}],
        },
    }
    await api_server.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    for number, manager in enumerate(managers):
        said = f'{ALLOCATED}={{"gpu":[{{"minor":{number}}}]}}'
        options = ("-n", namespace, "--overwrite", f"--field-manager={manager}")
        await api_server.kubectl("annotate", "pod", "web", said, *options)

    shown = await api_server.kubectl(
        "get", "pod", "web", "-n", namespace, "-o", "json", "--show-managed-fields"
    )

    found = candidate(json.loads(shown), READS)
    assert found is not None
    assert found.scheduler == scheduler
    assert ALLOCATED in found.annotations


@dataclass(frozen=True)
class Here:
    """A Node of the test's own with a lock, and what frees it."""

    server: RealApiServer
    api: Api
    name: str
    scheduled: PodState
    writer: LockWriter

    async def annotations(self) -> dict[str, str]:
        shown = json.loads(await self.server.kubectl("get", "node", self.name, "-o", "json"))
        found: dict[str, str] = shown["metadata"]["annotations"]
        return found


@asynccontextmanager
async def locked(server: RealApiServer, directory: Path, stands: str) -> AsyncIterator[Here]:
    name = f"node-{secrets.token_hex(4)}"
    metadata = {"name": name, "annotations": {KEY: stands, "others": "word"}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    await server.kubectl("create", "-f", "-", stdin=json.dumps(node))
    access = find(server.kubeconfig(directory / "kubeconfig"), {})
    assert access is not None
    api: Api = await open_api(access)
    scheduled = PodState()
    writer = LockWriter(api, name, scheduled.locks, Pauses(0.01, 0.05))
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(writer.run)
            yield Here(server, api, name, scheduled, writer)
            group.cancel_scope.cancel()
    finally:
        await api.close()
        await server.kubectl("delete", "node", name)


def the(value: str) -> Lock:
    found = parsed_lock(KEY, value)
    assert found is not None
    return found


async def test_a_lock_is_freed_and_nothing_else_is_touched(api_server: RealApiServer, tmp_path: Path) -> None:
    async with locked(api_server, tmp_path, MINE) as here:
        here.scheduled.locks.over.set({the(MINE): "its pod has its devices"})

        await eventually(lambda: here.writer.freed)

        left = await here.annotations()
        assert KEY not in left
        assert left["others"] == "word"


async def test_the_patch_of_a_lock_that_another_pod_has_by_now_is_refused_whole(
    api_server: RealApiServer, tmp_path: Path
) -> None:
    async with locked(api_server, tmp_path, OTHERS) as here:
        with pytest.raises(ApiRefused) as refused:
            await here.api.patch(path(here.name), freeing_patch(the(MINE)), "json")

        assert refused.value.status == 422
        assert (await here.annotations())[KEY] == OTHERS

"""The real API server takes what pods are to tell their schedulers, for the pod of that uid and no other."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.waiting import eventually

from agent.cluster.api_client import open_api
from agent.cluster.api_errors import ApiRefused, NotFound
from agent.cluster.api_protocol import Api
from agent.cluster.credentials import find
from agent.cluster.receipt_writer import ReceiptWriter, patch, path
from agent.core.cell import Cell
from agent.core.publishing.receipt_rules import OwedReceipt

from .apiserver import RealApiServer

KEY = "acme.com/assigned"


@dataclass
class Here:
    """A pod of the test's own at the real server, and who writes to it."""

    server: RealApiServer
    namespace: str
    api: Api
    owed: Cell[tuple[OwedReceipt, ...]]
    writer: ReceiptWriter

    async def pod(self) -> Mapping[str, Any]:
        found: Any = json.loads(
            await self.server.kubectl("get", "pod", "web", "--namespace", self.namespace, "-o", "json")
        )
        its: Mapping[str, Any] = found
        return its

    async def made(self) -> str:
        """Make the pod, or make it anew; its uid."""
        await self.server.kubectl(
            *("delete", "pod", "web", "--namespace", self.namespace, "--ignore-not-found", "--force")
        )
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "annotations": {"their.io/x": "1", KEY: "false"}},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "i"}]},
        }
        await self.server.kubectl("create", "--namespace", self.namespace, "-f", "-", stdin=json.dumps(pod))
        uid: str = (await self.pod())["metadata"]["uid"]
        return uid

    def owes(self, uid: str) -> OwedReceipt:
        return OwedReceipt(uid, self.namespace, "web", {KEY: "true"}, {KEY: "false"})


@asynccontextmanager
async def writing(server: RealApiServer, directory: Path) -> AsyncIterator[Here]:
    namespace = f"test-{secrets.token_hex(4)}"
    await server.kubectl("create", "namespace", namespace)
    await server.kubectl("create", "serviceaccount", "default", "--namespace", namespace)
    access = find(server.kubeconfig(directory / secrets.token_hex(4), None), {})
    assert access is not None
    api = await open_api(access)
    owed: Cell[tuple[OwedReceipt, ...]] = Cell(())
    writer = ReceiptWriter(api, owed, away=(0.01, 0.1), refused=(0.01, 0.1), again=(0.01, 0.1))
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(writer.run, Cell(0))
            yield Here(server, namespace, api, owed, writer)
            group.cancel_scope.cancel()
    finally:
        await api.close()


async def test_a_pod_gets_its_annotation_and_stays_as_it_is_otherwise(
    api_server: RealApiServer, tmp_path: Path
) -> None:
    async with writing(api_server, tmp_path) as here:
        uid = await here.made()
        before = await here.pod()

        here.owed.set((here.owes(uid),))

        await eventually(lambda: here.writer.writes)
        after = await here.pod()
        assert after["metadata"]["annotations"] == {"their.io/x": "1", KEY: "true"}
        assert (after["spec"], after["status"]) == (before["spec"], before["status"])


async def test_what_stands_there_already_changes_nothing_on_the_server(
    api_server: RealApiServer, tmp_path: Path
) -> None:
    async with writing(api_server, tmp_path) as here:
        it = here.owes(await here.made())
        await here.api.patch(path(it), patch(it))
        before = await here.pod()

        await here.api.patch(path(it), patch(it))

        assert (await here.pod())["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_pod_that_was_made_anew_under_its_name_is_not_written_to(
    api_server: RealApiServer, tmp_path: Path
) -> None:
    async with writing(api_server, tmp_path) as here:
        old = here.owes(await here.made())
        await here.made()

        with pytest.raises(ApiRefused, match=r"uid.*immutable"):
            await here.api.patch(path(old), patch(old))

        assert (await here.pod())["metadata"]["annotations"][KEY] == "false"


async def test_of_a_pod_that_is_gone_none_is_made(api_server: RealApiServer, tmp_path: Path) -> None:
    async with writing(api_server, tmp_path) as here:
        with pytest.raises(NotFound):
            await here.api.patch(path(here.owes("gone")), patch(here.owes("gone")))


async def test_without_the_right_it_is_told_and_written_once_it_is_given(
    api_server: RealApiServer, tmp_path: Path
) -> None:
    async with writing(api_server, tmp_path) as admins:
        uid = await admins.made()
        token = await api_server.service_account_token("default", admins.namespace)
        access = find(api_server.kubeconfig(tmp_path / "poor", token), {})
        assert access is not None
        api = await open_api(access)
        writer = ReceiptWriter(api, Cell((admins.owes(uid),)), refused=(0.01, 0.1), again=(0.01, 0.1))
        async with anyio.create_task_group() as group:
            group.start_soon(writer.run, Cell(0))
            await eventually(
                lambda: "cannot patch resource" in writer.error and "pods.receipts" in writer.error
            )

            here = ("--namespace", admins.namespace)
            await api_server.kubectl("create", "role", "marks", "--verb=patch", "--resource=pods", *here)
            account = f"--serviceaccount={admins.namespace}:default"
            await api_server.kubectl("create", "rolebinding", "marks", "--role=marks", account, *here)

            await eventually(lambda: writer.writes and not writer.error)
            group.cancel_scope.cancel()
        await api.close()
        assert (await admins.pod())["metadata"]["annotations"][KEY] == "true"

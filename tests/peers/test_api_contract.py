"""The client and the mirror with the real kube-apiserver: what holds with the simulated one, and TLS."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from cluster.contract import *  # noqa: F403
from cluster.contract import Served, config_map, talking
from support.waiting import eventually

from agent.cluster.api_client import Client
from agent.cluster.api_errors import ApiAway, Forbidden
from agent.cluster.credentials import ApiAccess, find

from .apiserver import RealApiServer


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def restarted(cluster_binary: Path) -> AsyncIterator[RealApiServer]:
    """A server for this module alone, which stops and starts it."""
    with tempfile.TemporaryDirectory(prefix="api-") as directory:
        async with RealApiServer(cluster_binary, Path(directory), users={"nobody": ()}) as server:
            yield server


@pytest.fixture
async def served(restarted: RealApiServer, tmp_path: Path) -> Served:
    namespace = f"test-{secrets.token_hex(4)}"
    access = accessed(restarted.kubeconfig(tmp_path / "k"))
    stranger = accessed(restarted.kubeconfig(tmp_path / "s", restarted.token_for("nobody")))
    async with talking(access) as client:
        await client.post("/api/v1/namespaces", {"metadata": {"name": namespace}})

    async def forget(client: Client) -> None:
        """What is written elsewhere makes our versions old; the cache of before ends with the process."""
        await client.post("/api/v1/namespaces/default/configmaps", {"metadata": {"generateName": "other-"}})
        await restarted.kill()
        await restarted.start()

    # Not stopped: in good order it would wait a minute for its watches.
    return Served(access, stranger, namespace, restarted.kill, restarted.start, forget)


def accessed(kubeconfig: Path) -> ApiAccess:
    access = find(kubeconfig, {})
    assert access is not None
    return access


async def in_pod(server: RealApiServer, namespace: str, directory: Path) -> ApiAccess:
    """The way in that a pod has, by a service account of the namespace."""
    await server.kubectl("create", "--namespace", namespace, "serviceaccount", "agent")
    (directory / "token").write_text(await server.service_account_token("agent", namespace))
    (directory / "ca.crt").write_bytes(server.ca.read_bytes())
    (directory / "namespace").write_text(namespace)
    host, _, port = server.url.removeprefix("https://").rpartition(":")
    access = find(None, {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}, directory)
    assert access is not None
    return access


async def test_a_pod_may_do_what_is_bound_to_its_service_account(
    restarted: RealApiServer, served: Served, tmp_path: Path
) -> None:
    where = ("--namespace", served.namespace)
    access = await in_pod(restarted, served.namespace, tmp_path)
    await restarted.kubectl("create", *where, "role", "reader", "--verb=get", "--resource=configmaps")
    account = f"--serviceaccount={served.namespace}:agent"
    async with talking(served.access) as admin, talking(access) as client:
        await admin.post(served.path, config_map("a"))
        with pytest.raises(Forbidden, match="403 Forbidden"):
            await client.get(f"{served.path}/a")
        await restarted.kubectl("create", *where, "rolebinding", "reads", "--role=reader", account)
        await eventually(lambda: may_read(client, f"{served.path}/a"))
        with pytest.raises(Forbidden, match='cannot create resource "configmaps"'):
            await client.post(served.path, config_map("b"))

    assert access.namespace == served.namespace


async def may_read(client: Client, path: str) -> bool:
    """The server takes a moment to know of a new binding."""
    try:
        await client.get(path)
    except Forbidden:
        return False
    return True


async def test_a_token_that_is_renewed_in_its_file_is_taken(
    restarted: RealApiServer, served: Served, tmp_path: Path
) -> None:
    access = await in_pod(restarted, served.namespace, tmp_path)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    async with talking(access) as client:
        (tmp_path / "token").write_text("worn-out")
        with pytest.raises(Forbidden, match="401 Unauthorized"):
            await client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        (tmp_path / "token").write_text(await restarted.service_account_token("agent", served.namespace))
        answer = await client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)

    user = answer["status"]["userInfo"]["username"]
    assert user == f"system:serviceaccount:{served.namespace}:agent"


async def test_a_server_whose_ca_is_another_s_is_not_spoken_with(served: Served) -> None:
    async with talking(ApiAccess(served.access.server)) as client:
        with pytest.raises(ApiAway, match="certificate verify failed"):
            await client.get("/version")

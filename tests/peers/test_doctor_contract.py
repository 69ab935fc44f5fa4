"""The doctor at a real API server: its rights by review, the node's pods, and the Node itself."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest_asyncio
import yaml

from agent.cluster.api_client import Client, open_api
from agent.cluster.credentials import find
from agent.doctor.api_questions import cluster_of, node_of
from agent.doctor.required_rights import required

from .apiserver import RealApiServer

MANIFEST = Path(__file__).parents[2] / "deploy/manifests/xpu-agent.yaml"


@pytest_asyncio.fixture(loop_scope="session")
async def place(api_server: RealApiServer) -> AsyncIterator[str]:
    """A namespace whose service account has the rights of our manifests, and a Node of the same name."""
    name = f"doctor-{secrets.token_hex(4)}"
    (role,) = (it for it in documents() if it["kind"] == "ClusterRole")
    subject = {"kind": "ServiceAccount", "name": "agent", "namespace": name}
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent", "namespace": name}},
        {**role, "metadata": {"name": name}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    ]
    await api_server.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))
    yield name
    await api_server.kubectl("delete", "--wait=false", f"clusterrolebinding/{name}", f"clusterrole/{name}")
    await api_server.kubectl("delete", "--wait=false", f"node/{name}", f"namespace/{name}")


def documents() -> list[dict[str, Any]]:
    return [it for it in yaml.safe_load_all(MANIFEST.read_text()) if it]


@asynccontextmanager
async def client(server: RealApiServer, path: Path, token: str) -> AsyncIterator[Client]:
    access = find(server.kubeconfig(path, token), {})
    assert access is not None
    api = await open_api(access)
    try:
        yield api
    finally:
        await api.close()


async def test_the_rights_of_our_manifests_are_all_that_the_agent_needs(
    api_server: RealApiServer, place: str, tmp_path: Path
) -> None:
    needs = required(place, place, "file")
    token = await api_server.service_account_token("agent", place)
    async with client(api_server, tmp_path / "k", token) as api:
        node, broken = await node_of(api, place)
        seen = await cluster_of(api, node, place, needs)
        at_the_node = await cluster_of(api, node, place, required(place, place, "node"))
        by_an_object = await cluster_of(api, node, place, required(place, place, "nodeFeature"))

    assert broken == ""
    assert (node.value or {})["metadata"]["name"] == place
    assert seen.denied.value == ()
    assert at_the_node.denied.value == ()  # the policy of the manifests keeps it to its own
    assert {it.verb for it in by_an_object.denied.value or ()} == {"get", "create", "update", "delete"}


async def test_who_has_no_rights_is_told_each_one_that_is_missing(
    api_server: RealApiServer, place: str, tmp_path: Path
) -> None:
    needs = required(place, place, "nodeFeature")
    async with client(api_server, tmp_path / "k", api_server.token_for("nobody")) as api:
        node, broken = await node_of(api, place)
        seen = await cluster_of(api, node, place, needs)

    assert broken == ""
    assert "403 Forbidden" in node.why
    assert "403 Forbidden" in seen.pods.why
    assert seen.denied.value == needs


async def test_a_token_that_is_not_taken_leads_nowhere(
    api_server: RealApiServer, place: str, tmp_path: Path
) -> None:
    async with client(api_server, tmp_path / "k", "made-up") as api:
        _, broken = await node_of(api, place)

    assert broken.startswith("401")


async def test_a_node_that_is_not_there_is_404(api_server: RealApiServer, tmp_path: Path) -> None:
    async with client(api_server, tmp_path / "k", api_server.token) as api:
        node, broken = await node_of(api, "nowhere")

    assert broken == ""
    assert node.why.startswith("404")


async def test_the_pods_of_this_node_are_seen_with_what_the_kubelet_said(
    api_server: RealApiServer, place: str, tmp_path: Path
) -> None:
    container = {"name": "main", "image": "a", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stuck"},
        "spec": {"nodeName": place, "containers": [container], "automountServiceAccountToken": False},
    }
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed due to x"}
    async with client(api_server, tmp_path / "k", api_server.token) as api:
        await api.post(f"/api/v1/namespaces/{place}/serviceaccounts", {"metadata": {"name": "default"}})
        at = f"/api/v1/namespaces/{place}/pods"
        await api.post(at, body)
        await api.patch(f"{at}/stuck/status", {"status": status})
        node, _ = await node_of(api, place)
        seen = await cluster_of(api, node, place, ())

    (pod,) = seen.pods.value or ()
    assert pod["metadata"]["name"] == "stuck"
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert pod["spec"]["containers"][0]["env"] == container["env"]

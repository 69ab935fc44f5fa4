"""The real API server itself: what other tests and the cluster build on."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.waiting import eventually

from .apiserver import KubectlFailed, RealApiServer, ServerDown

COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
PATIENCE = 30.0
HERE = Path(__file__).parent


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="api-") as path:
        yield Path(path)


@pytest.fixture
async def namespace(api_server: RealApiServer) -> str:
    """A namespace of the test's own; it is left, since nothing would carry out its deletion."""
    name = f"test-{secrets.token_hex(4)}"
    await api_server.kubectl("create", "namespace", name)
    return name


def test_the_two_modules_need_no_module_in_two_versions() -> None:
    peers, cluster = versions(HERE / "go.mod"), versions(HERE / "cluster" / "go.mod")
    shared = peers.keys() & cluster.keys()
    assert len(shared) > 50
    assert {module: peers[module] for module in shared} == {module: cluster[module] for module in shared}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_binary_is_every_part_of_the_release(cluster_binary: Path, command: str) -> None:
    run = subprocess.run([cluster_binary, command, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"Kubernetes v{release(cluster_binary)}\n"


def test_the_binary_is_what_it_is_called(cluster_binary: Path, directory: Path) -> None:
    kubectl = directory / "kubectl"
    kubectl.symlink_to(cluster_binary)
    run = subprocess.run([kubectl, "version", "--client"], capture_output=True, text=True, check=True)
    assert f"Client Version: v{release(cluster_binary)}\n" in run.stdout


async def test_the_server_is_of_the_release(api_server: RealApiServer, cluster_binary: Path) -> None:
    version = json.loads(await api_server.kubectl("get", "--raw", "/version"))
    assert version["gitVersion"] == f"v{release(cluster_binary)}"


async def test_objects_are_created_read_changed_and_deleted(
    api_server: RealApiServer, namespace: str
) -> None:
    where = ("--namespace", namespace)
    await api_server.kubectl("create", *where, "-f", "-", stdin=config_map("box", colour="red"))
    await api_server.kubectl("patch", *where, "configmap", "box", "--patch", '{"data": {"colour": "blue"}}')
    assert json.loads(await api_server.kubectl("get", *where, "configmap", "box", "--output", "json"))[
        "data"
    ] == {"colour": "blue"}
    await api_server.kubectl("delete", *where, "configmap", "box")
    with pytest.raises(KubectlFailed, match="NotFound"):
        await api_server.kubectl("get", *where, "configmap", "box")


async def test_a_user_may_do_what_is_bound_to_him_and_nothing_else(
    api_server: RealApiServer, namespace: str
) -> None:
    token, where = api_server.token_for("agent"), ("--namespace", namespace)
    with pytest.raises(KubectlFailed, match=r'Forbidden.*"agent" cannot list resource "configmaps"'):
        await api_server.kubectl("get", *where, "configmaps", token=token)

    await api_server.kubectl("create", *where, "role", "reader", "--verb=list", "--resource=configmaps")
    await api_server.kubectl("create", *where, "rolebinding", "reader", "--role=reader", "--user=agent")
    await accepted(lambda: api_server.kubectl("get", *where, "configmaps", token=token))
    with pytest.raises(KubectlFailed, match="Forbidden"):
        await api_server.kubectl("get", *where, "secrets", token=token)


async def test_a_token_that_nobody_was_given_is_refused(api_server: RealApiServer) -> None:
    with pytest.raises(KubectlFailed, match=r"Unauthorized|must be logged in") as refused:
        await api_server.kubectl("get", "namespaces", token="0" * 32)
    assert "0" * 32 not in str(refused.value), "what a test fails with is read by everybody"


async def test_a_service_account_has_tokens_as_pods_have_them(
    api_server: RealApiServer, namespace: str
) -> None:
    await api_server.kubectl("create", "serviceaccount", "pod", "--namespace", namespace)
    token = await api_server.service_account_token("pod", namespace)
    seen = json.loads(await api_server.kubectl("auth", "whoami", "--output", "json", token=token))
    assert seen["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:pod"


async def test_a_kubeconfig_is_all_that_a_client_needs(
    api_server: RealApiServer, cluster_binary: Path, directory: Path
) -> None:
    path = api_server.kubeconfig(directory / "config", api_server.token_for("nobody"))
    assert path.stat().st_mode & 0o777 == 0o600
    run = await asyncio.create_subprocess_exec(
        *(cluster_binary, "kubectl", "--kubeconfig", path, "auth", "whoami"), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await run.communicate()
    assert b"nobody" in printed


async def test_admission_policies_are_enforced(api_server: RealApiServer, namespace: str) -> None:
    await api_server.kubectl("apply", "-f", "-", stdin=no_bad_names(namespace))
    attempts = (f"bad-{number}" for number in range(1000))

    async def refusal() -> str:
        where = ("--namespace", namespace)
        try:
            await api_server.kubectl("create", *where, "-f", "-", stdin=config_map(next(attempts)))
        except KubectlFailed as error:
            return str(error)
        return ""

    words = await eventually(refusal, PATIENCE)  # a new policy takes effect some time after it was accepted
    assert "no bad names here" in words
    await api_server.kubectl("create", "--namespace", namespace, "-f", "-", stdin=config_map("good"))


@pytest.mark.parametrize("end", [RealApiServer.stop, RealApiServer.kill], ids=["stopped", "killed"])
async def test_objects_and_address_outlive_the_server_and_watches_do_not(
    api_server: RealApiServer, namespace: str, end: Callable[[RealApiServer], Awaitable[None]]
) -> None:
    await api_server.kubectl("create", "--namespace", namespace, "-f", "-", stdin=config_map("box"))
    url = api_server.url
    with Watch(api_server, f"/api/v1/namespaces/{namespace}/configmaps?watch=true") as watch:
        assert (await watch.next())["object"]["metadata"]["name"] == "box"
        await end(api_server)
        assert await watch.rest() == b""
    with pytest.raises(ServerDown):
        _ = api_server.pid
    with pytest.raises(KubectlFailed, match="refused"):
        await api_server.kubectl("get", "namespaces")
    await api_server.start()
    assert api_server.url == url
    await api_server.kubectl("get", "--namespace", namespace, "configmap", "box")


async def test_nothing_is_left_of_a_server_that_was_stopped(cluster_binary: Path, directory: Path) -> None:
    async with RealApiServer(cluster_binary, directory) as server:
        pid = server.pid
        assert is_served(server.url)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not is_served(server.url)


async def test_a_server_dies_with_the_process_that_started_it(cluster_binary: Path, directory: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, cluster_binary, directory),
        cwd=Path(__file__).parents[1],
        stdout=asyncio.subprocess.PIPE,
    )
    assert owner.stdout is not None
    url = (await owner.stdout.readline()).decode().strip()
    assert is_served(url)
    os.kill(owner.pid, signal.SIGKILL)
    await owner.wait()
    await unserved(url)


async def test_a_server_that_does_not_come_up_says_why(cluster_binary: Path, directory: Path) -> None:
    with pytest.raises(ServerDown, match="unknown flag: --no-such-flag"):
        async with RealApiServer(cluster_binary, directory, flags=["--no-such-flag"]):
            pass


OWNER = """
import asyncio, pathlib, sys
from peers.apiserver import RealApiServer

async def own():
    async with RealApiServer(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(own())
"""


class Watch:
    """A watch as bytes on a connection, since kubectl's would hide how it ended."""

    def __init__(self, server: RealApiServer, path: str) -> None:
        trust = ssl.create_default_context(cafile=server.ca)
        host, _, port = server.url.removeprefix("https://").partition(":")
        self._connection = http.client.HTTPSConnection(host, int(port), context=trust, timeout=PATIENCE)
        self._headers = {"Authorization": f"Bearer {server.token}"}
        self._path = path
        self._response: http.client.HTTPResponse | None = None

    def __enter__(self) -> Watch:
        self._connection.request("GET", self._path, headers=self._headers)
        self._response = self._connection.getresponse()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    async def next(self) -> dict[str, dict[str, dict[str, str]]]:
        assert self._response is not None
        line: dict[str, dict[str, dict[str, str]]] = json.loads(
            await asyncio.to_thread(self._response.readline)
        )
        return line

    async def rest(self) -> bytes:
        """What comes until the connection ends, well or badly."""
        assert self._response is not None
        try:
            return await asyncio.to_thread(self._response.read)
        except http.client.IncompleteRead as error:
            return error.partial
        except ConnectionError:
            return b""


def versions(modfile: Path) -> dict[str, str]:
    """The modules that it names, as replaced."""
    text = modfile.read_text()
    required = re.findall(r"^\s+(\S+) (v\S+)", text, re.MULTILINE)
    return dict(required) | dict(re.findall(r"=> (\S+) (v\S+)", text))


def release(binary: Path) -> str:
    return binary.name.removeprefix("cluster-")


def config_map(name: str, **content: str) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": content})


def no_bad_names(namespace: str) -> str:
    """A ValidatingAdmissionPolicy with its binding, for ConfigMaps of one namespace."""
    api, name = "admissionregistration.k8s.io/v1", {"name": f"no-bad-names-{namespace}"}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    within = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    policy = {
        "matchConstraints": {"resourceRules": [rule], **within},
        "validations": [
            {"expression": "!object.metadata.name.startsWith('bad-')", "message": "no bad names here"}
        ],
    }
    binding = {"policyName": name["name"], "validationActions": ["Deny"]}
    items = [
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": name, "spec": policy},
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": name, "spec": binding},
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def is_served(url: str) -> bool:
    host, _, port = url.removeprefix("https://").partition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


async def unserved(url: str) -> None:
    await eventually(lambda: not is_served(url), PATIENCE)


async def accepted(call: Callable[[], Awaitable[str]]) -> str:
    """Call until it is not forbidden any more: a new binding takes effect some time after it was accepted."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except KubectlFailed as error:
                if "Forbidden" not in str(error):
                    raise

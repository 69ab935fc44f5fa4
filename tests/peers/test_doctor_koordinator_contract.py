"""The doctor beside Koordinator at a real API server: what it asks is answered, faults are found there."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest_asyncio
import yaml
from cluster.koordlets import cards as of_koordlet
from scenarios.cards import Simulated

from agent.cluster.credentials import NamedKubeconfig
from agent.doctor.checks import examined
from agent.doctor.doctor_arguments import DoctorArguments
from agent.doctor.survey import survey
from agent.scheduler_api.findings import Finding, Severity
from agent.scheduler_api.node_report import Report, ReportedCard
from agent.schedulers.koordinator.device_object import device

from .apiserver import RealApiServer

CRD = Path(__file__).parents[2] / "deploy/crd/devices.scheduling.koordinator.sh.yaml"
MANIFEST = Path(__file__).parents[2] / "deploy/manifests/xpu-agent.yaml"
KIND = "devices.scheduling.koordinator.sh"
GIB = 1 << 30
CHECKS = (
    *("koordinator", "koord-programs", "koordlet", "device-daemon"),
    *("koord-device", "koord-node", "scheduler-locks", "koord-pods"),
)
CORE, RATIO, MEMORY = (f"koordinator.sh/gpu-{it}" for it in ("core", "memory-ratio", "memory"))


@dataclass
class Place:
    """A Node and a namespace of the test's own, and a machine with two simulated cards."""

    server: RealApiServer
    root: Path
    name: str
    cards: Simulated
    made: list[str] = field(default_factory=list)

    async def make(self, *objects: Mapping[str, Any], verb: str = "create") -> None:
        for it in objects:
            await self.server.kubectl(verb, "-f", "-", stdin=json.dumps(it))
            namespace = it["metadata"].get("namespace")
            if verb == "create":
                at = f"{it['kind']}/{it['metadata']['name']}"
                self.made.append(f"{at} --namespace={namespace}" if namespace else at)

    async def offer(self, **more: Any) -> None:
        """Bring the Node to what koord-manager makes of two whole cards."""
        amounts = {CORE: "200", RATIO: "200"}
        status = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
        await self.server.kubectl("patch", "node", self.name, "--subresource=status", "--patch", status)
        labels = {"node.koordinator.sh/gpu-vendor": "simulated", "node.koordinator.sh/gpu-model": "X1"}
        metadata = json.dumps({"metadata": {"labels": labels, **more}})
        await self.server.kubectl("patch", "node", self.name, "--patch", metadata)

    async def write_device(self, name: str = "", vendor: str = "simulated") -> None:
        """As the agent writes it."""
        its = tuple(ReportedCard(uuid, minor, memory=48 * GIB) for minor, uuid in enumerate(self.cards.uuids))
        written = device(name or self.name, "", Report(vendor, its, "X1"), None, 0)
        assert written is not None
        await self.make(written)

    async def findings(self, *, mode: str = "auto", token: str | None = None) -> list[Finding]:
        config = self.root / "config.yaml"
        vendor = {"enabled": True, **self.cards.settings, "resources": [{"name": "example.com/xpu"}]}
        report = {"mode": mode, "deviceInfosDir": str(self.root)}
        config.write_text(json.dumps({"vendors": {"simulated": vendor}, "report": report}, default=list))
        kubeconfig = self.server.kubeconfig(self.root / secrets.token_hex(4), token)
        given = {
            "config": str(config),
            "kubelet-dir": "/nowhere/device-plugins",
            "pod-resources-socket": "/nowhere/pods.sock",
            "state-dir": str(self.root / "state"),
            "cdi-dir": "/nowhere/cdi",
            "http": "off",
        }
        around = await survey(DoctorArguments(self.name, given, {}, NamedKubeconfig(kubeconfig), self.root))
        return await anyio.to_thread.run_sync(lambda: list(examined(around)))


def ailments(findings: Iterable[Finding]) -> set[str]:
    return {it.kind for it in findings if it.check in CHECKS} - {""}


def pod(place: Place, name: str, container: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": place.name, **more.pop("metadata", {})}
    spec = {"automountServiceAccountToken": False, "schedulerName": "koord-scheduler", **more}
    containers = [{"name": "main", "image": "a", **container}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**spec, "containers": containers},
    }


def program(place: Place, app: str, gates: str) -> dict[str, Any]:
    container = {"command": [f"/{app}"], "args": [f"--feature-gates={gates}"]}
    return pod(place, app, container, metadata={"labels": {"koord-app": app}}, nodeName="elsewhere")


@pytest_asyncio.fixture(loop_scope="session")
async def place(api_server: RealApiServer, tmp_path: Path) -> AsyncIterator[Place]:
    await api_server.kubectl("apply", "--server-side", "--validate=strict", "--filename", str(CRD))
    await api_server.kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=30s")
    name = f"koord-{secrets.token_hex(4)}"
    it = Place(api_server, tmp_path, name, Simulated(tmp_path, 2))
    await it.make(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}},
    )
    yield it
    for made in reversed(it.made):
        now = ("--grace-period=0", "--force") if made.startswith("Pod/") else ()
        options = ("--wait=false", "--ignore-not-found", *now)
        await api_server.kubectl("delete", *made.split(), *options)


async def test_a_device_as_the_agent_writes_it_is_well_with_what_the_manager_makes_of_it(
    place: Place,
) -> None:
    await place.make(
        program(place, "koord-scheduler", "DevicePluginAdaption=true"),
        program(place, "koord-manager", "EnableSyncGPUSharedResource=true"),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "slo-controller-config", "namespace": place.name},
            "data": {"colocation-config": '{"enable": true}'},
        },
    )
    await place.write_device()
    await place.offer()

    findings = [it for it in await place.findings() if it.check in CHECKS]

    assert {it.check for it in findings} == set(CHECKS)
    assert [it for it in findings if it.severity is not Severity.OK] == []


async def test_what_is_wrong_with_programs_pods_locks_and_names_is_found(place: Place) -> None:
    await place.make(
        program(place, "koord-scheduler", ""),
        program(place, "koord-manager", ""),
        pod(
            place,
            "promised",
            {"resources": {"limits": {CORE: "100", RATIO: "100"}}},
            nodeName=place.name,
            metadata={"annotations": allocated(place.cards.uuids[0])},
        ),
        pod(
            place,
            "plain",
            {"resources": {"limits": {"example.com/xpu": "1"}}},
            nodeName=place.name,
            schedulerName="default-scheduler",
        ),
        pod(place, "waits", {}, metadata={"labels": {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}}),
    )
    await place.write_device()
    await place.write_device(f"{place.name}-before")
    old = (datetime.now(UTC) - timedelta(minutes=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
    await place.offer(annotations={"hami.io/mutex.lock": f"{old},default,a"})

    assert ailments(await place.findings()) == {
        "scheduler-gate-off",
        "manager-gate-off",
        "colocation-off",
        "scheduler-choice-unheeded",
        "pod-not-booked",
        "isolation-label-missing",
        "device-of-old-name",
        "lock-left-behind",
    }


async def test_a_pod_of_metax_that_names_no_core_is_found_among_those_that_wait(place: Place) -> None:
    await place.write_device(vendor="metax")
    limits = {MEMORY: "1Gi", "metax-tech.com/sgpu": "1"}
    await place.make(pod(place, "no-core", {"resources": {"limits": limits}}))
    await place.make(pod(place, "with-core", {"resources": {"limits": {**limits, CORE: "5"}}}))

    found = [it.what for it in await place.findings() if it.kind == "metax-pod-without-core"]

    assert found == [f"{place.name}/no-core waits"]


async def test_what_a_koordlet_leaves_in_the_device_is_found(place: Place) -> None:
    await place.write_device()
    its = json.loads(await place.server.kubectl("get", KIND, place.name, "-o", "json"))
    as_koordlet = ["replace", "--field-manager=koordlet", "--filename", "-"]

    others = {**its, "spec": {"devices": of_koordlet(2)}}
    await place.server.kubectl(*as_koordlet, stdin=json.dumps(others))
    assert ailments(await place.findings()) >= {"device-of-others", "koordinator-resources-missing"}

    its["metadata"].pop("resourceVersion")
    await place.server.kubectl(*as_koordlet, stdin=json.dumps({**its, "spec": {}}))
    assert "device-empty" in ailments(await place.findings())


async def test_rights_that_the_manifests_do_not_give_beside_koordinator_are_named(place: Place) -> None:
    (role,) = (it for it in yaml.safe_load_all(MANIFEST.read_text()) if it and it["kind"] == "ClusterRole")
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": place.name}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": place.name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": place.name},
        "subjects": [subject],
    }
    await place.make({**role, "metadata": {"name": place.name}}, binding)
    token = await place.server.service_account_token("default", place.name)

    without = [it for it in await place.findings(token=token) if it.kind == "right-missing"]
    devices = {"apiGroups": ["scheduling.koordinator.sh"], "resources": ["devices"]}
    verbs = ["get", "list", "watch", "create", "update", "delete"]
    rules = [*role["rules"], {**devices, "verbs": verbs}]
    await place.make({**role, "metadata": {"name": place.name}, "rules": rules}, verb="apply")
    given = await place.findings(token=token)

    assert {it.what.split()[0] for it in without if f" {KIND} is forbidden" in it.what} == set(verbs)
    assert [it.what for it in given if it.kind == "right-missing"] == []
    assert [it.what for it in given if it.check in CHECKS and "403" in it.what] == []


def allocated(uuid: str) -> dict[str, str]:
    its = {"minor": 0, "id": uuid, "resources": {CORE: "100", RATIO: "100"}}
    return {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [its]})}

"""A patient in a cluster of Koordinator's that is well, until a test breaks a part of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster import koordlets
from doctor.patient import CARDS, GPU, Patient

from agent.testing.simapi.api_resources import WELL_KNOWN

API = "scheduling.koordinator.sh/v1alpha1"
SPACE = "koordinator-system"
(DEVICES,) = (it for it in WELL_KNOWN if it.kind == "Device")
PREFIX = "koordinator.sh/"
CORE, RATIO, MEMORY = f"{PREFIX}gpu-core", f"{PREFIX}gpu-memory-ratio", f"{PREFIX}gpu-memory"
VENDOR, MODEL = "node.koordinator.sh/gpu-vendor", "node.koordinator.sh/gpu-model"
INFOS = "/var/run/koordlet/xpu-device-infos"


def install(patient: Patient, mode: str = "auto", **report: Any) -> None:
    """Koordinator's kind, scheduler and manager with all that device plugins need of them."""
    patient.server.serve(DEVICES)
    program(patient, "koord-scheduler", "--feature-gates=DevicePluginAdaption=true", name="scheduler")
    program(patient, "koord-manager", "--feature-gates", "EnableSyncGPUSharedResource=true", name="manager")
    colocate(patient, enable=True)
    infos(patient).mkdir(exist_ok=True)
    configure(patient, mode=mode, deviceInfosDir=str(infos(patient)), **report)
    node(patient)


def introduce(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent, too, know the API server."""
    monkeypatch.setenv("XPU_AGENT_KUBECONFIG", str(patient.kubeconfig))


def infos(patient: Patient) -> Path:
    return patient.root / "infos"


def configure(patient: Patient, **report: Any) -> None:
    """Change what the file says of reporting."""
    document = json.loads(patient.node.config.read_text())
    patient.node.write(json.dumps({**document, "report": {**document.get("report", {}), **report}}))


def placement(patient: Patient, placement: str) -> None:
    document = json.loads(patient.node.config.read_text())
    document["vendors"]["nvidia"]["resources"] = [{"name": GPU, "placement": placement}]
    patient.node.write(json.dumps(document))


def colocate(patient: Patient, text: str = "", **config: Any) -> None:
    metadata = {"name": "slo-controller-config", "namespace": SPACE}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    patient.server.put_object({**settings, "data": {"colocation-config": text or json.dumps(config)}})


def program(patient: Patient, app: str, *arguments: str, name: str, **labels: str) -> dict[str, Any]:
    """A pod of Koordinator's on another node. Source: koordinator-sh/charts v1.8.0."""
    container = {"name": name, "command": [f"/{app}"], "args": list(arguments), "image": f"{app}:v1.8.0"}
    return put_pod(patient, app, container, {"koord-app": app, **labels}, node="other", namespace=SPACE)


def put_pod(
    patient: Patient,
    name: str,
    container: Mapping[str, Any],
    labels: Mapping[str, str] | None = None,
    *,
    node: str = "node",
    namespace: str = "default",
    scheduler: str = "koord-scheduler",
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": labels or {},
        "annotations": annotations or {},
    }
    its = {"containers": [{"name": "main", **container}], "schedulerName": scheduler, **spec}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node, **its} if node else its,
        "status": {"phase": "Running" if node else "Pending"},
    }
    return patient.server.put_object(pod)


def koordlet(patient: Patient, *, features: str = "Accelerators=true", **changed: Any) -> None:
    """koordlet's pod as its chart makes it, with the directory of this patient's mounted."""
    pod = koordlets.pod("node", features)
    (container,) = pod["spec"]["containers"]
    container["image"] = "ghcr.io/koordinator-sh/koordlet:v1.8.0"
    container["volumeMounts"] = [{"name": "infos", "mountPath": f"{INFOS}/"}]
    pod["spec"]["volumes"] = [{"name": "infos", "hostPath": {"path": f"{infos(patient)}/"}}]
    container.update(changed)
    patient.server.put_object(pod)


def node(
    patient: Patient,
    cards: int = CARDS,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **allocatable: str,
) -> None:
    """The Node as koord-manager keeps it for so many cards."""
    patient.offer(CARDS)
    there = copy.deepcopy(patient.server.find("Node", "node"))
    assert there is not None
    told = {VENDOR: "nvidia", MODEL: "NVIDIA-A40"} if labels is None else labels
    there["metadata"] |= {"labels": dict(told), "annotations": dict(annotations or {})}
    there["status"]["allocatable"] |= {CORE: str(100 * cards), RATIO: str(100 * cards), **allocatable}
    patient.server.put_object(there)


def manage(patient: Patient) -> None:
    """Let koord-manager bring what the Device says to the Node."""
    there = patient.server.find("Device", "node")
    assert there is not None
    cards = sum(it["health"] for it in there["spec"]["devices"])
    node(patient, cards, there["metadata"].get("labels", {}))


def card(uuid: str, minor: int | None, *, health: bool = True, **more: Any) -> dict[str, Any]:
    """One entry of a Device, as the agent writes it."""
    condition = {
        "type": "Healthy",
        "status": str(health),
        "reason": "DeviceHealthy" if health else "Xid79",
        "message": "device is healthy" if health else "fell off the bus",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    its = {"type": "gpu", "id": uuid, "health": health, "conditions": [condition]}
    resources = {CORE: "100", MEMORY: "48Gi", RATIO: "100"}
    return {**its, **({} if minor is None else {"minor": minor}), "resources": resources, **more}


def cards(patient: Patient) -> list[dict[str, Any]]:
    return [card(uuid, minor) for minor, uuid in enumerate(patient.cards.uuids)]


def device(
    patient: Patient,
    entries: Sequence[Mapping[str, Any]],
    *,
    name: str = "node",
    vendor: str = "nvidia",
    by: str = "kubectl",
) -> None:
    """Write the Device, as whoever does."""
    labels = {VENDOR: vendor, MODEL: "NVIDIA-A40"}
    its = {"apiVersion": API, "kind": "Device", "metadata": {"name": name, "labels": labels}}
    patient.server.put_object({**its, "spec": {"devices": list(entries)}}, manager=by)


def allocated(*uuids: str) -> Mapping[str, str]:
    """What koord-scheduler writes of whole cards."""
    resources = {CORE: "100", RATIO: "100"}
    its = [{"minor": minor, "id": uuid, "resources": resources} for minor, uuid in enumerate(uuids)]
    return {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": its})}


def limits(**counts: str) -> dict[str, Any]:
    """Of a container, on Koordinator's resources: `gpu_core="50"`."""
    named = {f"{PREFIX}{name.replace('_', '-')}": count for name, count in counts.items()}
    return {"resources": {"limits": named}}


async def reports(patient: Patient, **wanted: Any) -> dict[str, Any]:
    """What the agent shows once its report is so."""
    await patient.start()
    return await patient.agent.until(lambda it: wanted.items() <= it["report"].items())

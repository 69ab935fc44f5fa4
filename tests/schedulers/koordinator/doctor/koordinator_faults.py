"""The faults around Koordinator: its programs, its Device, its files, its pods, its locks."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from cluster.koordlets import Koordlet
from doctor.faults import fault, metax
from doctor.patient import GPU, Patient

from . import koordination
from .koordination import CORE, RATIO, allocated, card, cards, device, infos, install, koordlet, limits, node

LOCK = "hami.io/mutex.lock"


# Its programs, and which way it hears of the cards


@fault("koordinator-kind-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    koordination.configure(patient, mode="device")
    return "report.mode is 'device', and the API server has no Device objects"


@fault("koordlet-in-the-way")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient, "device")
    koordlet(patient)
    return "koordlet koordinator-system/koordlet-x runs here with Accelerators=true"


@fault("device-overwritten")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    install(patient)
    koordination.introduce(patient, monkeypatch)
    await koordination.reports(patient, mode="device", healthy=2)
    await patient.server.wait(lambda it: it.find("Device", "node"))
    Koordlet(patient.server, "node").report([])
    await patient.agent.until(lambda it: it["report"]["overwritten"] and it["report"]["mode"] == "feed")
    return "the agent reports by feed"


@fault("cards-not-told")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    rule = {"name": GPU, "sharing": {"kind": "replicas", "replicas": 2}}
    patient.configure(resources=[rule])
    install(patient)
    return f"{GPU} counts replicas, which koord-scheduler takes for whole cards"


@fault("cards-left-out")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient, "feed")
    koordlet(patient)
    uuid = patient.cards.uuids[1]
    listed(patient, uuid)
    await koordination.reports(patient, mode="feed")
    await patient.agent.until(lambda it: it["report"]["leftOut"])
    return f"{uuid} is not written: another file lists it"


@fault("scheduler-gate-off")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    koordination.program(patient, "koord-scheduler", "--feature-gates=", name="scheduler")
    return "koordinator-system/koord-scheduler: without DevicePluginAdaption=true"


@fault("koordinator-old")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    install(patient)
    metax(patient, monkeypatch)
    pod = koordination.program(
        patient, "koord-scheduler", "--feature-gates=DevicePluginAdaption=true", name="scheduler"
    )
    pod["spec"]["containers"][0]["image"] = "ghcr.io/koordinator-sh/koord-scheduler:v1.7.0"
    patient.server.put_object(pod)
    return "koordinator-system/koord-scheduler is of version 1.7"


@fault("manager-gate-off")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    gates = "--feature-gates=EnableSyncGPUSharedResource=false,AllAlpha=true"
    koordination.program(patient, "koord-manager", gates, name="manager")
    return "koordinator-system/koord-manager: without EnableSyncGPUSharedResource=true"


@fault("colocation-off")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    koordination.colocate(patient, enable=False)
    return "koordinator-system/slo-controller-config has no colocation-config with enable: true"


# koordlet, and the files that it reads


@fault("koordlet-not-reporting")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient, "feed")
    koordlet(patient, features="CgroupReconcile=true")
    return "koordinator-system/koordlet-x runs without Accelerators"


@fault("koordlet-too-old")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    koordlet(patient, image="ghcr.io/koordinator-sh/koordlet:v1.6.1")
    return "koordinator-system/koordlet-x is of version 1.6"


@fault("koordlet-reads-elsewhere")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    mounts = [{"name": "infos", "mountPath": "/infos"}]
    arguments = ["-feature-gates=AllAlpha=true", "--xpu-device-infos-dir", "/infos/of-cards"]
    koordlet(patient, args=arguments, volumeMounts=mounts)
    return f"reads {infos(patient)}/of-cards, the agent writes {infos(patient)}"


@fault("koordlet-injects")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    koordlet(patient, features="Accelerators=true,GPUEnvInject=true")
    return "koordinator-system/koordlet-x runs with GPUEnvInject=true"


@fault("device-daemon-lists-cards")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    koordlet(patient)
    # Without the chart it has koordlet's label (koordinator config/manager/koord-device-daemon.yaml).
    daemon = {"name": "koord-device-daemon", "command": ["/koord-device-daemon"], "args": ["--v=4"]}
    koordination.put_pod(
        patient, "daemon-x", daemon, {"koord-app": "koordlet"}, namespace="koordinator-system"
    )
    listed(patient, patient.cards.uuids[0])
    told = f"{infos(patient)}/ic-device lists {patient.cards.uuids[0]}"
    return f"{told}; koordinator-system/daemon-x runs here"


@fault("device-infos-broken")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    koordlet(patient)
    (infos(patient) / "half").write_text('[{"uuid": 1}]')
    return f"{infos(patient)}/half: entry 1: uuid is no text"


@fault("device-infos-strange")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    koordlet(patient)
    (infos(patient) / "link").symlink_to(infos(patient))  # no directory to koordlet, and no file
    return f"{infos(patient)}/link: is not a file but a directory"


@fault("device-infos-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    koordlet(patient)
    infos(patient).rmdir()
    return f"{infos(patient)}: No such file or directory"


def listed(patient: Patient, uuid: str) -> None:
    """koord-device-daemon's file with this card."""
    entry = {"vendor": "nvidia", "model": "A40", "uuid": uuid, "minor": "0", "resources": {}}
    (infos(patient) / "ic-device").write_text(json.dumps([entry]))


# The Device, and the Node


@fault("device-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient, "feed")
    koordlet(patient)
    await koordination.reports(patient, mode="feed", healthy=2)
    return "the agent reports 2 cards by feed"


@fault("device-empty")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    Koordlet(patient.server, "node").report([])
    return "Device node lists no card"


@fault("device-unusable")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    first, second = patient.cards.uuids
    device(patient, [card(first, None), card(second, 63)])
    return f"{first} has no minor; {second} has minor 63"


@fault("device-of-others")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    device(patient, [card("MLU-1", 0)], vendor="cambricon")
    return "Device node, of vendor cambricon, has MLU-1 and no card of this node"


@fault("device-differs")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient, "feed")
    koordlet(patient)
    await koordination.reports(patient, mode="feed", healthy=2)
    first, second = patient.cards.uuids
    device(patient, [card(first, 0), card(second, 1, health=False)])
    return "the agent reports 2 cards, 2 healthy; the Device has 2, 1 healthy"


@fault("device-kind-old")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    install(patient, "device")
    koordination.introduce(patient, monkeypatch)
    patient.server.forbid("update", "/apis/scheduling.koordinator.sh/v1alpha1/devices")
    device(patient, [{key: it for key, it in each.items() if key != "conditions"} for each in cards(patient)])
    await patient.agent.start()
    patient.stack.push_async_callback(patient.agent.kill)
    await patient.agent.until(lambda it: it["report"]["cards"] == 2)
    return "none of 2 cards of Device node has a condition"


@fault("device-left-behind")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient, "none")
    device(patient, cards(patient), by="xpu-agent")
    return "Device node lists 2 cards, 2 healthy"


@fault("device-of-old-name")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    device(patient, cards(patient))
    device(patient, cards(patient), name="before")
    return f"Device before lists {', '.join(sorted(patient.cards.uuids))}, and Node before is not there"


@fault("koordinator-resources-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    device(patient, cards(patient))
    patient.offer(2)
    return f"the Device has 200 of {RATIO}, the Node has none"


@fault("koordinator-resources-differ")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    first, second = patient.cards.uuids
    device(patient, [card(first, 0), card(second, 1, health=False)])
    return f"the Device has 100 of {CORE}, the Node 200"


@fault("koordinator-labels-differ")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    device(patient, cards(patient))
    node(patient, labels={koordination.VENDOR: "nvidia", koordination.MODEL: "Tesla-T4"})
    return "the Device has node.koordinator.sh/gpu-model=NVIDIA-A40, the Node Tesla-T4"


# Locks


@fault("lock-left-behind")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    node(patient, annotations={LOCK: f"{ago(420)},default,a"})
    return "default,a, for 7 minutes"


@fault("lock-unreadable")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    node(patient, annotations={"cambricon.com/dsmlu.lock": "yesterday,default"})
    return "cambricon.com/dsmlu.lock: yesterday,default"


@fault("locks-not-freed")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    node(patient, annotations={LOCK: f"{ago(1)},default,a"})
    koordination.configure(patient, labels=False)
    patient.server.forbid("patch", "/api/v1/nodes")
    return f"{LOCK}; patch nodes/node is forbidden"


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


# Pods


@fault("scheduler-choice-unheeded")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    uuid = patient.cards.uuids[1]
    asks = limits(gpu_core="100", gpu_memory_ratio="100")
    koordination.put_pod(patient, "promised", asks, annotations=allocated(uuid))
    return f"koord-scheduler chose {uuid} of nvidia for default/promised"


@fault("annotation-not-believed")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    asks = {"resources": {"limits": {GPU: "1"}}}
    its = allocated(patient.cards.uuids[0])
    koordination.put_pod(patient, "forged", asks, scheduler="default-scheduler", annotations=its)
    return "default/forged has scheduling.koordinator.sh/device-allocated, and its scheduler is"


@fault("choice-not-heeded")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    koordination.placement(patient, "auto")
    asks = limits(gpu_core="200", gpu_memory_ratio="200")
    asks["resources"]["limits"][GPU] = "2"
    koordination.put_pod(patient, "less", asks, annotations=allocated(patient.cards.uuids[0]))
    key = "scheduling.koordinator.sh/device-allocated"
    return f"default/less: koordinator: {key} names 1 cards, its containers ask for 2"


@fault("card-given-twice")
async def _(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> str:
    install(patient)
    koordination.placement(patient, "auto")
    koordination.introduce(patient, monkeypatch)
    uuid = patient.cards.uuids[0]
    for name in ("one", "other"):
        asks = limits(gpu_core="100", gpu_memory_ratio="100")
        koordination.put_pod(patient, name, asks, annotations=allocated(uuid))
    await patient.start()
    await patient.agent.until(lambda it: any(one["reason"] for one in it["allocations"]))
    return f"{uuid} is held by default/"


@fault("pod-not-booked")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    device(patient, cards(patient))
    asks = {"resources": {"limits": {GPU: "1"}}}
    koordination.put_pod(patient, "plain", asks, scheduler="default-scheduler")
    return f"default/plain asks for {GPU}, and has no scheduling.koordinator.sh/device-allocated"


@fault("metax-pod-without-core")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    device(patient, [card("GPU-metax", 0)], vendor="metax")
    asks = limits(gpu_memory="1Gi")
    asks["resources"]["limits"]["metax-tech.com/sgpu"] = "1"
    koordination.put_pod(patient, "waits", asks, node="")
    return "default/waits waits"


@fault("isolation-label-missing")
async def _(patient: Patient, _: pytest.MonkeyPatch) -> str:
    install(patient)
    labels = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    asks = limits(gpu_core="50")
    koordination.put_pod(patient, "waits", asks, labels, node="", scheduler="default-scheduler")
    return "default/waits waits for koordinator.sh/gpu-isolation-provider=HAMi-core, the Node has none"

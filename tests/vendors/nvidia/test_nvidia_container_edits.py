"""A container gets what NVIDIA's own plugin would have given it, by every strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from nvidia_node import allocated, given, gpu, mig, offered, split

from agent.core.errors import AllocationError
from agent.vendor_api.agent import ContainerEdits, Device, DeviceNode, Mount
from agent.vendors.nvidia.plugin import register_backend

#: nvidia-device-plugin v0.20.0 on an NVML double; the file describes its hardware.
RECORDED = json.loads((Path(__file__).parent / "recorded_allocations.json").read_text())
CARDS = [
    Device(
        f"GPU-00000000-0000-0000-0000-{index:012d}",
        index,
        minor=index,
        model=RECORDED["hardware"]["name"],
        paths=(f"/dev/nvidia{index}",),
    )
    for index in range(RECORDED["hardware"]["cards"])
]

FLAGS: Mapping[str, Mapping[str, Any]] = {
    "--device-id-strategy=index": {"deviceIDStrategy": "index"},
    "--pass-device-specs": {"passDeviceSpecs": True},
    "--device-list-strategy=volume-mounts": {"deviceListStrategy": ["volume-mounts"]},
    "--device-list-strategy=envvar,volume-mounts": {"deviceListStrategy": ["envvar", "volume-mounts"]},
    "--gdrcopy-enabled": {"gdrcopyEnabled": True},
    "--gds-enabled": {"gdsEnabled": True},
    "--mofed-enabled": {"mofedEnabled": True},
    "--nvidia-driver-root=/run/nvidia/driver": {"driverRoot": "/run/nvidia/driver"},
    "--nvidia-dev-root=/run/nvidia/dev": {"devRoot": "/run/nvidia/dev"},
}
REPLICAS = {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}
#: What the config file of a case says; the others say nothing.
FILES: Mapping[str, Mapping[str, Any]] = {
    "replicas": {"timeSlicing": REPLICAS},
    "failRequestsGreaterThanOne": {"timeSlicing": REPLICAS | {"failRequestsGreaterThanOne": True}},
    "imex": {"imexChannelIDs": [0], "imexRequired": True},
}


def settings_of(case: Mapping[str, Any]) -> dict[str, Any]:
    settings = dict(FILES.get(case["case"], {}))
    for flag in case["flags"]:
        settings |= FLAGS[flag]
    return settings


def answers(case: Mapping[str, Any]) -> bool:
    # An empty list is refused here: a container that asks for nothing must not start and see no card.
    return bool(case.get("response") and case["ids"])


def as_recorded(edits: ContainerEdits) -> dict[str, Any]:
    """The edits as the recording writes the kubelet's message: empty fields are left out."""
    fields = {
        "envs": dict(edits.env),
        "devices": [
            {"container_path": it.path, "host_path": it.host_path, "permissions": it.permissions}
            for it in edits.device_nodes
        ],
        "mounts": [
            {"container_path": it.path, "host_path": it.host_path}
            | ({"read_only": True} if it.read_only else {})
            for it in edits.mounts
        ],
        "annotations": dict(edits.annotations),
        "cdi_devices": list(edits.cdi_devices),
    }
    return {key: value for key, value in fields.items() if value}


def named(case: Mapping[str, Any]) -> str:
    return f"{case['case']}-{len(case.get('ids', ()))}"


@pytest.mark.parametrize("case", [it for it in RECORDED["cases"] if answers(it)], ids=named)
async def test_an_answer_equals_the_recorded_one(case: Mapping[str, Any]) -> None:
    edits = await allocated(settings_of(case), CARDS, case["resource"], case["ids"])

    assert [as_recorded(edits)] == case["response"]


@pytest.mark.parametrize("case", [it for it in RECORDED["cases"] if it.get("ids") and it["error"]], ids=named)
async def test_a_refusal_has_the_recorded_words(case: Mapping[str, Any]) -> None:
    with pytest.raises(AllocationError) as refused:
        await allocated(settings_of(case), CARDS, case["resource"], case["ids"])

    assert case["error"] == f"rpc error: code = Unknown desc = {refused.value}"


async def test_an_empty_request_is_refused() -> None:
    [case] = (it for it in RECORDED["cases"] if it["case"] == "empty id list")
    with pytest.raises(AllocationError, match="it names no device"):
        await allocated(settings_of(case), CARDS, case["resource"], case["ids"])


def test_what_keeps_nvidias_plugin_from_starting_is_said_and_nothing_is_offered() -> None:
    [case] = (it for it in RECORDED["cases"] if not it.get("starts", True))

    offering = offered(settings_of(case), CARDS)

    assert [rule.devices for rule in offering.rules] == [()]
    [complaint] = offering.complaints
    assert case["error"] == f"error starting plugins: error getting plugins: {complaint} (exit 1)"


def test_every_recorded_case_is_replayed() -> None:
    replayed = [it for it in RECORDED["cases"] if answers(it) or it["error"] or it["case"] == "empty id list"]

    assert len(replayed) == len(RECORDED["cases"]) == 20


def cdi_names(*names: str) -> tuple[str, ...]:
    return tuple(f"k8s.device-plugin.nvidia.com/{name}" for name in names)


CONTROL = "/dev/nvidiactl,/dev/nvidia-uvm"
CHANNEL = {"imexChannelIDs": [0]}
EXTRAS = {"gdrcopyEnabled": True, "gdsEnabled": True, "mofedEnabled": True}
EXTRA_ENV = {"NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"}
WITH_CHANNEL = [gpu(1, imex_channels="0,5"), gpu(0, imex_channels="0,5")]
MIGS = [mig(0, 1), mig(0, 0)]
FOLDER = "/var/run/nvidia-container-devices"


def strategies(*names: str, **more: Any) -> dict[str, Any]:
    return {"deviceListStrategy": list(names)} | more


def void(*names: str) -> tuple[Mount, ...]:
    return tuple(Mount(f"{FOLDER}/{name}", "/dev/null", read_only=False) for name in names)


def nodes(*paths: str, root: str = "") -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(path, f"{root}{path}") for path in paths)


#: Name, settings, devices, what the container gets (k8s-device-plugin v0.20, internal/plugin/server.go).
ROWS: list[tuple[str, Mapping[str, Any], Sequence[Device], ContainerEdits]] = [
    (
        "envvar keeps the order of the request",
        {},
        [gpu(3), gpu(1)],
        ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": "GPU-3,GPU-1"}),
    ),
    (
        "indices are sorted as numbers",
        {"deviceIDStrategy": "index"},
        [gpu(10), gpu(9)],
        ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": "9,10"}),
    ),
    (
        "MIG devices by index",
        {"deviceIDStrategy": "index"},
        MIGS,
        ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": "0:0,0:1"}),
    ),
    (
        "an IMEX channel by envvar",
        CHANNEL,
        WITH_CHANNEL,
        ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-0", "NVIDIA_IMEX_CHANNELS": "0"}),
    ),
    (
        "no IMEX channel where the node has none",
        CHANNEL,
        [gpu(0)],
        ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": "GPU-0"}),
    ),
    (
        "volume-mounts",
        strategies("volume-mounts", **CHANNEL),
        WITH_CHANNEL,
        ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": FOLDER}, mounts=void("GPU-1", "GPU-0", "imex/0")),
    ),
    (
        "volume-mounts and envvar: the channel by both, the devices by mounts",
        strategies("envvar", "volume-mounts", **CHANNEL),
        WITH_CHANNEL[:1],
        ContainerEdits(
            env={"NVIDIA_VISIBLE_DEVICES": FOLDER, "NVIDIA_IMEX_CHANNELS": "0"},
            mounts=void("GPU-1", "imex/0"),
        ),
    ),
    (
        "volume-mounts by index",
        strategies("volume-mounts", deviceIDStrategy="index"),
        MIGS[:1],
        ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": FOLDER}, mounts=void("0:1")),
    ),
    (
        "cdi-annotations",
        strategies("cdi-annotations"),
        [gpu(3), gpu(1)],
        ContainerEdits(
            annotations={
                "cdi.k8s.io/nvidia-device-plugin_a1": "k8s.device-plugin.nvidia.com/gpu=GPU-3,"
                "k8s.device-plugin.nvidia.com/gpu=GPU-1"
            }
        ),
    ),
    (
        "cdi-annotations under another prefix",
        strategies("cdi-annotations", cdiAnnotationPrefix="custom.cdi.k8s.io/"),
        [gpu(3)],
        ContainerEdits(
            annotations={
                "custom.cdi.k8s.io/nvidia-device-plugin_a1": "k8s.device-plugin.nvidia.com/gpu=GPU-3"
            }
        ),
    ),
    (
        "cdi-cri with all that is enabled",
        strategies("cdi-cri", **CHANNEL, **EXTRAS),
        [gpu(index, imex_channels="0,5", cdi_extras="gdrcopy,gds,mofed") for index in (1, 0)],
        ContainerEdits(
            env=EXTRA_ENV,
            cdi_devices=cdi_names(
                "gpu=GPU-1", "gpu=GPU-0", "imex-channel=0", "gdrcopy=all", "gds=all", "mofed=all"
            ),
        ),
    ),
    (
        "cdi-cri without what the node has nothing of",
        strategies("cdi-cri", **EXTRAS),
        [gpu(0, cdi_extras="gds")],
        ContainerEdits(env=EXTRA_ENV, cdi_devices=cdi_names("gpu=GPU-0", "gds=all")),
    ),
    (
        "cdi-cri where the node does not tell what it has",
        strategies("cdi-cri", **EXTRAS),
        [gpu(0)],
        ContainerEdits(env=EXTRA_ENV, cdi_devices=cdi_names("gpu=GPU-0")),
    ),
    (
        "cdi-cri without what is not enabled",
        strategies("cdi-cri"),
        [gpu(0, cdi_extras="gds,mofed")],
        ContainerEdits(cdi_devices=cdi_names("gpu=GPU-0")),
    ),
    (
        "cdi-cri by index",
        strategies("cdi-cri", deviceIDStrategy="index"),
        MIGS,
        ContainerEdits(cdi_devices=cdi_names("gpu=0:0", "gpu=0:1")),
    ),
    (
        "both CDI strategies: no device nodes",
        strategies("cdi-annotations", "cdi-cri", passDeviceSpecs=True),
        [gpu(0)],
        ContainerEdits(
            annotations={"cdi.k8s.io/nvidia-device-plugin_a1": "k8s.device-plugin.nvidia.com/gpu=GPU-0"},
            cdi_devices=cdi_names("gpu=GPU-0"),
        ),
    ),
    (
        "CDI beside envvar: device nodes too",
        strategies("cdi-cri", "envvar", passDeviceSpecs=True),
        [gpu(0)],
        ContainerEdits(
            env={"NVIDIA_VISIBLE_DEVICES": "GPU-0"},
            device_nodes=nodes("/dev/nvidia0"),
            cdi_devices=cdi_names("gpu=GPU-0"),
        ),
    ),
    (
        "device nodes: the driver's first, IMEX last",
        {"passDeviceSpecs": True} | CHANNEL,
        [gpu(2, imex_channels="0", control_nodes=CONTROL), gpu(1, imex_channels="0", control_nodes=CONTROL)],
        ContainerEdits(
            env={"NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-1", "NVIDIA_IMEX_CHANNELS": "0"},
            device_nodes=nodes(
                "/dev/nvidiactl",
                "/dev/nvidia-uvm",
                "/dev/nvidia2",
                "/dev/nvidia1",
                "/dev/nvidia-caps-imex-channels/channel0",
            ),
        ),
    ),
    (
        "the node of a card that two MIG devices share stands once",
        {"passDeviceSpecs": True},
        MIGS,
        ContainerEdits(
            env={"NVIDIA_VISIBLE_DEVICES": "MIG-0-1,MIG-0-0"},
            device_nodes=nodes(
                "/dev/nvidia0",
                "/dev/nvidia-caps/nvidia-cap9",
                "/dev/nvidia-caps/nvidia-cap10",
                "/dev/nvidia-caps/nvidia-cap0",
                "/dev/nvidia-caps/nvidia-cap1",
            ),
        ),
    ),
    (
        "the dev root goes before the driver root",
        {"passDeviceSpecs": True, "driverRoot": "/run/nvidia/driver", "devRoot": "/host/"},
        [gpu(0)],
        ContainerEdits(
            env={"NVIDIA_VISIBLE_DEVICES": "GPU-0"}, device_nodes=nodes("/dev/nvidia0", root="/host")
        ),
    ),
]


@pytest.mark.parametrize(
    ("settings", "devices", "edits"), [it[1:] for it in ROWS], ids=[it[0] for it in ROWS]
)
def test_a_container_gets_what_nvidias_plugin_gives(
    settings: Mapping[str, Any], devices: Sequence[Device], edits: ContainerEdits
) -> None:
    assert given(settings, devices) == edits


def test_two_containers_have_annotations_of_their_own() -> None:
    settings = strategies("cdi-annotations")

    first, second = (given(settings, [gpu(0)], allocation).annotations for allocation in ("a1", "a2"))

    assert not first.keys() & second.keys()


def test_the_name_of_an_annotation_is_never_longer_than_kubernetes_takes() -> None:
    [key] = given(strategies("cdi-annotations"), [gpu(0)], "a" * 200).annotations

    assert len(key.partition("/")[2]) == 63


async def test_the_ids_of_one_card_are_one_device() -> None:
    settings = {"timeSlicing": REPLICAS, "passDeviceSpecs": True}
    card = CARDS[5]

    edits = await allocated(settings, CARDS, "nvidia.com/gpu", [f"{card.uuid}::3", f"{card.uuid}::1"])

    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": card.uuid}
    assert edits.device_nodes == nodes("/dev/nvidia5")


async def test_a_replica_of_a_mig_device_gives_the_mig_device() -> None:
    settings = {
        "migStrategy": "mixed",
        "timeSlicing": {"resources": [{"name": "nvidia.com/mig-1g.10gb", "replicas": 2}]},
    }

    edits = await allocated(settings, [split(0), *MIGS], "nvidia.com/mig-1g.10gb", ["MIG-0-1::1"])

    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": "MIG-0-1"}


@pytest.mark.parametrize(("ids", "refused"), [(["GPU-0::0", "GPU-1"], True), (["GPU-1", "GPU-2"], False)])
async def test_whole_cards_beside_replicas_may_be_asked_for_together(
    ids: Sequence[str], refused: bool
) -> None:
    cards = [gpu(0), gpu(1), gpu(2)]
    entry = {"name": "nvidia.com/gpu", "replicas": 2, "devices": [0]}
    settings = {"timeSlicing": {"resources": [entry], "failRequestsGreaterThanOne": True}}

    if refused:
        with pytest.raises(AllocationError, match="maximum request size for shared resources is 1; found 2"):
            await allocated(settings, cards, "nvidia.com/gpu", ids)
    else:
        edits = await allocated(settings, cards, "nvidia.com/gpu", ids)
        assert edits.env == {"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}


def test_the_vendor_is_offered_whole() -> None:
    vendor = register_backend({"library": "/opt/driver"})

    assert (vendor.name, vendor.resource) == ("nvidia", "nvidia.com/gpu")
    assert vendor.backend == "agent.vendors.nvidia.child.backend:NvmlBackend"
    assert vendor.settings.for_backend == {"library": "/opt/driver"}


def test_labels_follow_the_settings() -> None:
    vendor = register_backend({"timeSlicing": REPLICAS})
    assert vendor.publishes.labels is not None

    assert vendor.publishes.labels((), [gpu(0)])["nvidia.com/gpu.replicas"] == "4"


def test_nodes_lie_where_the_vendors_process_found_them_and_not_below_a_root_without_them() -> None:
    card = gpu(0, control_nodes="/dev/nvidiactl", dev_root="/")

    edits = given({"passDeviceSpecs": True, "driverRoot": "/usr/local/nvidia"}, [card])

    assert [it.host_path for it in edits.device_nodes] == ["/dev/nvidiactl", "/dev/nvidia0"]

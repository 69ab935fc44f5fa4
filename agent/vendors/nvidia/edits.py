"""What a container gets: the list of devices in each form that NVIDIA's container stack reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agent.core.vendor import ContainerEdits, Device, DeviceNode, Mount, Request

from . import imex
from .devicemap import index_of
from .options import Options

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
#: Where the container runtime looks for a device list given as mounts.
MOUNTED_LIST = "/var/run/nvidia-container-devices"
#: The vendor of NVIDIA's CDI specs for Kubernetes.
CDI_VENDOR = "k8s.device-plugin.nvidia.com"
#: Of the part of an annotation's key after the slash.
MAX_ANNOTATION = 63


def container_edits(options: Options, devices: Sequence[Device], request: Request) -> ContainerEdits:
    """Every configured strategy at once (k8s-device-plugin v0.20, internal/plugin/server.go).

    UUIDs stand in the order of the request, indices sorted. With CDI strategies alone the specs carry all
    else, so nothing but names goes out.
    """
    strategies = set(options.device_list_strategy)
    ids = _ids(options, devices)
    channels = imex.channels(options, devices)
    names = tuple(_cdi_names(options, ids, channels))
    env = dict(_extra_env(options))
    mounts: tuple[Mount, ...] = ()
    if "envvar" in strategies:
        env |= {VISIBLE_DEVICES: ",".join(ids)}
        env |= {IMEX_CHANNELS: ",".join(channels)} if channels else {}
    if "volume-mounts" in strategies:
        env[VISIBLE_DEVICES] = MOUNTED_LIST
        mounts = tuple(_mounted(it) for it in (*ids, *(f"imex/{channel}" for channel in channels)))
    by_cdi_alone = not strategies & {"envvar", "volume-mounts"}
    passed = options.pass_device_specs and not by_cdi_alone
    return ContainerEdits(
        env=env,
        device_nodes=tuple(_nodes(options, devices, channels)) if passed else (),
        mounts=mounts,
        annotations=_annotation(options, names, request) if "cdi-annotations" in strategies else {},
        cdi_devices=names if "cdi-cri" in strategies else (),
    )


def _ids(options: Options, devices: Sequence[Device]) -> list[str]:
    if options.device_id_strategy == "uuid":
        return [it.uuid for it in devices]
    ordered = sorted(devices, key=lambda it: (it.index, it.slice or 0))
    return list(dict.fromkeys(map(index_of, ordered)))


def _extra_env(options: Options) -> Iterator[tuple[str, str]]:
    for name, enabled in (
        ("NVIDIA_GDRCOPY", options.gdrcopy_enabled),
        ("NVIDIA_GDS", options.gds_enabled),
        ("NVIDIA_MOFED", options.mofed_enabled),
    ):
        if enabled:
            yield name, "enabled"


def _mounted(name: str) -> Mount:
    return Mount(f"{MOUNTED_LIST}/{name}", "/dev/null", read_only=False)


def _nodes(options: Options, devices: Sequence[Device], channels: Sequence[str]) -> Iterator[DeviceNode]:
    """The driver's own nodes as far as the node has them, then the devices' and the IMEX channels'."""
    paths = [path for it in devices for path in it.attributes.get("control-nodes", "").split(",") if path]
    paths += [path for it in devices for path in it.paths]
    paths += [f"{imex.DIRECTORY}/channel{it}" for it in channels]
    root = options.host_dev_root.rstrip("/")
    for path in dict.fromkeys(paths):
        yield DeviceNode(path, f"{root}{path}")


def _cdi_names(options: Options, ids: Sequence[str], channels: Sequence[str]) -> Iterator[str]:
    for name in ids:
        yield f"{CDI_VENDOR}/gpu={name}"
    for channel in channels:
        yield f"{CDI_VENDOR}/imex-channel={channel}"
    for kind, enabled in (
        ("gdrcopy", options.gdrcopy_enabled),
        ("gds", options.gds_enabled),
        ("mofed", options.mofed_enabled),
    ):
        if enabled:
            yield f"{CDI_VENDOR}/{kind}=all"


def _annotation(options: Options, names: Sequence[str], request: Request) -> Mapping[str, str]:
    """One key per container, which must be its own: the allocation's id makes it so."""
    key = f"nvidia-device-plugin_{request.allocation}"[:MAX_ANNOTATION]
    return {f"{options.cdi_annotation_prefix}{key}": ",".join(names)} if names else {}

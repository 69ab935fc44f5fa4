"""What a container gets: the list of devices in each form that NVIDIA's container stack reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agent.vendor_api.agent import ContainerEdits, Device, DeviceNode, Mount, Request
from agent.vendors.nvidia.shared import constants

from . import hami_core, imex_channels
from .options import Options

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
#: Where the container runtime looks for a device list given as mounts.
MOUNTED_LIST = "/var/run/nvidia-container-devices"
#: Characters of an annotation's key after the slash.
MAX_ANNOTATION = 63
#: The variables that ask NVIDIA's runtime for an extra.
EXTRA_VARIABLES = {
    constants.GDRCOPY: "NVIDIA_GDRCOPY",
    constants.GDS: "NVIDIA_GDS",
    constants.MOFED: "NVIDIA_MOFED",
}


def container_edits(options: Options, devices: Sequence[Device], request: Request) -> ContainerEdits:
    """Every configured strategy at once (k8s-device-plugin v0.20, internal/plugin/server.go).

    UUIDs stand in the order of the request, indices sorted. With CDI strategies alone there are no device
    nodes: the specs have them.
    """
    strategies = set(options.device_list_strategy)
    ids, channels = _ids(options, devices), imex_channels.channels(options, devices)
    names = tuple(_cdi_names(ids, channels, _kinds_with_spec(_enabled(options), devices)))
    env = {EXTRA_VARIABLES[kind]: "enabled" for kind in _enabled(options)}
    mounts: tuple[Mount, ...] = ()
    if "envvar" in strategies:
        env |= {VISIBLE_DEVICES: ",".join(ids)}
        env |= {IMEX_CHANNELS: ",".join(channels)} if channels else {}
    if "volume-mounts" in strategies:
        env[VISIBLE_DEVICES] = MOUNTED_LIST
        mounts = tuple(_mounted(it) for it in (*ids, *(f"imex/{channel}" for channel in channels)))
    if directory := options.hami_core_directory.rstrip("/"):
        env |= hami_core.environment(directory, request.parameters, devices)
        mounts += hami_core.mounts(directory, request.parameters, devices)
    passed = options.pass_device_specs and bool(strategies & {"envvar", "volume-mounts"})
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
    return list(dict.fromkeys(map(constants.index_of, ordered)))


def _enabled(options: Options) -> list[str]:
    switches = (options.gdrcopy_enabled, options.gds_enabled, options.mofed_enabled)
    return [kind for kind, enabled in zip(constants.EXTRAS, switches, strict=True) if enabled]


def _kinds_with_spec(kinds: Sequence[str], devices: Sequence[Device]) -> list[str]:
    """The kinds that have a spec: a container that names a kind without one does not start."""
    extras = constants.list_of_node(devices, constants.CDI_EXTRAS)
    return [kind for kind in kinds if kind in extras]


def _mounted(name: str) -> Mount:
    return Mount(f"{MOUNTED_LIST}/{name}", "/dev/null", read_only=False)


def _nodes(options: Options, devices: Sequence[Device], channels: Sequence[str]) -> Iterator[DeviceNode]:
    """The nodes of the driver that exist, then those of the devices and of the IMEX channels."""
    paths = constants.list_of_node(devices, constants.CONTROL_NODES)
    paths += [path for it in devices for path in it.paths]
    paths += map(constants.channel_node, channels)
    root = (constants.of_node(devices, constants.DEV_ROOT) or options.host_dev_root).rstrip("/")
    for path in dict.fromkeys(paths):
        yield DeviceNode(path, f"{root}{path}")


def _cdi_names(ids: Sequence[str], channels: Sequence[str], extras: Sequence[str]) -> Iterator[str]:
    for name in ids:
        yield f"{constants.CDI_VENDOR}/{constants.CDI_GPU}={name}"
    for channel in channels:
        yield f"{constants.CDI_VENDOR}/{constants.CDI_IMEX}={channel}"
    for kind in extras:
        yield f"{constants.CDI_VENDOR}/{kind}={constants.CDI_ALL}"


def _annotation(options: Options, names: Sequence[str], request: Request) -> Mapping[str, str]:
    """One key per container; the id of the allocation makes the key unique."""
    key = f"nvidia-device-plugin_{request.allocation}"[:MAX_ANNOTATION]
    return {f"{options.cdi_annotation_prefix}{key}": ",".join(names)} if names else {}

"""What a container gets: the minors of its cards in Enflame's variable, and the cards' nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from agent.vendor_api.agent import ContainerEdits, Device, DeviceNode, Request
from agent.vendors.enflame import constants
from agent.vendors.enflame.cdi import PREFIX, SLICE

from .options import Options

#: Read by enflame-container-runtime, which lets the container see these cards and no others.
VISIBLE = "ENFLAME_VISIBLE_DEVICES"
#: What GCUShare's second generation told Enflame's runtime for a share of a card that it keeps apart.
#: Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/server/server.go and pkg/device/device.go
#: (3d6f337): the processors and megabytes of a card are constants there, too.
_APART = "ENFLAME_CONTAINER"
PROCESSORS, SHARED_MEGABYTES = 24, 64
_GIB = 1 << 30


def container_edits(options: Options, devices: Sequence[Device], request: Request) -> ContainerEdits:
    """Where Enflame's runtime runs the container the variable is enough; elsewhere the nodes are.

    Of a slice that goes by its CDI name the spec says both: until its container starts it may lie elsewhere.
    """
    if request.resource == options.brand.drs and options.drs_variable == "cdi":
        return ContainerEdits(cdi_devices=(f"{constants.CDI_KIND}={request.allocation}",))
    env = {VISIBLE: ",".join(str(it) for it in sorted(_minors(devices)))}
    if options.isolation and request.resource == options.brand.shared:
        env |= _isolated(options.slice_count, len(request.ids), devices)
    if request.resource == options.brand.drs:
        env |= _slice(request.partitions)
    return ContainerEdits(
        env=env,
        device_nodes=tuple(_nodes(devices)) if options.device_nodes else (),
    )


def _slice(partitions: Sequence[str]) -> Mapping[str, str]:
    """The slice as it is now: of one that is made again, with another uuid, a container hears nothing."""
    uuids = [it.partition(":")[2] for it in partitions]
    return {SLICE: ",".join(PREFIX + it for it in uuids)} if uuids else {}


def _minors(devices: Iterable[Device]) -> Iterator[int]:
    """Those of the cards: `/dev/gcuN`. Who has no minor has no node, and is given to nobody."""
    return (it.minor for it in devices if it.minor is not None)


def _nodes(devices: Sequence[Device]) -> Iterator[DeviceNode]:
    control = (it.attributes.get(constants.CONTROL_NODE, "") for it in devices)
    for path in dict.fromkeys((*filter(None, control), *(path for it in devices for path in it.paths))):
        yield DeviceNode(path, path)


def _isolated(slices: int, count: int, devices: Sequence[Device]) -> Mapping[str, str]:
    """The share of processors, of MB that they share, and of GB of memory, each rounded down."""
    memory = min((it.memory for it in devices), default=0) // _GIB
    return {
        f"{_APART}_SUB_CARD": "false" if count == slices else "true",
        f"{_APART}_USABLE_PROCESSOR": str(PROCESSORS * count // slices),
        f"{_APART}_USABLE_SHARED_MEM": str(SHARED_MEGABYTES * count // slices),
        f"{_APART}_USABLE_GLOBAL_MEM": str(memory * count // slices),
    }

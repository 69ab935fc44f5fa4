"""What a container gets: the minors of its cards in Enflame's variable, and the cards' nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from agent.vendor_api.agent import ContainerEdits, Device, DeviceNode, Request
from agent.vendors.enflame.shared import constants
from agent.vendors.enflame.shared.cdi_spec import PREFIX, SLICE

from .options import Options

#: The variable that enflame-container-runtime reads: the container sees these cards and no others.
VISIBLE = "ENFLAME_VISIBLE_DEVICES"
#: The beginning of the variables by which GCUShare's second generation gives Enflame's runtime the limits of
#: a share.
#: Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/server/server.go and pkg/device/device.go
#: (3d6f337): the processors and megabytes of a card are constants there, too.
_APART = "ENFLAME_CONTAINER"
PROCESSORS, SHARED_MEGABYTES = 24, 64
_GIB = 1 << 30


def container_edits(options: Options, devices: Sequence[Device], request: Request) -> ContainerEdits:
    """Enflame's variable, which Enflame's runtime reads, and the device nodes for other runtimes.

    A slice by its CDI name gets neither here: the spec has both, since the slice may move until its container
    starts.
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
    """The uuids of the slices as they are now. A container does not see a slice that is made again later."""
    uuids = [it.partition(":")[2] for it in partitions]
    return {SLICE: ",".join(PREFIX + it for it in uuids)} if uuids else {}


def _minors(devices: Iterable[Device]) -> Iterator[int]:
    """The minors of the cards: `/dev/gcuN`. A card without a minor has no node, and no pod gets the card."""
    return (it.minor for it in devices if it.minor is not None)


def _nodes(devices: Sequence[Device]) -> Iterator[DeviceNode]:
    control = (it.attributes.get(constants.CONTROL_NODE, "") for it in devices)
    for path in dict.fromkeys((*filter(None, control), *(path for it in devices for path in it.paths))):
        yield DeviceNode(path, path)


def _isolated(slices: int, count: int, devices: Sequence[Device]) -> Mapping[str, str]:
    """The share's part of processors, of their shared MB, and of GB of memory, each rounded down."""
    memory = min((it.memory for it in devices), default=0) // _GIB
    return {
        f"{_APART}_SUB_CARD": "false" if count == slices else "true",
        f"{_APART}_USABLE_PROCESSOR": str(PROCESSORS * count // slices),
        f"{_APART}_USABLE_SHARED_MEM": str(SHARED_MEGABYTES * count // slices),
        f"{_APART}_USABLE_GLOBAL_MEM": str(memory * count // slices),
    }

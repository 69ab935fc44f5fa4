"""What a container gets: the nodes of the driver, and those of its cards or of its slice. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agent.vendor_api.agent import ContainerEdits, Device, DeviceNode, Request
from agent.vendors.metax.shared import constants

from .options import Options


def container_edits(options: Options, devices: Sequence[Device], request: Request) -> ContainerEdits:
    """Cards are given by device node, slices by CDI name: the number of a slice changes with a reboot."""
    control = [path for it in devices for path in _list(it, constants.CONTROL_NODES)]
    if options.mode == constants.SGPU:
        return ContainerEdits(
            device_nodes=_nodes(control), cdi_devices=(f"{constants.CDI_KIND}={request.allocation}",)
        )
    uuids = ",".join(it.uuid for it in devices)
    return ContainerEdits(
        env={options.visible_devices: uuids} if options.visible_devices else {},
        device_nodes=_nodes([*control, *(path for it in devices for path in it.paths)]),
    )


def _nodes(paths: Sequence[str]) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(path, path) for path in dict.fromkeys(paths))


def _list(device: Device, attribute: str) -> list[str]:
    return list(filter(None, device.attributes.get(attribute, "").split(",")))

"""What a container gets of simulated devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.vendor_api.agent import ContainerEdits, Device, DeviceNode, Request
from agent.vendors.simulated.shared.cdi_spec import device

VISIBLE = "XPU_VISIBLE_DEVICES"


def container_edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    """The uuids in the environment, and the device nodes under their own paths."""
    return ContainerEdits(
        env={VISIBLE: ",".join(device.uuid for device in devices)},
        device_nodes=tuple(
            DeviceNode(path=path, host_path=path) for device in devices for path in device.paths
        ),
    )


def edits_by_cdi(devices: Sequence[Device], request: Request) -> ContainerEdits:
    """The same, and the CDI name of the slices that were made for the request."""
    return replace(container_edits(devices, request), cdi_devices=(device(request.allocation),))

"""The container edits for simulated devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.vendor_api.agent import ContainerEdits, Device, DeviceNode, Request
from agent.vendors.simulated.cdi import device

VISIBLE = "XPU_VISIBLE_DEVICES"


def container_edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    """A variable with the uuids, and the device nodes at the same paths as on the host."""
    return ContainerEdits(
        env={VISIBLE: ",".join(device.uuid for device in devices)},
        device_nodes=tuple(
            DeviceNode(path=path, host_path=path) for device in devices for path in device.paths
        ),
    )


def edits_by_cdi(devices: Sequence[Device], request: Request) -> ContainerEdits:
    """As `container_edits`, and the CDI name of the allocation's slices."""
    return replace(container_edits(devices, request), cdi_devices=(device(request.allocation),))

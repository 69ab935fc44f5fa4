"""What a container gets of simulated devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agent.core.vendor import ContainerEdits, Device, DeviceNode, Request

VISIBLE = "XPU_VISIBLE_DEVICES"


def container_edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    """The uuids in the environment, and the device nodes under their own paths."""
    return ContainerEdits(
        env={VISIBLE: ",".join(device.uuid for device in devices)},
        device_nodes=tuple(
            DeviceNode(path=path, host_path=path) for device in devices for path in device.paths
        ),
    )

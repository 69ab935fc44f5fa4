"""What a container gets of Acme's cards."""

from collections.abc import Sequence

from agent.vendor_api.agent import ContainerEdits, Device, DeviceNode, Request

VISIBLE = "ACME_VISIBLE_DEVICES"


def container_edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    """The device nodes, and the variable by which Acme's runtime library picks its cards."""
    nodes = tuple(DeviceNode(path, path) for device in devices for path in device.paths)
    return ContainerEdits(env={VISIBLE: ",".join(it.uuid for it in devices)}, device_nodes=nodes)

"""What a container gets: the card list that NVIDIA's container runtime reads."""

from __future__ import annotations

from collections.abc import Sequence

from agent.core.vendor import ContainerEdits, Device, Request

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"


def container_edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    """Name the cards by UUID, in the order of the request (NVIDIA's strategy `envvar`)."""
    return ContainerEdits(env={VISIBLE_DEVICES: ",".join(device.uuid for device in devices)})

"""Which IMEX channels containers get: those of the settings that exist on the node."""

from __future__ import annotations

from collections.abc import Sequence

from agent.vendor_api.agent import Device
from agent.vendors.nvidia.shared import constants

from .options import Options


def channels(options: Options, devices: Sequence[Device]) -> tuple[str, ...]:
    """The numbers of the channels, as text."""
    found = constants.list_of_node(devices, constants.IMEX_CHANNELS)
    return tuple(it for it in map(str, options.imex_channel_ids) if it in found)


def missing(options: Options, devices: Sequence[Device]) -> str:
    """Why no container can be served, in NVIDIA's words (internal/imex/imex.go); empty where it can."""
    if not options.imex_required:
        return ""
    found = channels(options, devices)
    absent = next((it for it in map(str, options.imex_channel_ids) if it not in found), None)
    if absent is None:
        return ""
    return f"error querying IMEX channels: requested IMEX channel channel{absent} does not exist"

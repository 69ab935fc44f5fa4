"""Which IMEX channels containers get: those of the settings that exist on the node."""

from __future__ import annotations

from collections.abc import Iterable

from agent.core.vendor import Device

from .options import Options

#: Where the driver makes the channels' device nodes.
DIRECTORY = "/dev/nvidia-caps-imex-channels"


def channels(options: Options, devices: Iterable[Device]) -> tuple[str, ...]:
    """The numbers of the channels to give out."""
    there = {it for device in devices for it in device.attributes.get("imex-channels", "").split(",")}
    return tuple(it for it in map(str, options.imex_channel_ids) if it in there)


def missing(options: Options, devices: Iterable[Device]) -> str:
    """Why no container can be served, in NVIDIA's words (internal/imex/imex.go); mostly empty."""
    if not options.imex_required:
        return ""
    there = channels(options, devices)
    absent = next((it for it in map(str, options.imex_channel_ids) if it not in there), None)
    if absent is None:
        return ""
    return f"error querying IMEX channels: requested IMEX channel channel{absent} does not exist"

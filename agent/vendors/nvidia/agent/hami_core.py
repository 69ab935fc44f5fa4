"""The limits of a share as variables of HAMi-core, the library that enforces them in a container.

Source: koordinator pkg/koordlet/runtimehooks/hooks/gpu/gpu.go at a7a1b76b; Project-HAMi/HAMi-core README.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.vendor_api.agent import Device, Mount

LIBRARY = "libvgpu.so"
#: The directory of the locks that containers of one node share.
LOCKS = "/tmp/vgpulock"


def environment(directory: str, parameters: Mapping[str, str], devices: Sequence[Device]) -> dict[str, str]:
    """The variables that the library reads: bytes of each card, and percent of the cores."""
    limits = {
        "CUDA_DEVICE_MEMORY_LIMIT": _memory(parameters, devices),
        "CUDA_DEVICE_SM_LIMIT": parameters.get("core"),
    }
    variables = {name: value for name, value in limits.items() if value}
    return {**variables, "LD_PRELOAD": f"{directory}/{LIBRARY}"} if variables else {}


def mounts(directory: str, parameters: Mapping[str, str], devices: Sequence[Device]) -> tuple[Mount, ...]:
    """The mounts of the library and of the directory of its locks."""
    if not environment(directory, parameters, devices):
        return ()
    library = f"{directory}/{LIBRARY}"
    return (Mount(library, library), Mount(LOCKS, LOCKS, read_only=False))


def _memory(parameters: Mapping[str, str], devices: Sequence[Device]) -> str | None:
    """One limit for all cards: bytes, or a percentage of the smallest card; the smaller one of both."""
    limit, percent = parameters.get("memory"), parameters.get("ratio", "")
    sizes = [it.memory for it in devices if it.memory]
    if not (percent.isdecimal() and sizes):
        return limit
    share = min(sizes) * int(percent) // 100
    return str(min(share, int(limit))) if limit and limit.isdecimal() else limit or str(share)

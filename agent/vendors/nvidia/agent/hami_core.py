"""The limits of a share in the words of HAMi-core, the library that holds a container to them.

Source: koordinator pkg/koordlet/runtimehooks/hooks/gpu/gpu.go at a7a1b76b; Project-HAMi/HAMi-core README.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.vendor_api.agent import Device, Mount

LIBRARY = "libvgpu.so"
#: Where containers of one node wait for each other.
LOCKS = "/tmp/vgpulock"


def environment(directory: str, parameters: Mapping[str, str], devices: Sequence[Device]) -> dict[str, str]:
    """What the library reads: bytes of each card, and percent of its cores."""
    limits = {
        "CUDA_DEVICE_MEMORY_LIMIT": _memory(parameters, devices),
        "CUDA_DEVICE_SM_LIMIT": parameters.get("core"),
    }
    said = {name: value for name, value in limits.items() if value}
    return {**said, "LD_PRELOAD": f"{directory}/{LIBRARY}"} if said else {}


def mounts(directory: str, parameters: Mapping[str, str], devices: Sequence[Device]) -> tuple[Mount, ...]:
    """The library, and the directory of its locks."""
    if not environment(directory, parameters, devices):
        return ()
    library = f"{directory}/{LIBRARY}"
    return (Mount(library, library), Mount(LOCKS, LOCKS, read_only=False))


def _memory(parameters: Mapping[str, str], devices: Sequence[Device]) -> str | None:
    """Bytes, or a percentage of the smallest card, one limit for all of them; of both the smaller one."""
    said, percent = parameters.get("memory"), parameters.get("ratio", "")
    sizes = [it.memory for it in devices if it.memory]
    if not (percent.isdecimal() and sizes):
        return said
    share = min(sizes) * int(percent) // 100
    return str(min(share, int(said))) if said and said.isdecimal() else said or str(share)

"""The limits of a share in the words of HAMi-core, the library that holds a container to them.

Source: koordinator pkg/koordlet/runtimehooks/hooks/gpu/gpu.go at a7a1b76b; Project-HAMi/HAMi-core README.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.core.vendor import Mount

LIBRARY = "libvgpu.so"
#: Where containers of one node wait for each other.
LOCKS = "/tmp/vgpulock"


def environment(directory: str, parameters: Mapping[str, str]) -> dict[str, str]:
    """What the library reads: bytes of each card, and percent of its cores."""
    limits = {
        "CUDA_DEVICE_MEMORY_LIMIT": parameters.get("memory"),
        "CUDA_DEVICE_SM_LIMIT": parameters.get("core"),
    }
    said = {name: value for name, value in limits.items() if value}
    return {**said, "LD_PRELOAD": f"{directory}/{LIBRARY}"} if said else {}


def mounts(directory: str, parameters: Mapping[str, str]) -> tuple[Mount, ...]:
    """The library, and the directory of its locks."""
    if not environment(directory, parameters):
        return ()
    library = f"{directory}/{LIBRARY}"
    return (Mount(library, library), Mount(LOCKS, LOCKS, read_only=False))

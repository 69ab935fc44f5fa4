"""The limits of a share, as HAMi-core reads them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.vendor_api.agent import ContainerEdits, Device, Mount, Request
from agent.vendors.nvidia.agent.container_edits import container_edits
from agent.vendors.nvidia.agent.options import Options

CARD = Device("GPU-0", 0, memory=81559 << 20)
VISIBLE = {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
PRELOAD = {"LD_PRELOAD": "/opt/vgpu/libvgpu.so"}


def edits(parameters: Mapping[str, str], directory: str = "/opt/vgpu/") -> ContainerEdits:
    options = Options.read({"hamiCoreDirectory": directory})
    return container_edits(options, [CARD], Request("a", "nvidia.com/gpu.shared", ("GPU-0::0",), parameters))


@pytest.mark.parametrize(
    ("parameters", "limits"),
    [
        (
            {"core": "30", "memory": "1024", "ratio": "12"},
            {"CUDA_DEVICE_MEMORY_LIMIT": "1024", "CUDA_DEVICE_SM_LIMIT": "30"},
        ),
        ({"memory": str(1 << 40), "ratio": "50"}, {"CUDA_DEVICE_MEMORY_LIMIT": str(41758208 << 10)}),
        ({"core": "30"}, {"CUDA_DEVICE_SM_LIMIT": "30"}),
        ({"memory": "1024"}, {"CUDA_DEVICE_MEMORY_LIMIT": "1024"}),
        ({"ratio": "50"}, {"CUDA_DEVICE_MEMORY_LIMIT": str(41758208 << 10)}),
    ],
)
def test_a_share_comes_with_its_limits_and_the_library(
    parameters: Mapping[str, str], limits: Mapping[str, str]
) -> None:
    found = edits(parameters)

    assert found.env == {**VISIBLE, **limits, **PRELOAD}
    assert found.mounts == (
        Mount("/opt/vgpu/libvgpu.so", "/opt/vgpu/libvgpu.so"),
        Mount("/tmp/vgpulock", "/tmp/vgpulock", read_only=False),
    )


@pytest.mark.parametrize(("parameters", "directory"), [({}, "/opt/vgpu"), ({"core": "30"}, "")])
def test_a_whole_card_and_a_node_without_the_library_have_no_limits(
    parameters: Mapping[str, str], directory: str
) -> None:
    found = edits(parameters, directory)

    assert (found.env, found.mounts) == (VISIBLE, ())

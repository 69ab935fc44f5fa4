"""A picture of `xpu-agent top --once`, from made-up use of two cards."""

from __future__ import annotations

from collections.abc import Iterator

from agent.cli.top_picture import Picture
from agent.cli.top_tables import render
from agent.host.terminal import plain
from agent.http.inspect_document import (
    InspectDocument,
    InspectedAllocation,
    InspectedDevice,
    InspectedHealth,
    InspectedOwner,
)
from agent.http.usage.usage_document import (
    UsageDocument,
    UsedCard,
    UsingContainer,
    UsingProcess,
    VendorSampling,
)

_GIB = 1 << 30
_WIDTH = 118


def _device(index: int) -> InspectedDevice:
    return InspectedDevice(
        vendor="nvidia",
        uuid=f"GPU-{index}",
        index=index,
        memory_bytes=80 * _GIB,
        model="NVIDIA H100 80GB HBM3",
        health=InspectedHealth(state="healthy"),
    )


def _card(index: int, used: int, utilization: float, **more: dict[str, int]) -> UsedCard:
    return UsedCard(
        vendor="nvidia",
        uuid=f"GPU-{index}",
        memory_total_bytes=80 * _GIB,
        memory_used_bytes=used * _GIB,
        utilization=utilization,
        temperature_celsius=40 + 30 * utilization,
        power_watts=90 + 500 * utilization,
        unattributed_bytes=more.get("unattributed", {}),
    )


def _container(index: int, name: str, memory: int, utilization: float, idle: float) -> UsingContainer:
    return UsingContainer(
        namespace="team-a",
        pod=name,
        container="main",
        uuid=f"GPU-{index}",
        processes=1,
        memory_bytes=memory * _GIB,
        utilization=utilization,
        memory_limit_bytes=(40 if index else 80) * _GIB,
        compute_limit=0.5 if index else 1.0,
        idle_seconds=idle,
    )


def _process(index: int, pod: str, name: str) -> UsingProcess:
    return UsingProcess(uuid=f"GPU-{index}", namespace="team-a", pod=pod, container="main", name=name)


_PICTURE = Picture(
    InspectDocument(
        node="gpu-7",
        version="0.1.0",
        devices=(_device(0), _device(1)),
        allocations=(
            InspectedAllocation(
                devices=("GPU-1",),
                state="done",
                owner=InspectedOwner(namespace="team-b", pod="starting-0", container="main"),
            ),
        ),
    ),
    UsageDocument(
        interval_seconds=5.0,
        sampling=(VendorSampling(vendor="nvidia", up=True, age_seconds=2.0),),
        cards=(_card(0, 62, 0.97), _card(1, 27, 0.31, unattributed={"host": _GIB})),
        containers=(
            _container(0, "train-0", 62, 0.97, 0.0),
            _container(1, "infer-0", 18, 0.31, 0.0),
            _container(1, "notebook-3", 8, 0.0, 5400.0),
        ),
        processes=(
            _process(0, "train-0", "python3"),
            _process(1, "infer-0", "tritonserver"),
            _process(1, "notebook-3", "jupyter"),
        ),
    ),
)


def top_example() -> Iterator[str]:
    """The command with what it prints."""
    yield from ("```console", "$ xpu-agent top --once")
    yield from plain(render(_PICTURE, _WIDTH), _WIDTH).rstrip().splitlines()
    yield "```"

"""One pass over 500 pods: the kubelet's checkpoint and its PodResources answer against the ledger."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.cell import Cell
from agent.core.devices.topology import Topology
from agent.core.model import Allocation, AllocationState, NodeSnapshot
from agent.core.reconciling.reconcile_evidence import Pods
from agent.daemon.allocation.allocator import Allocator
from agent.daemon.reconciling.evidence_sources import EvidenceSources
from agent.daemon.reconciling.ledger_updates import LedgerUpdates
from agent.daemon.reconciling.reconcile_loop import Reconciler, ReconcileTiming
from agent.daemon.reconciling.recovery import Recovery
from agent.kubelet import kubelet_checkpoint as checkpoint
from agent.kubelet.checkpoint_reader import CheckpointReader
from agent.kubelet.pb.deviceplugin import v1beta1 as deviceplugin
from agent.kubelet.pb.podresources import v1 as podresources
from agent.kubelet.pod_resources import pods_in_use
from agent.kubelet.protobuf import decoded
from agent.vendor_api.agent import Partition, Request
from bench.pace import Pace
from bench.rows import Figure, Row
from bench.subjects import GPU, Subject

RUNS = 7
PODS = 500
REFERENCE = "betterproto2's decode alone 31-88"
SAME = Figure("reconcile pass, 500 pods", "ms of CPU", 20, REFERENCE)
CHANGED = Figure("reconcile pass, 500 pods, after an Allocate", "ms of CPU", 20, REFERENCE)
PROVEN = Figure("the same, with the proof of the checksum", "ms of CPU", None, "none; once in 30 s at most")


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """Read, decide and apply, in a process of its own kind: the bench's."""
    # 500 pods are confirmed in each run, and here the log is the bench's own.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    same, changed, proven = [], [], []
    with tempfile.TemporaryDirectory(prefix="xb-") as directory:
        file = Path(directory) / "kubelet_internal_checkpoint"
        answer = pod_resources()
        for run in range(pace.runs(RUNS)):
            reconciler = _reconciler(file, answer)
            file.write_bytes(kubelet_checkpoint(2 * run))
            await reconciler.reconcile()
            file.write_bytes(kubelet_checkpoint(2 * run + 1))
            changed.append(await _pass(reconciler, full=False))
            proven.append(await _pass(reconciler, full=True))
            same.append(await _pass(reconciler, full=True))
    sizes = f"checkpoint of {len(kubelet_checkpoint(0)):,} bytes, answer of {len(answer):,}"
    note = f"{sizes}; transport not counted"
    return [
        SAME.row(same, note),
        CHANGED.row(changed, "the kubelet has just written a new checkpoint"),
        PROVEN.row(proven, "an FNV-1a of 600 kB, byte by byte in Python, in a thread"),
    ]


async def _pass(reconciler: Reconciler, *, full: bool) -> float:
    before = time.process_time()
    await reconciler.reconcile(full=full)
    return (time.process_time() - before) * 1000


def _reconciler(file: Path, answer: bytes) -> Reconciler:
    async def in_use() -> Pods:
        await asyncio.sleep(0)
        return await decoded("ListPodResourcesResponse", pods_in_use, answer)

    allocations = [
        Allocation(
            id=_allocation(pod),
            resource=GPU,
            vendor="nvidia",
            ids=(_device(pod),),
            devices=(_card(pod),),
            state=AllocationState.DONE,
            since=float(pod),
        )
        for pod in range(PODS)
    ]
    ledger = Ledger(allocations)
    scene = Scene({}, NodeSnapshot(), Topology(), {})
    reader = CheckpointReader(file)
    sources = EvidenceSources(lambda prove: reader.read(prove=prove), in_use, _partitions, life=lambda: "k1")
    allocator = Allocator(lambda: scene, ledger, _NoDisk(), time.time, _prepare, _release, sources)
    return Reconciler(
        ledger,
        sources,
        allocator,
        Recovery(ledger, sources, Cell({}), time.time),
        LedgerUpdates(ledger, allocator, tuple, _release, lambda resource: None, time.time),
        _NoDisk().changed,
        time.time,
        ReconcileTiming(),
    )


class _NoDisk:
    """Saving is measured elsewhere."""

    async def save(self, *, durable: bool) -> None:
        """It is done."""

    async def changed(self) -> None:
        """It is known."""


async def _prepare(vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
    return ()


async def _release(vendor: str, allocation: str) -> None:
    """There is no hardware to free."""


async def _partitions(vendor: str) -> Sequence[Partition]:
    return ()


def kubelet_checkpoint(change: int) -> bytes:
    """What the kubelet writes for 500 pods of one replica each; `change` makes the first another pod."""
    content: dict[str, Any] = {
        "PodDeviceEntries": [
            {
                "PodUID": f"{0 if pod else change:08x}-0000-4000-8000-{pod:012x}",
                "ContainerName": "main",
                "ResourceName": GPU,
                "DeviceIDs": {"0": [_device(pod)]},
                "AllocResp": base64.b64encode(_allocate_response(pod)).decode(),
            }
            for pod in range(PODS)
        ],
        "RegisteredDevices": {GPU: [_device(pod) for pod in range(PODS)]},
    }
    document = {"Data": content, "Checksum": checkpoint.checksum(content)}
    return json.dumps(document, separators=(",", ":")).encode()


def _allocate_response(pod: int) -> bytes:
    paths = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", f"/dev/nvidia{pod % 8}")
    return bytes(
        deviceplugin.ContainerAllocateResponse(
            envs={"NVIDIA_VISIBLE_DEVICES": _card(pod)},
            annotations={ALLOCATION: _allocation(pod)},
            devices=[
                deviceplugin.DeviceSpec(container_path=path, host_path=path, permissions="rw")
                for path in paths
            ],
        )
    )


def pod_resources() -> bytes:
    """The answer of a kubelet with 500 pods of two containers, one of which holds a replica."""
    return bytes(
        podresources.ListPodResourcesResponse(
            pod_resources=[
                podresources.PodResources(
                    name=f"training-job-{pod:05d}-worker-0",
                    namespace="team-of-some-name",
                    containers=[_holding(pod), podresources.ContainerResources(name="sidecar")],
                )
                for pod in range(PODS)
            ]
        )
    )


def _holding(pod: int) -> podresources.ContainerResources:
    return podresources.ContainerResources(
        name="main",
        devices=[
            podresources.ContainerDevices(
                resource_name=GPU,
                device_ids=[_device(pod)],
                topology=podresources.TopologyInfo(nodes=[podresources.NumaNode(id=pod % 2)]),
            )
        ],
        cpu_ids=list(range(pod % 64, pod % 64 + 4)),
    )


def _card(pod: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{pod % 8:012d}"


def _device(pod: int) -> str:
    return f"{_card(pod)}::{pod // 8}"


def _allocation(pod: int) -> str:
    return f"{pod:016x}"

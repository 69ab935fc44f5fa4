"""What docs/koordinator.md has of the code: the names on objects, and a card as it is told."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from agent.core.allocation import answer_annotations
from agent.scheduler_api.node_report import LinkedCards, Report, ReportedCard
from agent.schedulers.common.node_lock import LOCKS
from agent.schedulers.hami import pod_annotations
from agent.schedulers.koordinator import (
    allocated_annotation,
    device_infos_file,
    device_object,
    gpu_partitions,
)
from agent.schedulers.koordinator.reported_cards import LABELS
from pages.table import code, table

GIB = 1 << 30
CARD = ReportedCard(
    uuid="GPU-6fb1a1a8-2ed5-4c22-a0a7-4b5e6f0c8a11",
    minor=0,
    healthy=False,
    status="False",
    reason="Xid79",
    message="GPU has fallen off the bus",
    memory=80 * GIB,
    model="H100-80GB-HBM3",
    numa=0,
    pcie="pci0000:3a",
    pci="0000:3b:00.0",
    labels={"xpu-agent.io/model": "H100-80GB-HBM3"},
)
REPORT = Report("nvidia", (CARD,), "H100-80GB-HBM3", "570.124.06", (LinkedCards((0, 1), "NVLink"),))

#: The labels that a card may have (report.py).
LABELLED = {
    "model": "its model",
    "architecture": "its architecture, of vendors that say it",
    "compute-capability": "CUDA's: `9.0`",
    "pci-device-id": "PCI's number of the model: `0x233010de`",
    "driver-version": "the driver's version",
}
#: Where a name stands, and what it says.
WRITTEN: Sequence[tuple[str, str, str]] = (
    (
        device_object.VENDOR,
        "label of the Device",
        "the vendor as Koordinator names it; its scheduler goes by it",
    ),
    (device_object.MODEL, "label of the Device", "the cards' model, where it is one"),
    (device_object.DRIVER, "label of the Device", "the driver's version"),
    (
        device_object.POLICY,
        "label of the Device",
        "`Prefer` where cards are linked; `Honor` that another program set stays",
    ),
    (gpu_partitions.ANNOTATION, "annotation of the Device", "the groups of linked cards"),
    *((f"{LABELS}{name}", "label of a card in the Device", what) for name, what in LABELLED.items()),
    (
        answer_annotations.CARDS,
        "annotation of the container",
        "the cards, where they are not those of its device IDs",
    ),
    (answer_annotations.SHARE, "annotation of the container", "the share that it was answered with"),
)
READ: Sequence[tuple[str, str, str]] = (
    (allocated_annotation.ALLOCATED, "annotation of the pod", "the cards, and how much of each"),
    (
        pod_annotations.METAX_ALLOCATED,
        "annotation of the pod",
        "the same cards as MetaX's plugin reads them; of HAMi, too",
    ),
    ("hami.io/*-devices-to-allocate", "annotation of the pod", "HAMi's cards for each container"),
    ("hami.io/*-devices-allocated", "annotation of the pod", "the same, once it was bound"),
    *(
        (it, "annotation of the Node", "the pod that HAMi places now; removed when that pod has its cards")
        for it in LOCKS
    ),
)


def part(what: str) -> str:
    """One of the parts of the page; raises KeyError for another."""
    return {"written": _written, "read": _read, "device": _device, "file": _file}[what]()


def _written() -> str:
    return _names(WRITTEN)


def _read() -> str:
    return _names(READ)


def _names(rows: Sequence[tuple[str, str, str]]) -> str:
    return "\n".join(table(("name", "where", "what it says"), ((code(name), *rest) for name, *rest in rows)))


def _device() -> str:
    """The Device of a node with one card, as it is made where there is none."""
    made = device_object.device(
        "gpu-node-1", "d5ae1c6e-0f8e-4c0e-9f64-6f5b8d0f2a31", REPORT, None, 1795305600.0
    )
    return f"```yaml\n{yaml.safe_dump(made, sort_keys=False, width=110).strip()}\n```"


def _file() -> str:
    """The file of the same node."""
    return f"```json\n{device_infos_file.device_infos(REPORT).strip()}\n```"

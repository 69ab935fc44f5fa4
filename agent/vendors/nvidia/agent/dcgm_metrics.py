"""The series of NVIDIA's dcgm-exporter, as far as NVML and GPM know them.

Source: NVIDIA/dcgm-exporter etc/default-counters.csv and internal/pkg/transformation/process_metrics.go at
d5e5f51.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from agent.vendor_api.agent import DRIVER_VERSION, Device, Usage
from agent.vendor_api.metric_families import MetricFamily, labels
from agent.vendor_api.node_usage import ContainerUsage, NodeUsage, mib, percent

from ..shared.constants import GI, MIG_PROFILE

Number = TypeVar("Number", int, float)

_POD = ("pod", "namespace", "container")
Value = float | None

#: The figures of a card that say what programs do on it. A card with slices has them slice by slice.
_OF_USE: Mapping[str, tuple[str, Callable[[Usage], Value]]] = {
    "FB_FREE": ("Framebuffer memory free (in MiB).", lambda it: mib(_free(it))),
    "FB_RESERVED": ("Framebuffer memory reserved (in MiB).", lambda it: mib(it.memory_reserved)),
    "MEM_COPY_UTIL": ("Memory utilization (in %).", lambda it: percent(it.memory_utilization)),
    "ENC_UTIL": ("Encoder utilization (in %).", lambda it: percent(it.encoder_utilization)),
    "DEC_UTIL": ("Decoder utilization (in %).", lambda it: percent(it.decoder_utilization)),
}
#: The figures of the board, which slices do not have.
_OF_BOARD: Mapping[str, tuple[str, Callable[[Usage], Value]]] = {
    "GPU_TEMP": ("GPU temperature (in C).", lambda it: it.temperature),
    "MEMORY_TEMP": ("Memory temperature (in C).", lambda it: it.memory_temperature),
    "POWER_USAGE": ("Power draw (in W).", lambda it: it.power),
    "SM_CLOCK": ("SM clock frequency (in MHz).", lambda it: _mhz(it.clock)),
    "MEM_CLOCK": ("Memory clock frequency (in MHz).", lambda it: _mhz(it.memory_clock)),
    "XID_ERRORS": ("Value of the last XID error encountered.", lambda it: it.last_driver_error or 0),
}
_COUNTERS: Mapping[str, tuple[str, Callable[[Usage], Value]]] = {
    "TOTAL_ENERGY_CONSUMPTION": (
        "Total energy consumption since the driver was loaded (in mJ).",
        lambda it: _millijoules(it.energy),
    ),
    "ECC_SBE_VOL_TOTAL": (
        "Total number of single-bit volatile ECC errors.",
        lambda it: it.ecc_errors.get("corrected"),
    ),
    "ECC_DBE_VOL_TOTAL": (
        "Total number of double-bit volatile ECC errors.",
        lambda it: it.ecc_errors.get("uncorrected"),
    ),
}


class _Figures(NamedTuple):
    """What one container uses of a card, or of all slices of a GPU instance."""

    memory: int | None
    utilization: float | None


class _Row(NamedTuple):
    """A card, or a GPU instance with all its compute instances, which share its memory."""

    labels: str
    usage: Usage
    #: The containers that have or use it, each once: the labels that they add, and their figures.
    containers: Sequence[tuple[str, _Figures]]
    is_shared: bool
    is_board: bool


def dcgm_families(usage: NodeUsage) -> Iterator[MetricFamily]:
    """The series of all cards and slices, with the pod where exactly one container has the card.

    On a shared card each container has its own utilization and memory, as dcgm-exporter splits them; the
    other figures have no pod there.
    """
    rows = [*_rows(usage)]
    known = (usage.devices.get(card.uuid) for card in usage.cards)
    cut = {device.parent for device in known if device is not None}
    whole = [row for row in rows if row.usage.uuid not in cut]
    boards = [row for row in rows if row.is_board]
    help_ = "GPU utilization (in %)."
    split = _split(whole, lambda it: percent(it.utilization), lambda it: percent(it.utilization))
    yield MetricFamily("DCGM_FI_DEV_GPU_UTIL", help_, split)
    help_ = "Framebuffer memory used (in MiB)."
    split = _split(whole, lambda it: mib(it.memory_used), lambda it: mib(it.memory))
    yield MetricFamily("DCGM_FI_DEV_FB_USED", help_, split)
    for name, (help_, value) in _OF_USE.items():
        yield MetricFamily(f"DCGM_FI_DEV_{name}", help_, _each(whole, value))
    for name, (help_, value) in _OF_BOARD.items():
        yield MetricFamily(f"DCGM_FI_DEV_{name}", help_, _each(boards, value))
    for name, (help_, value) in _COUNTERS.items():
        yield MetricFamily(f"DCGM_FI_DEV_{name}", help_, _each(boards, value), "counter")
    help_ = "Ratio of cycles the tensor (HMMA) pipe is active."
    series = _each(whole, lambda it: it.tensor_utilization)
    yield MetricFamily("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", help_, series)


def _rows(usage: NodeUsage) -> Iterator[_Row]:
    containers_of: dict[str, list[ContainerUsage]] = {}
    for use in usage.containers:
        containers_of.setdefault(use.uuid, []).append(use)
    groups: dict[tuple[str, str], list[Usage]] = {}
    for card in usage.cards:
        if (device := usage.devices.get(card.uuid)) is not None:
            groups.setdefault((device.parent or device.uuid, _instance(device)), []).append(card)
    for (_, instance), cards in groups.items():
        uuids = [card.uuid for card in cards]
        by_container: dict[tuple[str, ...], list[ContainerUsage]] = {}
        for use in (use for uuid in uuids for use in containers_of.get(uuid, ())):
            by_container.setdefault((use.pod, use.namespace, use.container), []).append(use)
        device = usage.devices[uuids[0]]
        yield _Row(
            _labels(usage, device, instance),
            cards[0],
            [(labels(_POD, names), _together(uses)) for names, uses in by_container.items()],
            len(by_container) > 1 or not usage.shared.isdisjoint(uuids),
            device.parent is None,
        )


def _together(uses: Sequence[ContainerUsage]) -> _Figures:
    """The figures of one container. A sum is known where each part is."""
    if len(uses) == 1:  # nearly all
        return _Figures(uses[0].memory, uses[0].utilization)
    memory, busy = _sum([use.memory for use in uses]), _sum([use.utilization for use in uses])
    return _Figures(memory, None if busy is None else min(1.0, busy))


def _instance(device: Device) -> str:
    """The number of the GPU instance; empty of a card. Another slice stands for itself."""
    return "" if device.parent is None else device.attributes.get(GI) or device.uuid


def _labels(usage: NodeUsage, device: Device, instance: str) -> str:
    """The labels of a card, or those of a slice's card with the number and profile of the GPU instance."""
    index = str(device.index)
    named = {
        "gpu": index,
        "UUID": device.parent or device.uuid,
        "pci_bus_id": _bus_id(device.pci),
        "device": f"nvidia{index}",
        "modelName": device.model,
    }
    if device.parent is not None:
        # The profile of a compute instance begins with its own part: 1c.3g.40gb.
        named["GPU_I_PROFILE"] = device.attributes.get(MIG_PROFILE, "").rpartition("c.")[2]
        named["GPU_I_ID"] = instance
    driver = device.attributes.get(DRIVER_VERSION, "")
    named |= {"hostname": usage.node, "DCGM_FI_DRIVER_VERSION": driver}
    return labels((*named,), (*named.values(),))


def _bus_id(pci: str | None) -> str:
    """The address as NVML writes it: 00000000:3B:00.0; empty where it is not known."""
    domain, _, rest = (pci or "").partition(":")
    return f"{domain:0>8}:{rest}".upper() if rest else ""


def _free(usage: Usage) -> int | None:
    if usage.memory_total is None or usage.memory_used is None:
        return None
    return max(0, usage.memory_total - usage.memory_used - (usage.memory_reserved or 0))


def _split(
    rows: Sequence[_Row],
    of_card: Callable[[Usage], Value],
    of_container: Callable[[_Figures], Value],
) -> Sequence[tuple[str, float]]:
    """The figure of each container on shared cards, and of each other card."""
    series: list[tuple[str, float]] = []
    for row in rows:
        containers = row.containers if row.is_shared else ()
        known = [(f"{row.labels},{pod}", of_container(figures)) for pod, figures in containers]
        of_containers = [(named, value) for named, value in known if value is not None]
        series += of_containers or _each((row,), of_card)
    return series


def _each(rows: Sequence[_Row], value: Callable[[Usage], Value]) -> Sequence[tuple[str, float]]:
    """The figure of each card, with the pod where one container alone has the card."""
    found = ((_with_pod(row), value(row.usage)) for row in rows)
    return [(named, figure) for named, figure in found if figure is not None]


def _with_pod(row: _Row) -> str:
    is_alone = row.containers and not row.is_shared
    return f"{row.labels},{row.containers[0][0]}" if is_alone else row.labels


def _sum(parts: Sequence[Number | None]) -> Number | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _mhz(hertz: float | None) -> int | None:
    return None if hertz is None else round(hertz / 1_000_000)


def _millijoules(joules: float | None) -> int | None:
    return None if joules is None else round(joules * 1000)

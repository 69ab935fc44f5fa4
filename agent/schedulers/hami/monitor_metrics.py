"""The series of HAMi's monitor on a node, under the names of today and of `--legacy-metrics`.

Source: Project-HAMi/HAMi cmd/vGPUmonitor/metrics.go at 4707fb02. HAMi reads the shared file of HAMi-core,
so that programs without that library are missing there; these series have all programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from agent.vendor_api.backend import Device, Usage
from agent.vendor_api.metric_families import MetricFamily, labels
from agent.vendor_api.node_usage import ContainerUsage, NodeUsage, percent

_HOST: tuple[str, ...] = ("node", "device_index", "device_uuid", "device_type")
_HOST_OF_OLD: tuple[str, ...] = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
_CONTAINER: tuple[str, ...] = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_CONTAINER_OF_OLD: tuple[str, ...] = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_SLICE = ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id")
#: The terms with the vendor's names of a slice's attributes, as `_SLICE` has them.
_ATTRIBUTES = ("profile", "gpu_instance", "compute_instance")
Value = float | None


def monitor_families(terms: Mapping[str, str], usage: NodeUsage) -> Iterator[MetricFamily]:
    """The series of cards and of the containers on them; ratios are from 0 to 100.

    The term `make` is HAMi's word for the cards' make, with which their types begin: NVIDIA.
    """
    cards = [it for it in usage.cards if _is_card(usage.devices.get(it.uuid))]
    hosts = [_host(terms["make"], usage, it) for it in cards]
    for columns, is_old in ((_HOST, False), (_HOST_OF_OLD, True)):
        named = [labels(columns, names) for names in hosts]
        for name, of_old, help_, figure in _OF_HOST:
            if shown := of_old if is_old else name:
                yield _family(shown, help_, named, [figure(it) for it in cards])
    containers = [*_numbered(usage)]
    for columns, is_old in ((_CONTAINER, False), (_CONTAINER_OF_OLD, True)):
        named = [labels(columns, names) for names, _ in containers]
        for name, of_old, help_, value in _OF_CONTAINERS:
            figures = [value(use, usage.now) for _, use in containers]
            yield _family(of_old if is_old else name, help_, named, figures)
    slices = [*_slices(terms, usage, containers)]
    named = [labels((*_CONTAINER, *_SLICE), names) for names in slices]
    yield _family(
        "hami_mig_device_info", "MIG runtime identity for a container allocation", named, [1] * len(named)
    )
    named = [labels(_CONTAINER_OF_OLD, names[: len(_CONTAINER)]) for names in slices]
    yield _family("MigInfo", "Mig device information for container", named, [1] * len(named))


#: Name, name of old or none, help, figure.
_OF_HOST: Sequence[tuple[str, str, str, Callable[[Usage], Value]]] = (
    (
        "hami_host_gpu_memory_used_bytes",
        "HostGPUMemoryUsage",
        "GPU device memory usage in bytes",
        lambda it: None if it.memory_used is None else it.memory_used + (it.memory_reserved or 0),
    ),
    (
        "hami_host_gpu_utilization_ratio",
        "HostCoreUtilization",
        "GPU core utilization ratio (0-100)",
        lambda it: percent(it.utilization),
    ),
    (
        "hami_host_gpu_memory_controller_utilization_ratio",
        "",  # no name of old
        "GPU memory controller utilization ratio (0-100)",
        lambda it: percent(it.memory_utilization),
    ),
)

_OF_CONTAINERS: Sequence[tuple[str, str, str, Callable[[ContainerUsage, float], Value]]] = (
    (
        "hami_vgpu_memory_used_bytes",
        "vGPU_device_memory_usage_in_bytes",
        "vGPU device memory usage in bytes",
        lambda use, now: use.memory,
    ),
    (
        "hami_vgpu_memory_limit_bytes",
        "vGPU_device_memory_limit_in_bytes",
        "vGPU device memory limit in bytes",
        lambda use, now: use.memory_limit,
    ),
    (
        "hami_container_device_memory_bytes",
        "Device_memory_desc_of_container",
        "Container device memory usage in bytes",
        lambda use, now: use.memory,
    ),
    (
        "hami_container_device_utilization_ratio",
        "Device_utilization_desc_of_container",
        "Container device SM utilization ratio (0-100)",
        lambda use, now: percent(use.utilization),
    ),
    (
        "hami_container_last_kernel_elapsed_seconds",
        "Device_last_kernel_of_container",
        "Seconds since last kernel execution in container",
        lambda use, now: None if use.active_at is None else max(0, round(now - use.active_at)),
    ),
)


def _family(name: str, help_: str, named: Sequence[str], figures: Sequence[Value]) -> MetricFamily:
    """The series with a known figure; `named` are their labels."""
    pairs = zip(named, figures, strict=True)
    return MetricFamily(name, help_, [(it, figure) for it, figure in pairs if figure is not None])


def _is_card(device: Device | None) -> bool:
    return device is not None and device.parent is None


def _host(make: str, usage: NodeUsage, card: Usage) -> tuple[str, ...]:
    device = usage.devices[card.uuid]
    return (usage.node, str(device.index), device.uuid, f"{make}-{device.model}")


def _numbered(usage: NodeUsage) -> Iterator[tuple[tuple[str, ...], ContainerUsage]]:
    """Each use with its labels. The number of a card counts the cards of its container, in their order."""
    order = {uuid: number for number, uuid in enumerate(usage.devices)}
    counts: dict[tuple[str, str, str], int] = {}
    for use in sorted(usage.containers, key=lambda it: order.get(it.uuid, len(order))):
        owner = (use.namespace, use.pod, use.container)
        number = counts.get(owner, 0)
        counts[owner] = number + 1
        yield (*owner, str(number), use.uuid), use


def _slices(
    terms: Mapping[str, str],
    usage: NodeUsage,
    containers: Sequence[tuple[tuple[str, ...], ContainerUsage]],
) -> Iterator[tuple[str, ...]]:
    """The labels of containers on slices: the card's uuid, then the slice's uuid, profile and numbers."""
    attributes = [terms.get(it, "") for it in _ATTRIBUTES]
    for names, use in containers:
        device = usage.devices.get(use.uuid)
        if device is not None and (parent := device.parent) is not None:
            of_slice = (use.uuid, *(device.attributes.get(it, "") for it in attributes))
            yield (*names[:-1], parent, *of_slice)

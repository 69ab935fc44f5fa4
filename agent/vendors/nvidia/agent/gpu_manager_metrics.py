"""The series of Tencent's gpu-manager: memory in MiB, compute in percent, requests in cards.

Source: tkestack/gpu-manager pkg/services/display/display.go and pkg/types/metrics.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain

from agent.vendor_api.metric_families import MetricFamily, labels
from agent.vendor_api.node_usage import ContainerUsage, NodeUsage, mib, percent

_CONTAINER = ("pod_name", "namespace", "node", "container_name")
_TOTAL = "total"
Value = float | None
#: The cards of one container: index, use.
Cards = Sequence[tuple[int, ContainerUsage]]
#: The memory of each card in bytes, by uuid.
Totals = Mapping[str, int | None]


def gpu_manager_families(usage: NodeUsage) -> Iterator[MetricFamily]:
    """What each container uses of each card and of all its cards, and what it has requested."""
    by_container = _by_container(usage).items()
    containers = [(labels(_CONTAINER, names), cards) for names, cards in by_container]
    for name, help_, label, figures in _USED:
        parts = (_used(named, label, figures(cards)) for named, cards in containers)
        yield MetricFamily(name, help_, [*chain.from_iterable(parts)])
    totals = {card.uuid: card.memory_total for card in usage.cards}
    for name, help_, label, requested in _REQUESTED:
        parts = (
            _requested(named, label, requested(usage.shared, totals, cards)) for named, cards in containers
        )
        yield MetricFamily(name, help_, [*chain.from_iterable(parts)])


def _by_container(usage: NodeUsage) -> dict[tuple[str, ...], list[tuple[int, ContainerUsage]]]:
    found: dict[tuple[str, ...], list[tuple[int, ContainerUsage]]] = {}
    for use in usage.containers:
        if (device := usage.devices.get(use.uuid)) is not None:
            names = (use.pod, use.namespace, usage.node, use.container)
            found.setdefault(names, []).append((device.index, use))
    return found


def _utilizations(cards: Cards) -> Sequence[tuple[int, Value]]:
    return [(index, percent(use.utilization)) for index, use in cards]


def _memories(cards: Cards) -> Sequence[tuple[int, Value]]:
    return [(index, mib(use.memory)) for index, use in cards]


def _cores(shared: Set[str], totals: Totals, cards: Cards) -> Sequence[Value]:
    """Parts of cards, 1 for a whole one."""
    return [use.compute_limit if use.uuid in shared else use.compute_limit or 1 for _, use in cards]


def _memory(shared: Set[str], totals: Totals, cards: Cards) -> Sequence[Value]:
    """The granted memory in MiB: the card's for a whole one."""
    return [
        mib(use.memory_limit if use.uuid in shared else use.memory_limit or totals.get(use.uuid))
        for _, use in cards
    ]


def _used(named: str, label: str, figures: Sequence[tuple[int, Value]]) -> Sequence[tuple[str, float]]:
    """The figure of each card, and the total where all are known. Slices of one card are one."""
    by_card: dict[int, float] = {}
    for index, figure in figures:
        if figure is not None:
            by_card[index] = by_card.get(index, 0) + figure
    series = [(f'{label}="gpu{index}",{named}', figure) for index, figure in sorted(by_card.items())]
    if all(figure is not None for _, figure in figures):
        series.append((f'{label}="{_TOTAL}",{named}', sum(by_card.values())))
    return series


def _requested(named: str, label: str, figures: Sequence[Value]) -> Sequence[tuple[str, float]]:
    known = [figure for figure in figures if figure is not None]
    return [(f'{label}="{_TOTAL}",{named}', sum(known))] if len(known) == len(figures) else ()


#: Name, help, label of the card, figures.
_USED = (
    ("container_gpu_utilization", "gpu utilization", "gpu", _utilizations),
    ("container_gpu_memory_total", "gpu memory usage in MiB", "gpu_memory", _memories),
)
_REQUESTED = (
    ("container_request_gpu_utilization", "request of gpu utilization", "req_of_gpu", _cores),
    ("container_request_gpu_memory", "request of gpu memory in MiB", "req_of_gpu_memory", _memory),
)

"""The series of use: of each card, of each container on each card, and what no container is charged for.

The text is written without Prometheus' client, whose objects cost several times as much CPU at a scrape with
1,000 containers. What a library does not say has no series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agent.core.publishing.agent_status import AgentStatus
from agent.core.usage.usage_report import CardUse, ContainerUse
from agent.http.usage.joined_usage import JoinedUsage, names_of
from agent.http.usage.series_usage import SeriesUsage
from agent.vendor_api.agent import DRIVER_VERSION
from agent.vendor_api.metric_families import MetricFamily, labels

#: The most series of use on one node.
MAX_SERIES = 20_000
_CARD = ("vendor", "uuid")
_CONTAINER = ("namespace", "pod", "container", "uuid", "resource")
Value = float | None


def usage_page(status: AgentStatus, most: int = MAX_SERIES) -> bytes:
    """All series of use in Prometheus' text format; empty where use is not sampled.

    Where there would be more series than `most`, they name pods and no containers.
    """
    if status.usage is None:
        return b""
    usage, exported = _bounded(SeriesUsage.of(JoinedUsage(status, status.usage)), most)
    return page(usage_families(usage)) + exported


def page(families: Iterable[MetricFamily]) -> bytes:
    """The families in Prometheus' text format 0.0.4; a family without series is left out."""
    lines: list[str] = []
    for family in families:
        if family.series:
            name = family.name
            lines += (f"# HELP {name} {family.help}\n", f"# TYPE {name} {family.type}\n")
            lines += [f"{name}{{{named}}} {value}\n" for named, value in family.series if named]
            lines += [f"{name} {value}\n" for named, value in family.series if not named]
    return "".join(lines).encode()


def _bounded(usage: SeriesUsage, most: int) -> tuple[SeriesUsage, bytes]:
    """The use in at most so many series, as far as the cards leave room; and the text of exporters for it."""
    alone = replace(usage, containers=(), shares=())
    of_cards = _count(alone) + _exported(alone)[0]
    count, exported = _exported(usage)
    while (series := _count(usage) + count) > most and (usage.containers or usage.shares):
        usage = usage.reduced(series - of_cards, most - of_cards)
        count, exported = _exported(usage)
    return usage, exported


def _count(usage: SeriesUsage) -> int:
    """How many series the agent has. Without the texts of labels, they are counted in half the time."""
    without_texts = replace(usage, labels=lambda names, values: "")
    return sum(len(it.series) for it in usage_families(without_texts))


def _exported(usage: SeriesUsage) -> tuple[int, bytes]:
    """How many series the exporters have that the config switches on, and their text."""
    if not usage.joined.status.exporters:
        return 0, b""
    # Imported here: agents without such an exporter do not load what makes their metrics.
    from agent.http.usage.exporters import exporter_page

    return exporter_page(usage)


def usage_families(usage: SeriesUsage) -> Iterator[MetricFamily]:
    """The agent's own metrics of use, also those that have no series now."""
    yield from _sampling(usage)
    yield from _cards(usage)
    yield from _containers(usage)


def _sampling(usage: SeriesUsage) -> Iterator[MetricFamily]:
    vendors = [(labels(("vendor",), (it.vendor,)), it) for it in usage.report.sampling]
    help_ = "Whether the use of the vendor's cards is sampled."
    yield MetricFamily(
        "xpu_usage_up", help_, [(named, int(it.vendor in usage.report.sampled)) for named, it in vendors]
    )
    help_ = "Seconds since the last sample of the vendor's cards."
    ages = [(named, _seconds(usage.report.now - it.at)) for named, it in vendors if it.at is not None]
    yield MetricFamily("xpu_usage_age_seconds", help_, ages)
    help_ = "Processes without a known card, owner, memory or utilization."
    unknown = [(labels(("what",), (what,)), count) for what, count in sorted(usage.report.unknown.items())]
    yield MetricFamily("xpu_usage_unknown_processes", help_, unknown)
    help_ = "Whether the series of containers are reduced to series of pods, because there are too many."
    yield MetricFamily("xpu_usage_series_reduced", help_, [("", int(usage.level == "pod"))])
    help_ = "Pods and allocations without series, because there are too many even so."
    yield MetricFamily("xpu_usage_series_left_out", help_, [("", usage.left_out)])


def _cards(usage: SeriesUsage) -> Iterator[MetricFamily]:
    cards = [(labels(_CARD, (it.vendor, it.usage.uuid)), it) for it in usage.report.cards]
    help_ = "The card or slice: index, model, PCI address, version of the driver, and the card of a slice."
    yield MetricFamily("xpu_device_info", help_, [*_device_infos(usage)])
    cut = {it.parent for it in usage.report.cards}
    kinds: dict[str, Callable[[CardUse], Value]] = {
        "total": lambda it: it.usage.memory_total,
        "reserved": lambda it: it.usage.memory_reserved,
        "used": lambda it: it.usage.memory_used,
        "slices": lambda it: it.in_slices if it.usage.uuid in cut else None,
    }
    help_ = (
        "Memory of the card: all, what the driver keeps for itself, what is in use beside that, and how much "
        "of what is in use is on slices of the card."
    )
    yield MetricFamily("xpu_device_memory_bytes", help_, _by_kind(cards, kinds))
    help_ = "Part of the last moments in which the compute units of the card worked, from 0 to 1."
    series = [(named, it.usage.utilization) for named, it in cards]
    yield MetricFamily("xpu_device_utilization_ratio", help_, _known(series))
    series = [(named, it.usage.power) for named, it in cards]
    yield MetricFamily("xpu_device_power_watts", "Power that the card draws.", _known(series))
    kinds = {"core": lambda it: it.usage.temperature, "memory": lambda it: it.usage.memory_temperature}
    help_ = "Temperature of the card's chip and of its memory."
    yield MetricFamily("xpu_device_temperature_celsius", help_, _by_kind(cards, kinds))
    help_ = "Energy that the card took since its driver was loaded."
    series = [(named, it.usage.energy) for named, it in cards]
    yield MetricFamily("xpu_device_energy_joules_total", help_, _known(series), "counter")
    help_ = "Memory errors of the card since its driver was loaded."
    errors = _errors((named, it.usage.ecc_errors) for named, it in cards)
    yield MetricFamily("xpu_device_ecc_errors_total", help_, errors, "counter")
    help_ = "Errors of the driver by number, such as an XID, since the vendor's process began."
    errors = _errors((named, it.usage.driver_errors) for named, it in cards)
    yield MetricFamily("xpu_device_xid_total", help_, errors, "counter")
    yield from _accounts(usage)


def _device_infos(usage: SeriesUsage) -> Iterator[tuple[str, float]]:
    names = (*_CARD, "index", "model", "pci", "driver", "parent")
    for card in usage.report.cards:
        texts = ("", "", "", "")  # a slice that others made
        if (known := usage.joined.devices.get(card.usage.uuid)) is not None:
            device = known.device
            driver = device.attributes.get(DRIVER_VERSION, "")
            texts = (str(device.index), device.model, device.pci or "", driver)
        yield labels(names, (card.vendor, card.usage.uuid, *texts, card.parent or "")), 1


def _accounts(usage: SeriesUsage) -> Iterator[MetricFamily]:
    """What of the memory in use no container is charged for."""
    help_ = "Memory in use that no container is charged for."
    unattributed = [
        (labels(("uuid", "kind"), (card.usage.uuid, str(kind))), count)
        for card in usage.report.cards
        for kind, count in sorted(card.unattributed.items())
    ]
    yield MetricFamily("xpu_unattributed_memory_bytes", help_, unattributed)
    help_ = "By how much all processes together exceed the memory in use: what they share counts twice."
    over = [
        (labels(("uuid",), (card.usage.uuid,)), card.overcounted)
        for card in usage.report.cards
        if card.usage.memory_used is not None
    ]
    yield MetricFamily("xpu_overcounted_memory_bytes", help_, over)


def _containers(usage: SeriesUsage) -> Iterator[MetricFamily]:
    named = [(usage.labels(_CONTAINER, names_of(it)), it) for it in usage.containers]
    for name, help_, value in _OF_CONTAINERS:
        series = [(of_it, value(it)) for of_it, it in named]
        yield MetricFamily(f"xpu_container_{name}", help_, _known(series))
    help_ = "Seconds since the container last used the compute units of the card, or first had it."
    now = usage.report.now
    idle = [(it, _seconds(now - use.active_at)) for it, use in named if use.active_at is not None]
    yield MetricFamily("xpu_container_idle_seconds", help_, idle)
    help_ = "The share of a card that a container has, and what keeps the container to the share."
    columns = (*_CONTAINER, "share", "limits")
    infos = [(usage.labels(columns, (*names_of(it), it.share, str(it.limits))), 1) for it in usage.shares]
    yield MetricFamily("xpu_allocation_info", help_, infos)


_OF_CONTAINERS: Sequence[tuple[str, str, Callable[[ContainerUse], Value]]] = (
    ("memory_used_bytes", "Memory of the card that the container's processes use.", lambda it: it.memory),
    (
        "utilization_ratio",
        "Part of the last moments in which the container used the card's compute units, from 0 to 1.",
        lambda it: it.utilization,
    ),
    ("processes", "Processes of the container on the card.", lambda it: it.processes),
    ("memory_limit_bytes", "Memory of the card that the container was granted.", lambda it: it.memory_limit),
    (
        "compute_limit_ratio",
        "Part of the card's compute units that the container was granted, from 0 to 1.",
        lambda it: it.compute_limit,
    ),
)


def _by_kind(
    cards: Sequence[tuple[str, CardUse]], kinds: dict[str, Callable[[CardUse], Value]]
) -> Sequence[tuple[str, float]]:
    return _known(
        (f'{named},kind="{kind}"', value(card)) for named, card in cards for kind, value in kinds.items()
    )


def _errors(cards: Iterable[tuple[str, Mapping[str, int]]]) -> Sequence[tuple[str, float]]:
    return [
        (f"{named},{labels(('kind',), (kind,))}", count)
        for named, counts in cards
        for kind, count in sorted(counts.items())
    ]


def _known(series: Iterable[tuple[str, Value]]) -> Sequence[tuple[str, float]]:
    return [(named, value) for named, value in series if value is not None]


def _seconds(count: float) -> float:
    """Milliseconds are enough. What is noted while the report is made has no negative age."""
    return round(max(0.0, count), 3)

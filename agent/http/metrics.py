"""The metrics in Prometheus' text format, computed from the status at every scrape."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.core.devices.memory_units import counted_in
from agent.core.model import AllocationState, VendorState
from agent.core.publishing.agent_status import BUCKETS, AgentStatus
from agent.http.answer import HttpAnswer
from agent.http.inspect_builder import allocated_ids
from agent.http.metric_texts import COUNTED, UNNAMED
from agent.vendor_api.metric_families import bounded_value

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "xpu_agent_"


def metrics(status: AgentStatus) -> HttpAnswer:
    """All metrics of the status and of the process, and the series of use where use is sampled."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatusCollector(status))
    ProcessCollector(registry=registry)
    return HttpAnswer(200, generate_latest(registry) + _usage(status), CONTENT_TYPE)


def _usage(status: AgentStatus) -> bytes:
    if status.usage is None:
        return b""
    # Imported here: nodes without sampling do not load what makes the series of use.
    from agent.http.usage.series import usage_page

    return usage_page(status)


class _StatusCollector(Collector):
    """One status as families of metrics."""

    def __init__(self, status: AgentStatus) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        return []  # the registry would collect everything once more to learn the names

    def collect(self) -> Iterator[Metric]:
        yield from _agent(self._status)
        yield from _hardware(self._status)
        yield from _resources(self._status)
        yield _seconds("allocate", "Seconds that Allocate took.", self._status.allocate_seconds)
        help_ = "Seconds that PreStartContainer took."
        yield _seconds("pre_start", help_, self._status.pre_start_seconds)
        yield from _counters(self._status)


def _agent(status: AgentStatus) -> Iterator[Metric]:
    yield _gauge("build_info", "The version that runs.", ("version",), [((status.version,), 1)])
    for name, help_, holds in (
        ("ready", "Whether the agent is ready.", not status.troubles),
        ("standby", "Whether another agent serves the node.", status.standby),
        ("config_valid", "Whether the file's newest content is in force.", not status.config_error),
        ("checkpoint_valid", "Whether the checkpoint can be read and written.", not status.checkpoint_error),
    ):
        yield _gauge(name, help_, (), [((), bool(holds))])
    ways = [((way,), status.reported.mode == way) for way in ("device", "feed", "none")]
    yield _gauge("report_mode", "How the cards are reported to Koordinator.", ("mode",), ways)
    report = status.reported
    states = [(("healthy",), report.healthy), (("unhealthy",), report.cards - report.healthy)]
    yield _gauge("report_cards", "Cards in the report to Koordinator.", ("state",), states)
    help_ = "Whether the report to Koordinator is written and no other program overwrites it."
    yield _gauge("report_valid", help_, (), [((), not (report.error or report.overwritten))])
    help_ = "Pods that have their devices and do not have the receipt for their scheduler yet."
    yield _gauge("receipts_owed", help_, (), [((), status.receipts_owed)])
    if status.api_server is not None:
        help_ = "Whether the API server answers, even with a refusal; pods get their cards without it."
        yield _gauge("api_server_up", help_, (), [((), status.api_server.up)])


def _hardware(status: AgentStatus) -> Iterator[Metric]:
    vendors = [((it.name, str(it.state)), it.state is VendorState.OPEN) for it in status.snapshot.vendors]
    yield _gauge("vendor_up", "Whether the vendor's library is open.", ("vendor", "state"), vendors)
    opened = [((name,), it.breaker != "closed") for name, it in status.processes.items()]
    help_ = "Whether the vendor's process was lost so often that its next start is delayed."
    yield _gauge("vendor_breaker_open", help_, ("vendor",), opened)
    memory = [((name,), it.memory) for name, it in status.processes.items()]
    yield _gauge(
        "vendor_memory_bytes", "Memory that the vendor's process has of its own.", ("vendor",), memory
    )
    devices = [((it.vendor, it.uuid, it.health.reason), it.told_healthy) for it in status.snapshot.devices]
    help_ = "Whether the device is listed to the kubelet as healthy, and the reason of its health."
    yield _gauge("device_healthy", help_, ("vendor", "uuid", "reason"), devices)
    cordoned = [((it.vendor, it.uuid), it.cordon is not None) for it in status.snapshot.devices]
    slices = [(key, count) for key, count in sorted(status.foreign_slices.items())]
    help_ = "Slices of the card that others made and the agent never touches; not of cards without any."
    yield _gauge("foreign_slices", help_, ("vendor", "device"), slices)
    help_ = "Whether an operator cordoned the device, so that no new pod gets it."
    yield _gauge("device_cordoned", help_, ("vendor", "uuid"), cordoned)


def _resources(status: AgentStatus) -> Iterator[Metric]:
    used = allocated_ids(status)
    counts = [
        ((name, state), count)
        for name, resource in status.resources.items()
        for state, count in (
            ("capacity", resource.capacity),
            ("allocatable", resource.allocatable),
            ("allocated", used.get(name, 0)),
        )
    ]
    yield _gauge("resource_devices", "Device IDs of the resource.", ("resource", "state"), counts)
    registered = [((name,), it.state == "registered") for name, it in status.sessions.items()]
    yield _gauge("session_registered", "Whether the kubelet knows the resource.", ("resource",), registered)
    foreign = [((name,), name in status.other_plugins) for name in status.resources]
    units = [
        ((name, unit, kept[0].wanted if (kept := status.kept_units.get(name)) else unit), kept is not None)
        for name, resource in status.resources.items()
        if (unit := counted_in(resource.rule.sharing))
    ]
    help_ = (
        "Whether the resource counts memory in this unit, in GiB, and not in the unit that the config wants."
    )
    yield _gauge("memory_unit_kept", help_, ("resource", "unit", "wanted"), units)
    yield _gauge("foreign_plugin", "Whether another plugin serves the resource, too.", ("resource",), foreign)
    registrations = [({"resource": name}, it.registrations) for name, it in status.sessions.items()]
    yield _counter("registrations", "Registrations with the kubelet.", registrations)
    yield _gauge("allocations", "Answered Allocate calls.", ("resource", "state"), _allocations(status))
    help_ = "Allocations in use without an owner, because the kubelet has not named one yet."
    yield _gauge("allocations_unowned", help_, ("resource",), _unowned(status))


def _allocations(status: AgentStatus) -> Iterator[tuple[tuple[str, str], float]]:
    held = Counter((it.resource, it.state) for it in status.allocations)
    for name in _names(status):
        for state in AllocationState:
            yield (name, str(state)), held[name, state]


def _unowned(status: AgentStatus) -> Iterator[tuple[tuple[str], float]]:
    in_use = (it for it in status.allocations if it.state is not AllocationState.RELEASED)
    unowned = Counter(it.resource for it in in_use if it.owner is None)
    for name in _names(status):
        yield (name,), unowned[name]


def _names(status: AgentStatus) -> list[str]:
    """All resources that are served or have allocations."""
    return sorted({*status.resources, *(it.resource for it in status.allocations)})


def _seconds(call: str, help_: str, seconds: Mapping[tuple[str, str], tuple[float, ...]]) -> Metric:
    family = HistogramMetricFamily(f"{PREFIX}{call}_seconds", help_, labels=["resource", "outcome"])
    for (resource, outcome), (count, total, *buckets) in seconds.items():
        cumulated, seen = [], 0.0
        for bound, within in zip(BUCKETS, buckets, strict=False):
            seen += within
            cumulated.append((str(bound), seen))
        family.add_metric(
            [bounded_value(resource), bounded_value(outcome)], [*cumulated, ("+Inf", count)], total
        )
    return family


def _counters(status: AgentStatus) -> Iterator[Metric]:
    named: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for (name, labels), value in status.counters.items():
        clean = {_word(label): text for label, text in labels}
        named.setdefault(_word(name).removeprefix(PREFIX).removesuffix("_total"), []).append((clean, value))
    for name, samples in sorted(named.items()):
        yield _counter(name, COUNTED.get(name, UNNAMED), samples)


def _gauge(
    name: str, help_: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}{name}", help_, labels=labels)
    for key, value in values:
        family.add_metric([bounded_value(part) for part in key], float(value))
    return family


def _counter(name: str, help_: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    family = Metric(f"{PREFIX}{name}", help_, "counter")
    for labels, value in samples:
        bounded = {label: bounded_value(text) for label, text in labels.items()}
        family.add_sample(f"{PREFIX}{name}_total", bounded, float(value))
    return family


def _word(text: str) -> str:
    """A name that Prometheus allows. Names that begin with __ are reserved."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text).lstrip("_0123456789") or "unnamed"

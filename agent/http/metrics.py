"""The metrics in Prometheus' text format, made anew from the view at every scrape."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.core.devices.memory_units import counted_in
from agent.core.model import AllocationState, VendorState
from agent.core.publishing.agent_status import BUCKETS, AgentStatus
from agent.http.answer import Answer
from agent.http.inspect_document import allocated
from agent.http.metric_texts import COUNTED, UNNAMED

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "xpu_agent_"
#: Characters of a label's value; every scrape stores it anew.
LONGEST_LABEL = 128


def metrics(view: AgentStatus) -> Answer:
    """Every metric of the view, and of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Of(view))
    ProcessCollector(registry=registry)
    return Answer(200, generate_latest(registry), CONTENT_TYPE)


class _Of(Collector):
    """One view as metrics."""

    def __init__(self, view: AgentStatus) -> None:
        self._view = view

    def describe(self) -> list[Metric]:
        return []  # nothing is asked of the view before it is scraped

    def collect(self) -> Iterator[Metric]:
        yield from _agent(self._view)
        yield from _hardware(self._view)
        yield from _resources(self._view)
        yield _seconds("allocate", "Seconds that Allocate took.", self._view.allocate_seconds)
        help_ = "Seconds that PreStartContainer took."
        yield _seconds("pre_start", help_, self._view.pre_start_seconds)
        yield from _counters(self._view)


def _agent(view: AgentStatus) -> Iterator[Metric]:
    yield _gauge("build_info", "The version that runs.", ("version",), [((view.version,), 1)])
    for name, help_, holds in (
        ("ready", "Whether the agent is ready.", not view.troubles),
        ("standby", "Whether another agent serves the node.", view.standby),
        ("config_valid", "Whether the file's newest content is in force.", not view.config_error),
        ("checkpoint_valid", "Whether the checkpoint can be read and written.", not view.checkpoint_error),
    ):
        yield _gauge(name, help_, (), [((), bool(holds))])
    ways = [((way,), view.reported.mode == way) for way in ("device", "feed", "none")]
    yield _gauge("report_mode", "Which way Koordinator hears of the cards.", ("mode",), ways)
    told = view.reported
    states = [(("healthy",), told.healthy), (("unhealthy",), told.cards - told.healthy)]
    yield _gauge("report_cards", "Cards that Koordinator is told of.", ("state",), states)
    help_ = "Whether what is told gets where it shall, and nobody undoes it."
    yield _gauge("report_valid", help_, (), [((), not (told.error or told.overwritten))])
    help_ = "Pods that have their devices and whose schedulers cannot read so yet."
    yield _gauge("receipts_owed", help_, (), [((), view.receipts_owed)])
    if view.api_server is not None:
        help_ = "Whether the API server answers, if only to refuse; what is served does not wait for it."
        yield _gauge("api_server_up", help_, (), [((), view.api_server.up)])


def _hardware(view: AgentStatus) -> Iterator[Metric]:
    vendors = [((it.name, str(it.state)), it.state is VendorState.OPEN) for it in view.snapshot.vendors]
    yield _gauge("vendor_up", "Whether the vendor's library is open.", ("vendor", "state"), vendors)
    opened = [((name,), it.breaker != "closed") for name, it in view.processes.items()]
    help_ = "Whether the vendor's process is lost so often that it is given rest."
    yield _gauge("vendor_breaker_open", help_, ("vendor",), opened)
    memory = [((name,), it.memory) for name, it in view.processes.items()]
    yield _gauge(
        "vendor_memory_bytes", "Memory that the vendor's process has of its own.", ("vendor",), memory
    )
    devices = [((it.vendor, it.uuid, it.health.reason), it.told_healthy) for it in view.snapshot.devices]
    help_ = "Whether the kubelet is told that the device is healthy, and what is known against it."
    yield _gauge("device_healthy", help_, ("vendor", "uuid", "reason"), devices)
    cordoned = [((it.vendor, it.uuid), it.cordon is not None) for it in view.snapshot.devices]
    slices = [(key, count) for key, count in sorted(view.foreign_slices.items())]
    help_ = "Slices of the card that others made, which are never touched; none of a card without."
    yield _gauge("foreign_slices", help_, ("vendor", "device"), slices)
    help_ = "Whether an operator has it given to nobody new."
    yield _gauge("device_cordoned", help_, ("vendor", "uuid"), cordoned)


def _resources(view: AgentStatus) -> Iterator[Metric]:
    used = allocated(view)
    counts = [
        ((name, state), count)
        for name, it in view.resources.items()
        for state, count in (
            ("capacity", it.capacity),
            ("allocatable", it.allocatable),
            ("allocated", used.get(name, 0)),
        )
    ]
    yield _gauge("resource_devices", "Device IDs of the resource.", ("resource", "state"), counts)
    registered = [((name,), it.state == "registered") for name, it in view.sessions.items()]
    yield _gauge("session_registered", "Whether the kubelet knows the resource.", ("resource",), registered)
    foreign = [((name,), name in view.other_plugins) for name in view.resources]
    units = [
        ((name, unit, kept[0].wanted if (kept := view.kept_units.get(name)) else unit), kept is not None)
        for name, it in view.resources.items()
        if (unit := counted_in(it.rule.sharing))
    ]
    help_ = "Whether it counts memory in this unit, in GiB, in place of the one that the config wants."
    yield _gauge("memory_unit_kept", help_, ("resource", "unit", "wanted"), units)
    yield _gauge("foreign_plugin", "Whether another plugin serves the resource, too.", ("resource",), foreign)
    registrations = [({"resource": name}, it.registrations) for name, it in view.sessions.items()]
    yield _counter("registrations", "Registrations with the kubelet.", registrations)
    yield _gauge("allocations", "Answered Allocate calls.", ("resource", "state"), _allocations(view))
    help_ = "Allocations in use of which the kubelet has not confirmed whose they are."
    yield _gauge("allocations_unowned", help_, ("resource",), _unowned(view))


def _allocations(view: AgentStatus) -> Iterator[tuple[tuple[str, str], float]]:
    held = Counter((it.resource, it.state) for it in view.allocations)
    for name in _names(view):
        for state in AllocationState:
            yield (name, str(state)), held[name, state]


def _unowned(view: AgentStatus) -> Iterator[tuple[tuple[str], float]]:
    in_use = (it for it in view.allocations if it.state is not AllocationState.RELEASED)
    unowned = Counter(it.resource for it in in_use if it.owner is None)
    for name in _names(view):
        yield (name,), unowned[name]


def _names(view: AgentStatus) -> list[str]:
    """Every resource that is served or was given out."""
    return sorted({*view.resources, *(it.resource for it in view.allocations)})


def _seconds(call: str, help_: str, seconds: Mapping[tuple[str, str], tuple[float, ...]]) -> Metric:
    family = HistogramMetricFamily(f"{PREFIX}{call}_seconds", help_, labels=["resource", "outcome"])
    for (resource, outcome), (count, total, *buckets) in seconds.items():
        cumulated, seen = [], 0.0
        for bound, within in zip(BUCKETS, buckets, strict=False):
            seen += within
            cumulated.append((str(bound), seen))
        family.add_metric([_text(resource), _text(outcome)], [*cumulated, ("+Inf", count)], total)
    return family


def _counters(view: AgentStatus) -> Iterator[Metric]:
    named: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for (name, labels), value in view.counters.items():
        told = {_word(label): text for label, text in labels}
        named.setdefault(_word(name).removeprefix(PREFIX).removesuffix("_total"), []).append((told, value))
    for name, samples in sorted(named.items()):
        yield _counter(name, COUNTED.get(name, UNNAMED), samples)


def _gauge(
    name: str, help_: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}{name}", help_, labels=labels)
    for key, value in values:
        family.add_metric([_text(part) for part in key], float(value))
    return family


def _counter(name: str, help_: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    family = Metric(f"{PREFIX}{name}", help_, "counter")
    for labels, value in samples:
        told = {label: _text(text) for label, text in labels.items()}
        family.add_sample(f"{PREFIX}{name}_total", told, float(value))
    return family


def _word(text: str) -> str:
    """A name as Prometheus takes it; those that begin with __ are its own."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text).lstrip("_0123456789") or "unnamed"


def _text(text: str) -> str:
    """A label's value, bounded; half a character would break the whole page."""
    told = text.encode("utf-8", "backslashreplace").decode()
    if len(told) <= LONGEST_LABEL:
        return told
    # Two that begin alike must not become one.
    return f"{told[: LONGEST_LABEL - 9]}…{zlib.crc32(told.encode()):08x}"

"""Every metric of the agent with type, labels and meaning, from a view with one of everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from agent.core.model import (
    Allocation,
    AllocationState,
    DeviceStatus,
    Health,
    NodeSnapshot,
    ProcessStatus,
    Resource,
    SessionStatus,
    VendorState,
    VendorStatus,
)
from agent.core.publishing.agent_status import AgentStatus, ApiServer
from agent.http.metric_texts import COUNTED
from agent.http.metrics import PREFIX, metrics
from agent.vendor_api.agent import Device, ResourceRule, State
from pages.table import code, table

_SECONDS = {("a.com/b", "ok"): (1.0, 1.0, 1.0)}
#: The label of each counter that has one, but for those of a resource.
_LABEL = {
    "checkpoint_set_aside": "why",
    "events": "outcome",
    "evidence_unreadable": "source",
    "reconcile_actions": "action",
    "vendor_restarts": "vendor",
}


def _labels(counter: str) -> tuple[str, ...]:
    if counter.startswith("plugin_"):
        return ("resource",)
    return (_LABEL[counter],) if counter in _LABEL else ()


VIEW = AgentStatus(
    "node",
    "1",
    snapshot=NodeSnapshot(
        (VendorStatus("a", VendorState.OPEN),),
        (DeviceStatus("a", Device("A-0", 0), Health(State.HEALTHY), told_healthy=True),),
    ),
    processes={"a": ProcessStatus(1, 1, 0, "closed", None, None)},
    resources={"a.com/b": Resource("a.com/b", "a", ResourceRule("a.com/b"), "distributed", ())},
    sessions={"a.com/b": SessionStatus("registered")},
    allocations=(Allocation("1", "a.com/b", "a", ("A-0",), ("A-0",), AllocationState.DONE, 1.0),),
    api_server=ApiServer("https://a"),
    counters={(name, tuple((label, "x") for label in _labels(name))): 1 for name in COUNTED},
    allocate_seconds=_SECONDS,
    pre_start_seconds=_SECONDS,
)


@dataclass(frozen=True, slots=True)
class Described:
    """A metric as a dashboard asks for it."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


def described(page: bytes) -> Iterator[Described]:
    """The agent's own metrics of a page in Prometheus' text format; a histogram is one."""
    for family in text_string_to_metric_families(page.decode()):
        if family.name.startswith(PREFIX):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label: None for sample in family.samples for label in sample.labels if label != "le"}
            yield Described(name, family.type, tuple(labels), family.documentation)


def metric_table() -> Iterator[str]:
    """All of them, by name."""
    found = sorted(described(metrics(VIEW).body), key=lambda it: it.name)
    rows = ((code(it.name), it.type, ", ".join(map(code, it.labels)), it.help) for it in found)
    yield from table(("metric", "type", "labels", "meaning"), rows)

"""The status: one consistent picture of the running agent, for /inspect, /metrics, /readyz and Events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from agent.core.allocation.known_pods import KnownPods
from agent.core.devices.unit_changes import KeptUnit
from agent.core.event_notices import ClaimSwap, PlacementMismatch, Refusal, StartRefusal
from agent.core.model import (
    Allocation,
    NodeSnapshot,
    ProcessStatus,
    Resource,
    SessionStatus,
    VendorState,
)
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.scheduler_api.scheduler import Scheduler
from agent.vendor_api.agent import Vendor

if TYPE_CHECKING:  # nodes without sampling do not import the values
    from agent.core.usage.minute_history import UsageHistory
    from agent.core.usage.usage_alarms import UsageAlarm
    from agent.core.usage.usage_report import UsageReport

#: Upper bounds of the buckets of `allocate_seconds` and `pre_start_seconds`.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
#: (name, labels) to a count that only grows.
Counters = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


class FollowedList(Struct, frozen=True):
    """One list that the agent follows at the API server."""

    #: Whether the list was read once since the start.
    synced: bool = False
    #: Why the list cannot be followed now.
    error: str = ""
    #: Whether the agent lacks the right to follow the list.
    refused: bool = False


class ApiServer(Struct, frozen=True):
    """The agent's connection to the API server; `error` is why nothing new comes from there now."""

    address: str
    #: Whether all followed lists were read once since the start.
    synced: bool = False
    error: str = ""
    #: The followed lists: `nodes` (this node alone) and, unless the config switches them off, `pods`.
    followed: Mapping[str, FollowedList] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        """Whether the API server answers. A refused list is an answer, too: only new rights can change it."""
        lists = self.followed.values()
        return bool(lists) and all(it.refused or (it.synced and not it.error) for it in lists)


class SchedulerReport(Struct, frozen=True):
    """The report of the cards to a scheduler; `mode` is empty while the way is not decided."""

    #: The names, for people, of the scheduler and of its own program on a node.
    scheduler: str = ""
    node_program: str = ""
    #: The kind of the API object that has the node's cards, by the scheduler's plugin.
    kind: str = ""
    mode: Literal["feed", "device", "none", ""] = ""
    #: Why this mode was chosen.
    why: str = ""
    #: The vendor by the scheduler's name for it; empty while nothing is reported.
    vendor: str = ""
    cards: int = 0
    healthy: int = 0
    #: A sentence for each card or fact that is not reported.
    left_out: tuple[str, ...] = ()
    #: Whether the scheduler's program on this node overwrote the agent's report.
    overwritten: bool = False
    error: str = ""
    #: Whether the config demands the report. Then an error keeps the agent from being ready.
    wanted: bool = False


class AgentStatus(Struct, frozen=True):
    """Everything that people can see of the agent at one moment. An error text is empty without an error."""

    node: str
    version: str
    snapshot: NodeSnapshot = field(default_factory=NodeSnapshot)
    #: The processes of the vendors in service.
    processes: Mapping[str, ProcessStatus] = field(default_factory=dict)
    #: (vendor, card uuid) to the number of foreign slices on the card; cards without are left out.
    foreign_slices: Mapping[tuple[str, str], int] = field(default_factory=dict)
    resources: Mapping[str, Resource] = field(default_factory=dict)
    sessions: Mapping[str, SessionStatus] = field(default_factory=dict)
    allocations: tuple[Allocation, ...] = ()
    #: The vendors in service.
    vendors: Mapping[str, Vendor] = field(default_factory=dict)
    #: The pods bound to the node; empty without an API server.
    pods: KnownPods = field(default_factory=KnownPods)
    #: The registered scheduler plugins, in the order in which their claims are read.
    schedulers: tuple[Scheduler, ...] = ()
    #: Vendors that the config demands by name. Other vendors are `auto` and can be absent.
    required_vendors: frozenset[str] = frozenset()
    config_source: str = "defaults"
    config_error: str = ""
    #: Whether no config was accepted since the start, so that nothing is served.
    config_awaited: bool = False
    #: Whether the config waits for the labels of the Node. `config_error` says so then.
    labels_awaited: bool = False
    checkpoint_error: str = ""
    #: Why the agent started without its checkpoint.
    set_aside: str = ""
    #: Whether allocations were recovered from the kubelet, and how many.
    rebuilt: bool = False
    read_back: int = 0
    #: Why the log file is not written. The log goes to standard error, too.
    log_error: str = ""
    #: Source of evidence to why the source cannot be read now. Nothing is released without that evidence.
    evidence_errors: Mapping[str, str] = field(default_factory=dict)
    cdi_error: str = ""
    labels_error: str = ""
    #: Why the Node's annotations are not as vendors want. Schedulers that use them work with old values.
    annotations_error: str = ""
    #: Why the extended resources of vendors are not on the Node. No device plugin resource depends on them.
    extended_error: str = ""
    #: Why owed receipts cannot be written. Schedulers go on with other pods meanwhile.
    receipts_error: str = ""
    #: How many pods lack their receipt.
    receipts_owed: int = 0
    #: Why a node lock cannot be freed although its pod has its devices. Schedulers let a lock expire later.
    locks_error: str = ""
    reported: SchedulerReport = SchedulerReport()
    #: Why the agent sees no pods. Resources with placement `claim` refuse all pods then.
    pods_unseen: str = ""
    placement_mismatches: tuple[PlacementMismatch, ...] = ()
    #: The last Allocates that were refused, the last claim swaps, and the last containers that cannot start
    #: with what their pods request; oldest first.
    refusals: tuple[Refusal, ...] = ()
    swaps: tuple[ClaimSwap, ...] = ()
    starts_refused: tuple[StartRefusal, ...] = ()
    #: A sentence for each of the last node locks that expired because no pod requested its devices.
    stale_locks: tuple[str, ...] = ()
    #: None without an API server. No Allocate waits for the API server.
    api_server: ApiServer | None = None
    #: A sentence for each part of the config that the present devices cannot serve.
    complaints: tuple[str, ...] = ()
    #: What a person should mend although the cards are offered.
    doubts: tuple[str, ...] = ()
    #: Resource to a sentence for each other resource with pods that still hold its cards. Such a wait is
    #: correct, can last for days and does not keep the agent from being ready: a DaemonSet update would stop.
    resource_waits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Resource to the memory unit that it keeps although the config wants another, with a sentence.
    kept_units: Mapping[str, tuple[KeptUnit, str]] = field(default_factory=dict)
    standby: str = ""
    #: (vendor, device IDs of a pod) for pods with cards that this node does not have.
    unknown_cards: tuple[tuple[str, CheckpointAnswer], ...] = ()
    #: Resource to a sentence that says how another plugin's registration of this resource shows.
    other_plugins: Mapping[str, str] = field(default_factory=dict)
    #: Monotonic counters by metric name and labels.
    counters: Counters = field(default_factory=dict)
    #: (resource, outcome) to (count, sum, bucket counts) of the seconds of all Allocates so far.
    allocate_seconds: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    #: (resource, outcome) to the same values for PreStartContainer.
    pre_start_seconds: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    #: The use of the cards; None where the config does not want it.
    usage: UsageReport | None = None
    #: The exporters under whose names the metrics of use stand, too, by the config.
    exporters: frozenset[str] = frozenset()
    #: What containers used in each minute of the last day, for reading alone.
    usage_history: UsageHistory | None = None
    #: Containers that use more than they were granted, or do not use what they hold.
    usage_alarms: tuple[UsageAlarm, ...] = ()

    @property
    def troubles(self) -> tuple[str, ...]:
        """The sentences that say why the agent is not ready; empty when it is."""
        if self.standby:
            return ()  # a standby agent is ready to take over
        if self.config_awaited:
            return (f"config: {self.config_error}",)
        files = {
            "checkpoint": self.checkpoint_error,
            "CDI specs": self.cdi_error,
            "labels": self.labels_error,
            "annotations": self.annotations_error,
            "report": self.reported.error if self.reported.wanted else "",
        }
        unwritten = (f"{what}: {error}" for what, error in files.items() if error)
        return (
            *self._vendor_troubles(),
            *self.complaints,
            *self._claim_troubles(),
            *unwritten,
            *self._session_troubles(),
        )

    def _claim_troubles(self) -> tuple[str, ...]:
        why = f"no pod gets a card, as the placement is 'claim' and no pod can be seen: {self.pods_unseen}"
        claimed = (name for name, it in self.resources.items() if it.rule.placement == "claim")
        return tuple(f"resource {name}: {why}" for name in sorted(claimed) if self.pods_unseen)

    def _vendor_troubles(self) -> tuple[str, ...]:
        wrong = tuple(
            f"vendor {vendor.name}: {vendor.state}: {vendor.reason}"
            for vendor in self.snapshot.vendors
            if vendor.state in (VendorState.FAILED, VendorState.LEFT_OUT)
            or (vendor.name in self.required_vendors and vendor.state is not VendorState.OPEN)
        )
        if wrong:
            return wrong
        if any(vendor.state is VendorState.OPEN for vendor in self.snapshot.vendors):
            return ()
        tried = "; ".join(f"{it.name}: {it.reason or it.state}" for it in self.snapshot.vendors)
        return (f"no vendor is open ({tried or 'none is enabled'})",)

    def _session_troubles(self) -> tuple[str, ...]:
        planned = {name: SessionStatus() for name, it in self.resources.items() if not it.retired}
        return tuple(
            f"resource {name}: {session.state}" + (f": {session.reason}" if session.reason else "")
            for name, session in sorted({**planned, **self.sessions}.items())
            if session.state not in ("registered", "yielded", "ended")
        )


#: The status before the first one is made.
UNKNOWN = AgentStatus(node="", version="")

"""One consistent picture of the running agent, for /inspect, /metrics, /readyz and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agent.core.allocation.reconcile_evidence import CheckpointAnswer
from agent.core.devices.unit_changes import KeptUnit
from agent.core.model import (
    Allocation,
    NodeSnapshot,
    ProcessStatus,
    Resource,
    SessionStatus,
    VendorState,
)
from agent.core.notices import ClaimSwap, PlacementMismatch, Refusal, StartRefusal
from agent.scheduler_api import Candidate, Scheduler
from agent.vendor_api.agent import Vendor

#: Upper bounds of the buckets of `allocate_seconds` and `pre_start_seconds`.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
#: (name, labels) to a count that only grows.
Counters = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True, slots=True)
class FollowedList:
    """A list of the API server's. `synced`: seen since the start. `error`: why nothing new is heard.

    `refused`: that is for want of a right.
    """

    synced: bool = False
    error: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class ApiServer:
    """How the agent stands with the API server; `error` is why it hears nothing new from it now."""

    address: str
    #: Whether everything that is followed was seen since the start.
    synced: bool = False
    error: str = ""
    #: What is followed: this node's `nodes` and, unless that is switched off, `pods`.
    followed: Mapping[str, FollowedList] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        """Whether it answers: to refuse a list is an answer, and only who grants rights can change it."""
        lists = self.followed.values()
        return bool(lists) and all(it.refused or (it.synced and not it.error) for it in lists)


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """What a scheduler is told of the cards; `mode` is empty while the way is not known."""

    #: The scheduler, and its own program on a node, as people name them.
    scheduler: str = ""
    node_program: str = ""
    mode: Literal["feed", "device", "none", ""] = ""
    #: Why this way.
    why: str = ""
    #: As the scheduler names it; empty while nothing is told.
    vendor: str = ""
    cards: int = 0
    healthy: int = 0
    #: A sentence for each thing that is not told.
    left_out: tuple[str, ...] = ()
    #: Whether the scheduler's program on this node undid what we had written.
    overwritten: bool = False
    error: str = ""
    #: Whether the config names a way, so that an error keeps the agent from being ready.
    wanted: bool = False


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What is known at one moment; `troubles` are sentences that keep the agent from being ready."""

    node: str
    version: str
    snapshot: NodeSnapshot = field(default_factory=NodeSnapshot)
    #: The processes of the vendors in service.
    processes: Mapping[str, ProcessStatus] = field(default_factory=dict)
    #: Vendor and card to how many slices lie there that others made; cards without are left out.
    foreign_slices: Mapping[tuple[str, str], int] = field(default_factory=dict)
    resources: Mapping[str, Resource] = field(default_factory=dict)
    sessions: Mapping[str, SessionStatus] = field(default_factory=dict)
    allocations: tuple[Allocation, ...] = ()
    #: The vendors in service, and the pods bound to the node, as far as an API server tells.
    vendors: Mapping[str, Vendor] = field(default_factory=dict)
    pods: tuple[Candidate, ...] = ()
    #: The registered ones, in the order in which they are heard.
    schedulers: tuple[Scheduler, ...] = ()
    #: Vendors the config names outright; the others are `auto` and may be absent.
    required_vendors: frozenset[str] = frozenset()
    config_source: str = "defaults"
    config_error: str = ""
    #: Whether no config was good since the start, so that nothing is served.
    config_awaited: bool = False
    #: Whether the config waits for the labels of the Node, which `config_error` says then.
    labels_awaited: bool = False
    checkpoint_error: str = ""
    #: Why the agent began without its checkpoint.
    set_aside: str = ""
    #: Whether what the kubelet knew was read back, and of how many allocations.
    rebuilt: bool = False
    read_back: int = 0
    #: Why the log's file is not written; the log is on standard error too.
    log_error: str = ""
    #: Source of evidence to why it cannot be read now; nothing is released without it.
    evidence_errors: Mapping[str, str] = field(default_factory=dict)
    cdi_error: str = ""
    labels_error: str = ""
    #: Why the Node's annotations are not as vendors want them; those who schedule by them err meanwhile.
    annotations_error: str = ""
    #: Why the Node does not have the counts that vendors' schedulers go by; nothing served needs them.
    extended_error: str = ""
    #: Why pods that have their devices do not all tell their schedulers so; those serve others meanwhile.
    receipts_error: str = ""
    #: How many pods of them do not yet.
    receipts_owed: int = 0
    #: Why a scheduler's lock of the Node that is over cannot be freed; schedulers end it themselves later.
    locks_error: str = ""
    reported: SchedulerReport = SchedulerReport()
    #: Why no pod is ever seen; without them nobody is given a card that a scheduler must choose.
    pods_unseen: str = ""
    #: What schedulers chose for pods and is not so here.
    unheeded: tuple[PlacementMismatch, ...] = ()
    #: The last Allocates that were refused, the last claims that changed hands, and the last containers that
    #: cannot start with what their pods ask for; oldest first.
    refusals: tuple[Refusal, ...] = ()
    swaps: tuple[ClaimSwap, ...] = ()
    starts_refused: tuple[StartRefusal, ...] = ()
    #: A sentence for each of the last locks of schedulers whose pods did not come for their devices.
    stale_locks: tuple[str, ...] = ()
    #: None where there is none to speak with. Nothing that is served waits for it.
    api_server: ApiServer | None = None
    #: What of the config cannot be served with the devices there are.
    complaints: tuple[str, ...] = ()
    #: What a person should mend of cards that are offered nevertheless.
    doubts: tuple[str, ...] = ()
    #: Resource to a sentence for each other one whose pods hold its cards. That is as it must be until they
    #: end, maybe for days, and keeps nobody from being ready: an update of the DaemonSet would stand still.
    waits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Resource to how it counts memory in another unit than the config wants, with a sentence: the same.
    kept_units: Mapping[str, tuple[KeptUnit, str]] = field(default_factory=dict)
    standby: str = ""
    #: What pods have that names cards which are not here, each with the vendor that it would be of.
    unknown_cards: tuple[tuple[str, CheckpointAnswer], ...] = ()
    #: Resource to how it shows that another plugin has registered it, too.
    other_plugins: Mapping[str, str] = field(default_factory=dict)
    #: Monotonic counters by metric name and labels, as the wires keep them.
    counters: Counters = field(default_factory=dict)
    #: Seconds of each Allocate answered so far, by (resource, outcome), as (count, sum, bucket counts).
    allocate_seconds: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    #: The same of each PreStartContainer.
    pre_start_seconds: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why the agent is not ready; empty when it is."""
        if self.standby:
            return ()  # a second instance waits, ready to take over
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
        why = f"no pod gets a card, as its placement is 'claim', and none is seen: {self.pods_unseen}"
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


#: Before the first look.
UNKNOWN = AgentStatus(node="", version="")

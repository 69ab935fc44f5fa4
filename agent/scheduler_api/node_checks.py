"""What a scheduler's plugin checks when `xpu-agent doctor` runs: pure functions of one look at the node.

The doctor asks the API server for the pods and ConfigMaps that the plugin names, reads files and the agent's
status, and hands all of it to each check as one frozen value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.findings import Finding, FindingKind
from agent.scheduler_api.node_report import ApiDocument, WantedMode
from agent.scheduler_api.observed import UNREAD as UNREAD
from agent.scheduler_api.observed import Observed as Observed
from agent.vendor_api.backend import Device


@dataclass(frozen=True, slots=True)
class CheckedPod:
    """A pod as the API server has it, and what the agent makes of it."""

    document: ApiDocument
    #: None where the pod has no uid or no name.
    candidate: Candidate | None
    #: Why the agent does not follow a scheduler's choice of cards for the pod; empty if the agent does.
    objection: str = ""


@dataclass(frozen=True, slots=True)
class CheckedVendor:
    """A vendor with its devices on this node."""

    devices: Observed[tuple[Device, ...]] = UNREAD
    #: Whether the vendor is meant to serve here: it lists devices, or the config enables it.
    serves: bool = False
    #: Whether each of its resources has placement `local`, or it has no resource.
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A file that another program wrote to the report's directory."""

    path: str
    #: Uuids of its cards.
    cards: frozenset[str] = frozenset()
    #: Why the file cannot be read as a list of cards; empty where it can.
    error: str = ""
    #: Whether the text begins like a list of cards, broken or not.
    is_like_cards: bool = False


@dataclass(frozen=True, slots=True)
class StaleObject:
    """A report object of another name that lists cards of this node, and what is wrong with its Node."""

    name: str
    cards: tuple[str, ...]
    gone: str


@dataclass(frozen=True, slots=True)
class SchedulerObjects:
    """What the API server has of a scheduler. Without the kind of its report object nothing else is read."""

    #: Whether the API server has the kind.
    has_kind: Observed[bool] = UNREAD
    #: The object of this node; empty without one.
    object: Observed[tuple[ApiDocument, ...]] = UNREAD
    stale: Observed[tuple[StaleObject, ...]] = UNREAD
    #: The pods of each `SchedulerChecks.pods`, by its name.
    pods: Mapping[str, Observed[tuple[ApiDocument, ...]]] = field(default_factory=dict)
    #: The ConfigMap of `SchedulerChecks.config_map`; empty without one.
    config_map: Observed[tuple[ApiDocument, ...]] = UNREAD
    #: Namespace of that ConfigMap.
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class NodeLook:
    """One node as the doctor found it."""

    node: str
    objects: SchedulerObjects = SchedulerObjects()
    #: The settings `report.mode`, `report.vendor`, `report.deviceInfosDir`.
    mode: WantedMode = "auto"
    vendor: str = ""
    directory: str = ""
    #: A resource of shares that is named as one of `NodeReport.whole_cards`; empty without one.
    shares: str = ""
    node_object: Observed[ApiDocument] = UNREAD
    #: The pods of this node.
    pods: Observed[tuple[CheckedPod, ...]] = UNREAD
    #: The pods of each `SchedulerChecks.pods`, by its name.
    queried: Mapping[str, Observed[tuple[CheckedPod, ...]]] = field(default_factory=dict)
    #: By name.
    vendors: Mapping[str, CheckedVendor] = field(default_factory=dict)
    #: The document of /inspect; empty where no agent answers.
    status: Mapping[str, Any] = field(default_factory=dict)
    #: Whether the agent of that document serves the node.
    serves: bool = False
    #: Names of the node's resources.
    names: frozenset[str] = frozenset()
    #: Uuids of the node's cards.
    cards: frozenset[str] = frozenset()
    #: Files of other programs in the report's directory, or why it cannot be read.
    files: Observed[tuple[OtherFile, ...]] = UNREAD

    def has_cards(self, vendor: str) -> bool:
        """Whether the vendor is meant to serve here."""
        return self.vendors.get(vendor, CheckedVendor()).serves


@dataclass(frozen=True, slots=True)
class PodQuery:
    """Pods of the whole cluster that a check needs."""

    label_selector: str = ""
    field_selector: str = ""
    #: Whether a pod is kept; None keeps all.
    keep: Callable[[ApiDocument], bool] | None = None


@dataclass(frozen=True, slots=True)
class ConfigMapQuery:
    """A ConfigMap that a check needs."""

    name: str
    #: The namespace, given the pods of each query by its name.
    namespace: Callable[[Mapping[str, Observed[tuple[ApiDocument, ...]]]], str]


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """One check. The first line of the function's docstring stands in docs/doctor.md."""

    name: str
    make: Callable[[NodeLook], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class SchedulerChecks:
    """All checks of a scheduler, and what they need from the API server."""

    #: Checks of the node, and then of its pods, in the order in which their findings are mended.
    node_checks: tuple[NodeCheck, ...] = ()
    pod_checks: tuple[NodeCheck, ...] = ()
    #: Every kind of finding of these checks.
    kinds: tuple[FindingKind, ...] = ()
    pods: Mapping[str, PodQuery] = field(default_factory=dict)
    config_map: ConfigMapQuery | None = None
    #: Keys of the Node's annotations by which the program locks the Node for cards that no vendor here has.
    #: The agent frees none of these locks, and the doctor reports the old ones.
    unfreed_locks: tuple[str, ...] = ()

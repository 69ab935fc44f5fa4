"""The document of /inspect: its form, for the agent that builds the document and the commands that read it.

Keys may be added; keys that are here stay. Times are Unix seconds, memory is in bytes. A key that an older
agent does not write has a default here; a key that only a newer agent writes is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from agent.http.lenient_decoding import DocumentPart, json_object, usable


class InspectedError(DocumentPart, frozen=True):
    """Why a file, an object or a source is not as it should be; empty where it is."""

    error: str = ""


class InspectedConfig(DocumentPart, frozen=True):
    source: str = ""
    error: str = ""


class InspectedEvidence(DocumentPart, frozen=True):
    """Source of evidence to why it cannot be read."""

    errors: Mapping[str, str] = {}


class InspectedReceipts(DocumentPart, frozen=True):
    """`owed`: how many pods have their devices and no receipt yet."""

    error: str = ""
    owed: int = 0


class InspectedReport(DocumentPart, frozen=True):
    """The report of the cards to a scheduler: how the cards are reported, and the reason."""

    mode: Literal["feed", "device", "none", ""] = ""
    why: str = ""
    vendor: str = ""
    cards: int = 0
    healthy: int = 0
    left_out: tuple[str, ...] = ()
    overwritten: bool = False
    error: str = ""


class InspectedList(DocumentPart, frozen=True):
    """A list of the API server's that the agent follows."""

    synced: bool = False
    error: str = ""


class InspectedApiServer(DocumentPart, frozen=True):
    address: str = ""
    synced: bool = False
    error: str = ""
    followed: Mapping[str, InspectedList] = {}


class InspectedVendor(DocumentPart, frozen=True):
    """A vendor in service, with its process."""

    name: str = ""
    state: str = ""
    reason: str = ""
    pid: int | None = None
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    restarts: int = 0
    breaker: str = ""
    next_try: float | None = None
    stuck: int | None = None


class InspectedHealth(DocumentPart, frozen=True):
    state: str = ""
    reason: str = ""
    message: str = ""
    since: float = 0.0


class InspectedCordon(DocumentPart, frozen=True):
    author: str = ""
    reason: str = ""
    since: float = 0.0


class InspectedLink(DocumentPart, frozen=True):
    peer: str = ""
    lanes: int = 0
    distance: str = ""


class InspectedDevice(DocumentPart, frozen=True):
    """A device that its vendor lists."""

    vendor: str = ""
    uuid: str = ""
    index: int | None = None
    parent: str | None = None
    slice: int | None = None
    minor: int | None = None
    pci: str | None = None
    numa: int | None = None
    memory_bytes: int = 0
    model: str = ""
    paths: tuple[str, ...] = ()
    attributes: Mapping[str, str] = {}
    links: tuple[InspectedLink, ...] = ()
    foreign_slices: int = 0
    told_healthy: bool = False
    health: InspectedHealth = InspectedHealth()
    cleared_by: tuple[str, ...] = ()
    cordon: InspectedCordon | None = None
    in_use: bool | None = None


class InspectedAbsentDevice(DocumentPart, frozen=True):
    """A device that is remembered and that no vendor lists now."""

    vendor: str = ""
    uuid: str = ""
    health: InspectedHealth = InspectedHealth()
    cleared_by: tuple[str, ...] = ()
    cordon: InspectedCordon | None = None
    in_use: bool | None = None


class InspectedResource(DocumentPart, frozen=True):
    name: str = ""
    vendor: str = ""
    sharing: str = ""
    replicas: int | None = None
    fail_requests_greater_than_one: bool = False
    #: The memory of one device ID in GiB; empty where the resource does not count memory.
    unit: str = ""
    unit_kept: str = ""
    policy: str = ""
    placement: str = ""
    capacity: int | None = None
    allocatable: int | None = None
    allocated: int | None = None
    devices: tuple[str, ...] = ()
    #: Device IDs that the config does not make, listed while pods hold them.
    kept: tuple[str, ...] = ()
    retired: bool = False
    #: Card to the resource that has the card for now.
    in_other_mode: Mapping[str, str] = {}
    waits: tuple[str, ...] = ()
    session: str = ""
    session_reason: str = ""
    registrations: int = 0
    #: How the resource shows that another plugin has registered it, too.
    foreign: str = ""


class InspectedOwner(DocumentPart, frozen=True):
    """The container that has an allocation. `namespace` and `pod` are empty until the kubelet shows them."""

    namespace: str = ""
    pod: str = ""
    uid: str | None = None
    container: str = ""


class InspectedClaim(DocumentPart, frozen=True):
    """What a scheduler promised to a container."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    devices: tuple[str, ...] = ()
    parameters: Mapping[str, str] = {}
    dialect: str = ""
    remark: str = ""


class InspectedUse(DocumentPart, frozen=True):
    """What a container uses of one card, or slice, beside what it was granted. None: not known."""

    uuid: str = ""
    #: How old the sample is, by the clock of the samples.
    age_seconds: float | None = None
    processes: int = 0
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    utilization: float | None = None
    compute_limit: float | None = None
    #: Since when the container has not used the card.
    idle_seconds: float | None = None


class InspectedAllocation(DocumentPart, frozen=True):
    id: str = ""
    resource: str = ""
    vendor: str = ""
    ids: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    #: Whether the allocation is on other cards than its device IDs name.
    diverged: bool = False
    unit: str = ""
    #: The share that the container was given where that is not the share of the claim; {} is no limit.
    handed: Mapping[str, str] | None = None
    owner: InspectedOwner | None = None
    state: str = ""
    source: str = ""
    reason: str = ""
    since: float = 0.0
    partitions: tuple[str, ...] = ()
    claim: InspectedClaim | None = None
    #: Empty where use is not sampled.
    use: tuple[InspectedUse, ...] = ()


class InspectedMismatch(DocumentPart, frozen=True):
    """A pod that has other cards than its scheduler chose."""

    namespace: str = ""
    pod: str = ""
    reason: str = ""


class InspectedUnknownCard(DocumentPart, frozen=True):
    """A container with an answer that names cards which are not here."""

    vendor: str = ""
    resource: str = ""
    pod_uid: str = ""
    container: str = ""
    ids: tuple[str, ...] = ()


class InspectDocument(DocumentPart, frozen=True):
    """What the running agent knows."""

    node: str = ""
    version: str = ""
    ready: bool = False
    #: The process that has the lock of the node, where this agent stands by.
    standby: str = ""
    #: Sentences that keep the agent from being ready.
    troubles: tuple[str, ...] = ()
    config: InspectedConfig = InspectedConfig()
    checkpoint: InspectedError = InspectedError()
    log: InspectedError = InspectedError()
    evidence: InspectedEvidence = InspectedEvidence()
    cdi: InspectedError = InspectedError()
    labels: InspectedError = InspectedError()
    annotations: InspectedError = InspectedError()
    extended_resources: InspectedError = InspectedError()
    receipts: InspectedReceipts = InspectedReceipts()
    locks: InspectedError = InspectedError()
    report: InspectedReport = InspectedReport()
    api_server: InspectedApiServer | None = None
    complaints: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    vendors: tuple[InspectedVendor, ...] = ()
    devices: tuple[InspectedDevice, ...] = ()
    absent: tuple[InspectedAbsentDevice, ...] = ()
    resources: tuple[InspectedResource, ...] = ()
    allocations: tuple[InspectedAllocation, ...] = ()
    unheeded: tuple[InspectedMismatch, ...] = ()
    unknown_cards: tuple[InspectedUnknownCard, ...] = ()

    @property
    def in_use(self) -> tuple[InspectedAllocation, ...]:
        """The allocations that are not over."""
        return tuple(it for it in self.allocations if it.state != "released")


def to_builtins(document: InspectDocument) -> dict[str, Any]:
    """The document as values of JSON, with every key in its place."""
    values: dict[str, Any] = msgspec.to_builtins(document)
    return values


def decode(body: bytes) -> InspectDocument:
    """The document that an agent of any release answered.

    Raises:
        msgspec.MsgspecError: The body is no JSON object.
    """
    return from_builtins(json_object(body))


def from_builtins(values: Mapping[str, Any]) -> InspectDocument:
    """The document as far as it fits the form: a value of another type counts as missing."""
    document: InspectDocument = usable(values, InspectDocument)
    return document

"""The document of /inspect: its form, for the agent that builds the document and the commands that read it.

Keys may be added; keys that are here stay. Times are Unix seconds, memory is in bytes. A key that an older
agent does not write has a default here; a key that only a newer agent writes is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import msgspec


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """A JSON object of the document. The order of its attributes is the order of its keys."""


class InspectedError(_Part, frozen=True):
    """Why a file, an object or a source is not as it should be; empty where it is."""

    error: str = ""


class InspectedConfig(_Part, frozen=True):
    source: str = ""
    error: str = ""


class InspectedEvidence(_Part, frozen=True):
    """Source of evidence to why it cannot be read."""

    errors: Mapping[str, str] = {}


class InspectedReceipts(_Part, frozen=True):
    """`owed`: how many pods have their devices and no receipt yet."""

    error: str = ""
    owed: int = 0


class InspectedReport(_Part, frozen=True):
    """The report of the cards to a scheduler: how the cards are reported, and the reason."""

    mode: Literal["feed", "device", "none", ""] = ""
    why: str = ""
    vendor: str = ""
    cards: int = 0
    healthy: int = 0
    left_out: tuple[str, ...] = ()
    overwritten: bool = False
    error: str = ""


class InspectedList(_Part, frozen=True):
    """A list of the API server's that the agent follows."""

    synced: bool = False
    error: str = ""


class InspectedApiServer(_Part, frozen=True):
    address: str = ""
    synced: bool = False
    error: str = ""
    followed: Mapping[str, InspectedList] = {}


class InspectedVendor(_Part, frozen=True):
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


class InspectedHealth(_Part, frozen=True):
    state: str = ""
    reason: str = ""
    message: str = ""
    since: float = 0.0


class InspectedCordon(_Part, frozen=True):
    author: str = ""
    reason: str = ""
    since: float = 0.0


class InspectedLink(_Part, frozen=True):
    peer: str = ""
    lanes: int = 0
    distance: str = ""


class InspectedDevice(_Part, frozen=True):
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


class InspectedAbsentDevice(_Part, frozen=True):
    """A device that is remembered and that no vendor lists now."""

    vendor: str = ""
    uuid: str = ""
    health: InspectedHealth = InspectedHealth()
    cleared_by: tuple[str, ...] = ()
    cordon: InspectedCordon | None = None
    in_use: bool | None = None


class InspectedResource(_Part, frozen=True):
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


class InspectedOwner(_Part, frozen=True):
    """The container that has an allocation. `namespace` and `pod` are empty until the kubelet shows them."""

    namespace: str = ""
    pod: str = ""
    uid: str | None = None
    container: str = ""


class InspectedClaim(_Part, frozen=True):
    """What a scheduler promised to a container."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    devices: tuple[str, ...] = ()
    parameters: Mapping[str, str] = {}
    dialect: str = ""
    remark: str = ""


class InspectedAllocation(_Part, frozen=True):
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


class InspectedMismatch(_Part, frozen=True):
    """A pod that has other cards than its scheduler chose."""

    namespace: str = ""
    pod: str = ""
    reason: str = ""


class InspectedUnknownCard(_Part, frozen=True):
    """A container with an answer that names cards which are not here."""

    vendor: str = ""
    resource: str = ""
    pod_uid: str = ""
    container: str = ""
    ids: tuple[str, ...] = ()


class InspectDocument(_Part, frozen=True):
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

    Halves of surrogate pairs are kept, because names of files on the node may have them.

    Raises:
        msgspec.MsgspecError: The body is no JSON object.
    """
    try:
        values = json.loads(body.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as exc:
        raise msgspec.DecodeError(str(exc)) from exc
    return from_builtins(msgspec.convert(values, dict[str, Any]))


def from_builtins(values: Mapping[str, Any]) -> InspectDocument:
    """The document as far as it fits the form: a value of another type counts as missing."""
    document: InspectDocument = _usable(values, InspectDocument)
    return document


def _usable(value: object, form: Any) -> Any:
    """What of the value fits the form: of an object its good keys, of a list of objects these objects.

    Raises:
        msgspec.ValidationError: Nothing of the value fits.
    """
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError:
        part = _part_in(form)
        if part is None:
            raise
        if get_origin(form) is tuple:
            if not isinstance(value, list):
                raise
            return tuple(_usable(row, part) for row in value if isinstance(row, Mapping))
        if not isinstance(value, Mapping):
            raise
        return part(**_usable_keys(value, part))


def _usable_keys(value: Mapping[str, Any], part: type[_Part]) -> dict[str, Any]:
    usable = {}
    for attribute in msgspec.structs.fields(part):
        if attribute.encode_name in value:
            with suppress(msgspec.ValidationError):
                usable[attribute.name] = _usable(value[attribute.encode_name], attribute.type)
    return usable


def _part_in(form: Any) -> type[_Part] | None:
    """The kind of object that the form is, lists, or allows beside None."""
    kinds = get_args(form) if get_origin(form) in (tuple, UnionType) else (form,)
    return next((it for it in kinds if isinstance(it, type) and issubclass(it, _Part)), None)

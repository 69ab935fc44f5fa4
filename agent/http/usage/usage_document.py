"""The document of /inspect/usage: its form, for the agent that builds the document and `top`, which reads it.

Keys may be added; keys that are here stay. Times are Unix seconds, memory is in bytes, utilization and parts
of cards are from 0 to 1. None: not known.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.http.lenient_decoding import DocumentPart, json_object, usable


class VendorSampling(DocumentPart, frozen=True):
    """How the sampling of one vendor goes. `up`: whether the last sample speaks of now."""

    vendor: str = ""
    up: bool = False
    at: float | None = None
    age_seconds: float | None = None
    error: str = ""
    ended: bool = False
    tells_processes: bool = False


class UsedCard(DocumentPart, frozen=True):
    """The use of a card, or of a slice of a card."""

    vendor: str = ""
    uuid: str = ""
    index: int | None = None
    parent: str | None = None
    slice: int | None = None
    minor: int | None = None
    pci: str | None = None
    model: str = ""
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    tensor_utilization: float | None = None
    encoder_utilization: float | None = None
    decoder_utilization: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    ecc_errors: Mapping[str, int] = {}
    driver_errors: Mapping[str, int] = {}
    last_driver_error: int | None = None
    #: The memory in use is what containers use, `unattributed_bytes` and `in_slices_bytes` together, less
    #: `overcounted_bytes`.
    unattributed_bytes: Mapping[str, int] = {}
    overcounted_bytes: int = 0
    in_slices_bytes: int = 0


class UsingContainer(DocumentPart, frozen=True):
    """The use of a card, or slice, by one container. `container` is empty where only the pod is known."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    vendor: str = ""
    uuid: str = ""
    resource: str = ""
    processes: int = 0
    memory_bytes: int | None = None
    utilization: float | None = None
    memory_limit_bytes: int | None = None
    compute_limit: float | None = None
    active_at: float | None = None
    idle_seconds: float | None = None
    #: What keeps the container to its share: `enforced`, `cooperative`, `observed`, `none`.
    share: str = ""
    limits: str = ""


class UsingProcess(DocumentPart, frozen=True):
    """One process on a card. `pod` is empty for a process of the host."""

    pid: int = 0
    name: str = ""
    uuid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    memory_bytes: int | None = None
    utilization: float | None = None


class ContainerHistory(DocumentPart, frozen=True):
    """The use of one card by one container: Unix minute, bytes, utilization; oldest first."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    uuid: str = ""
    minutes: tuple[tuple[int, int | None, float | None], ...] = ()


class UsageDocument(DocumentPart, frozen=True):
    """What each container uses of each card."""

    node: str = ""
    version: str = ""
    interval_seconds: float = 0.0
    #: Whether the agent has the PIDs of the machine, by which libraries name processes.
    sees_node_pids: bool = True
    sampling: tuple[VendorSampling, ...] = ()
    cards: tuple[UsedCard, ...] = ()
    containers: tuple[UsingContainer, ...] = ()
    #: None where the client may not see processes: their names are for the operator of the node alone.
    processes: tuple[UsingProcess, ...] | None = None
    #: The number of processes whose `owner`, `memory` or `utilization` is not known, by that word.
    unknown: Mapping[str, int] = {}
    #: None where the request names no history.
    history: tuple[ContainerHistory, ...] | None = None
    #: How many histories are missing, because one answer has only so many.
    histories_left_out: int = 0


def decode(body: bytes) -> UsageDocument:
    """The document that an agent of any release answered, as far as it fits the form.

    Raises:
        msgspec.MsgspecError: The body is no JSON object.
    """
    document: UsageDocument = usable(json_object(body), UsageDocument)
    return document

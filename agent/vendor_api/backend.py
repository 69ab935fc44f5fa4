"""What a vendor's own process implements and returns.

Standard library only: that process imports this module, its vendor library and nothing more, and starts the
sooner for it. `Backend` is plain synchronous Python that talks to the vendor's library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class State(StrEnum):
    """Health of a physical device."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class Proof(StrEnum):
    """What can show that a sticky fault is over."""

    RESET = "reset"
    DRIVER_RELOAD = "driver-reload"
    REBOOT = "reboot"
    OPERATOR = "operator"


class Distance(StrEnum):
    """The PCIe path between two devices, nearest first (NVML's common ancestor levels)."""

    BOARD = "board"
    SWITCH = "switch"
    SWITCHES = "switches"
    HOST_BRIDGE = "host-bridge"
    NUMA_NODE = "numa-node"
    SYSTEM = "system"


#: Attributes of a device that the agent itself reads, of whatever vendor: 580.65.06, and pci0000:3a.
DRIVER_VERSION = "driver-version"
PCIE_ROOT = "pcie-root"
#: How many slices of its hardware lie on a card that we did not make; absent where none does. While there is
#: one, nobody new gets the card by a resource whose hardware is not made.
FOREIGN_SLICES = "foreign-slices"

#: The reason of BackendUnavailable that, once devices are back, proves that the driver was loaded anew.
DRIVER_NOT_LOADED = "driver-not-loaded"
#: The one that says that nothing of the vendor is here, which is no trouble on a node without its cards.
LIBRARY_NOT_FOUND = "library-not-found"
#: The one of a library that is there and cannot be used: half a file, unreadable, or another one.
LIBRARY_UNUSABLE = "library-unusable"
#: The reason of a device's fault where its vendor's library is missing, and others tell of the device.
NO_LIBRARY = "no-library"


class BackendUnavailable(Exception):
    """Raised when the vendor's driver or library is missing or refuses to start; tried again later."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.reason = reason
        self.message = message


class RequestRefused(ValueError):
    """Raised by `prepare` where a request cannot be served as it is, which asking again does not change.

    Its text is a sentence for who made the pod: what was asked for, what there is, and what would work.
    """


class NoRoom(RequestRefused):
    """Raised by `prepare` where others' slices are in the way of a request: once they are gone, it fits.

    Of our own those of pods that have ended are let go of at once then, and `prepare` is called again.
    """


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a device.

    `state` UNKNOWN means that nothing watches the device. A fault that names proofs in `cleared_by` is
    sticky: good news alone never ends it.
    """

    reason: str
    message: str = ""
    state: State = State.UNHEALTHY
    cleared_by: tuple[Proof, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """The state of a device as it is now, never a change to apply. `fault` None is good news.

    `uuid` None speaks for all devices of the vendor. `recovery_due` says of bad news what a Device's says;
    the proof of a reset says that it is over.
    """

    uuid: str | None
    fault: Fault | None
    proof: Proof | None = None
    recovery_due: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """How a device reaches a peer: direct lanes (NVLink and its kin) and the PCIe path."""

    peer: str
    lanes: int = 0
    distance: Distance = Distance.SYSTEM


@dataclass(frozen=True, slots=True)
class Device:
    """A physical device. `fault` is what reading it said this time; None says that it read well."""

    uuid: str
    index: int
    minor: int | None = None
    #: dddd:bb:dd.f, lower case
    pci: str | None = None
    #: None where the platform does not say; never -1
    numa: int | None = None
    memory: int = 0  # bytes
    model: str = ""
    paths: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    #: Of a slice that the hardware made: the uuid of its card, and its number there. `index`, `numa` and
    #: `pci` are the card's. A slice is never better than its card.
    parent: str | None = None
    slice: int | None = None
    #: The card could not tell its uuid, only that it is there: `uuid` stands for it until it does, and nobody
    #: is offered it. The agent gives it back the name that it knew at its PCI address, or else at its index.
    nameless: bool = False
    #: Counts that only grow while the driver stays loaded: name to value. A smaller one than before proves
    #: that it was loaded anew, also where nobody of us saw it. They make no device another one.
    counters: Mapping[str, int] = field(default_factory=dict, compare=False)
    #: Whether the driver wants something done before the device works again, such as a reset; None where it
    #: does not say. When it wants nothing more, of a device that reads well, that proves a reset, also where
    #: nobody of us saw it.
    recovery_due: bool | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Request:
    """One Allocate as a vendor sees it: device IDs of one resource for one container."""

    allocation: str
    resource: str
    ids: tuple[str, ...]
    #: What a scheduler's claim says of the hardware to make, in the vendor's own words.
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: Where its container's edits are made: slices that the hardware made for it, by the vendor's ids.
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """A slice made on the hardware: its id, its card's uuid, and our mark on it, None where it is foreign."""

    id: str
    uuid: str
    allocation: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    uuid: str
    memory_used: int  # bytes
    utilization: float | None = None  # 0..1


class Backend(ABC):
    """A vendor's library behind plain blocking calls. One thread calls everything but `health_events`.

    Only `discover` is mandatory. A call may block, but one that outlives its deadline costs the process.
    """

    #: Where the backend may keep files that outlive the process: its own, 0700, there before `open`. None
    #: where nobody gave it one, as in the conformance kit; what is kept there must not be needed to serve.
    directory: Path | None = None

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def open(self) -> None:
        """Load the library. Opening again after `close` works.

        Raises:
            BackendUnavailable: The driver or library is not there; it is tried again later.
        """

    def close(self) -> None:
        """Let go of the library."""

    @abstractmethod
    def discover(self) -> Sequence[Device]:
        """Every device of the vendor on this node, each time in full, without `links`.

        A device that cannot be read is listed with a `fault` and hides no other.
        Raises BackendUnavailable when the driver is gone.
        """

    def links(self, uuid: str) -> Sequence[Link]:
        """How this device reaches its peers. Called once per device, after the first list is out."""
        return ()

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        """Wait up to `timeout` seconds for news, in a thread of its own. Return () when there is none."""
        return ()

    def prepare(self, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        """Make sure that the hardware of the request exists; asked twice it does nothing new.

        Each slice bears the request's allocation as its mark. One of this allocation that lies on another
        device or was made with other parameters is replaced: nothing runs on it yet.

        Raises:
            RequestRefused: The request cannot be served as it is; the pod shows why. Nothing of it is left.
            NoRoom: The same, while other slices lie on the card.
        """
        return ()

    def release(self, allocation: str) -> None:
        """Remove what `prepare` made. Unknown or removed already is fine."""

    def partitions(self) -> Sequence[Partition]:
        """Every slice on the hardware, ours and foreign."""
        return ()

    def cdi(self) -> Mapping[str, str]:
        """The CDI specs that containers need: file name (`vendor-class.json`) to content.

        Runtimes take no spec without devices: where there are none the content is empty, and so no file.
        Asked after `discover` whenever the devices changed, before the list of devices goes out, and after
        each `prepare` and `release`, before they are answered: containers start by what it says then.
        """
        return {}

    def usage(self) -> Sequence[Usage]:
        """What runs on the devices now."""
        return ()


def overrides(backend: type[Backend], method: str) -> bool:
    """Whether the vendor implements an optional method itself."""
    return getattr(backend, method) is not getattr(Backend, method)

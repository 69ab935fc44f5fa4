"""What a vendor's own process implements and returns.

Standard library only: that process imports this module, the vendor's library and nothing more, so that it
starts quickly. `Backend` is plain synchronous Python that talks to the vendor's library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar


class State(StrEnum):
    """Health of a physical device."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class Proof(StrEnum):
    """What can prove that a sticky fault is over."""

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


#: Attributes of a device that the agent itself reads, for every vendor: 580.65.06, and pci0000:3a.
DRIVER_VERSION = "driver-version"
PCIE_ROOT = "pcie-root"
#: The number of slices on a card that the agent did not make; absent for none. While there is one, no new pod
#: gets the card by a resource without made hardware.
FOREIGN_SLICES = "foreign-slices"

#: The reason of BackendUnavailable that, once devices are back, proves that the driver was loaded again.
DRIVER_NOT_LOADED = "driver-not-loaded"
#: The reason for a vendor without a library on this node; no error on a node without the vendor's cards.
LIBRARY_NOT_FOUND = "library-not-found"
#: The reason for a library that exists and cannot be used: half a file, unreadable, or another library.
LIBRARY_UNUSABLE = "library-unusable"
#: The reason of a device's fault where the library is missing, and the kernel shows the device.
NO_LIBRARY = "no-library"


class BackendUnavailable(Exception):
    """Raised when the vendor's driver or library is missing or refuses to start; tried again later."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.reason = reason
        self.message = message


class RequestRefused(ValueError):
    """Raised by `prepare` where a request cannot be served as it is, which asking again does not change.

    The text is a sentence for the owner of the pod: what was asked for, what there is, and what would work.
    """


class NoRoom(RequestRefused):
    """Raised by `prepare` where slices of other pods leave no room: once they are gone, the request fits.

    The agent then releases the slices of pods that have ended, and calls `prepare` again.
    """


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a device.

    `state` UNKNOWN means that nothing watches the device. A fault that names proofs in `cleared_by` is
    sticky: readings without the fault never end it.
    """

    reason: str
    message: str = ""
    state: State = State.UNHEALTHY
    cleared_by: tuple[Proof, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """The state of a device as it is now, never a change to apply. `fault` None: the device is well.

    `uuid` None speaks for all devices of the vendor. `recovery_due` of an event with a fault means what
    `Device.recovery_due` means; the proof of a reset says that the recovery is done.
    """

    uuid: str | None
    fault: Fault | None
    proof: Proof | None = None
    recovery_due: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """How a device reaches a peer: the number of direct lanes, such as NVLink, and the PCIe path."""

    peer: str
    lanes: int = 0
    distance: Distance = Distance.SYSTEM


@dataclass(frozen=True, slots=True)
class Device:
    """A physical device. `fault` is what this reading found wrong; None: it could be read and is well."""

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
    #: For a slice that the hardware made: the uuid of the card, and the number of the slice there. `index`,
    #: `numa` and `pci` are those of the card. A slice is never healthier than the card.
    parent: str | None = None
    slice: int | None = None
    #: Whether the library lists the card and cannot read its uuid. `uuid` is then a substitute, and no pod is
    #: offered the card. The agent uses the uuid that it knew at this PCI address, or else at this index.
    nameless: bool = False
    #: Counts that only grow while the driver stays loaded: name to value. A smaller count than before proves
    #: that the driver was loaded again, even without an event. Counts do not make two devices different.
    counters: Mapping[str, int] = field(default_factory=dict, compare=False)
    #: Whether the driver requires an action, such as a reset, before the device works again; None where the
    #: driver does not say. False after True, for a device without a fault, proves a reset, even without an
    #: event.
    recovery_due: bool | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Request:
    """One Allocate as a vendor sees it: device IDs of one resource for one container."""

    allocation: str
    resource: str
    ids: tuple[str, ...]
    #: What a scheduler's claim says of the hardware to make, in the vendor's own words.
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: In calls of `container_edits`: the slices that the hardware made for the request, by the vendor's ids.
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """A slice on the hardware: its id, the uuid of its card, and the allocation that it is marked with.

    `allocation` None: the agent did not make the slice.
    """

    id: str
    uuid: str
    allocation: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a device, or of a slice of a device, is in use now. None: the library does not say."""

    uuid: str
    #: Bytes. `memory_used` is without `memory_reserved`, which the driver keeps for itself.
    memory_used: int | None = None
    memory_total: int | None = None
    memory_reserved: int | None = None
    #: Parts from 0 to 1 of the last moments: the compute units, the memory's controller, the tensor units,
    #: and the units for video.
    utilization: float | None = None
    memory_utilization: float | None = None
    tensor_utilization: float | None = None
    encoder_utilization: float | None = None
    decoder_utilization: float | None = None
    power: float | None = None  # watts
    energy: float | None = None  # joules since the driver was loaded
    temperature: float | None = None  # degrees Celsius
    memory_temperature: float | None = None  # degrees Celsius
    clock: float | None = None  # hertz, of the compute units
    memory_clock: float | None = None  # hertz
    #: Kind, such as `corrected` or `uncorrected`, to the number of memory errors since the driver was loaded.
    ecc_errors: Mapping[str, int] = field(default_factory=dict)
    #: Number of an error of the driver, such as an XID, to how often the error came since `open`.
    driver_errors: Mapping[str, int] = field(default_factory=dict)
    #: The number of the last of them; None where none came since `open`.
    last_driver_error: int | None = None
    #: For a slice that `partitions` lists: the uuid of its card.
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """How much of a device, or of a slice of a device, one process uses. None: the library does not say."""

    uuid: str
    #: As the node's own pid namespace counts.
    pid: int
    memory: int | None = None  # bytes
    utilization: float | None = None  # 0..1 of the device's compute units


class Backend(ABC):
    """A vendor's library behind plain blocking calls.

    Only `discover` is mandatory. One thread makes all calls but three: a second thread waits in
    `health_events`, and a third one calls `usage` and `processes` in turn, every few seconds, where the
    config wants that. A call may block, but a call that outlives its deadline costs the process; three late
    answers of `usage` and `processes` cost only these two calls, until the process is replaced.
    """

    #: Whether the library takes the calls of one thread alone. `usage` and `processes` are then called by the
    #: thread of the other calls, when none of these waits, and cost the process like these.
    one_caller: ClassVar[bool] = False

    #: The backend's own directory (0700) for files that outlive the process; it exists before `open`. None
    #: where there is none, as in the conformance kit: serving must not need the files.
    directory: Path | None = None

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def open(self) -> None:
        """Load the library. A later `open` after `close` has to work, too.

        Raises:
            BackendUnavailable: The driver or library is not there; the agent tries again later.
        """

    def close(self) -> None:
        """Release the library."""

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
        """Wait up to `timeout` seconds for events, in a thread of its own. Return () when there is none."""
        return ()

    def prepare(self, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        """Make sure that the hardware of the request exists; a second call does nothing new.

        Each slice is marked with the allocation of the request. A slice of this allocation on another device,
        or with other parameters, is replaced: nothing runs on it yet.

        Raises:
            RequestRefused: The request cannot be served as it is; the pod shows why. No slice is left.
            NoRoom: The same, while other slices leave no room on the card.
        """
        return ()

    def release(self, allocation: str) -> None:
        """Remove what `prepare` made. An unknown allocation, or a removed one, is no error."""

    def partitions(self) -> Sequence[Partition]:
        """Every slice on the hardware, whether the agent made it or not."""
        return ()

    def cdi(self) -> Mapping[str, str]:
        """The CDI specs that containers need: file name (`vendor-class.json`) to content.

        Container runtimes take no spec without devices: there the content is empty, and no file is written.
        Called after `discover` whenever the devices changed, before the list of devices goes out, and after
        each `prepare` and `release`, before they are answered: containers start with these specs.
        """
        return {}

    def usage(self) -> Sequence[Usage]:
        """How much of each device is in use now. A device that cannot be read is left out."""
        return ()

    def processes(self) -> Sequence[ProcessUsage]:
        """The processes on all devices, in one call. A process on two devices is listed for each of them.

        A backend that cannot tell does not implement this method: () says that no process uses a device.
        """
        return ()


def overrides(backend: type[Backend], method: str) -> bool:
    """Whether the vendor implements an optional method itself."""
    return getattr(backend, method) is not getattr(Backend, method)

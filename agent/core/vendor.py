"""What a vendor implements and returns.

Standard library only: a vendor's own process imports this module, its vendor library and nothing more.
A vendor folder has two halves. `backend.py` holds a `Backend`: plain synchronous Python that talks to the
vendor's library, in a child process. `plugin.py` registers a `Vendor`: names and pure functions that run in
the agent. Neither ever speaks with Kubernetes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from agent.core.claims import Candidate, Dialect


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
#: The one of a library that is there and can not be used: half a file, unreadable, or another one.
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
    """Raised by `prepare` where a request can not be served as it is, which asking again does not change.

    Its text is a sentence for who made the pod: what was asked for, what there is, and what would work.
    """


class NoRoom(RequestRefused):
    """Raised by `prepare` where others' slices are in the way of a request: once they are gone, it fits.

    Of our own those of pods that have ended are let go of at once then, and `prepare` is called again.
    """


class SettingsError(ValueError):
    """Raised by `register_backend` when a vendor's own settings are wrong; `path` leads to the value."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = tuple(path)


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a person should know of settings that are good nevertheless; `path` leads to the value."""

    message: str
    path: tuple[str | int, ...] = ()


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


IdForm = Literal["uuid", "minor", "short"]
Policy = Literal["distributed", "packed", "aligned"]
Placement = Literal["local", "claim", "auto"]
Modes = Literal["fixed", "dynamic"]


#: More entries of one card never fit into the 4 MiB list that the kubelet receives.
MAX_REPLICAS = 131_072


#: GiB of a card's memory that one device ID stands for; `auto` is the smallest whose list the kubelet takes.
Unit = Literal["1", "0.1", "0.01", "0.001", "auto"]


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a resource counts a card: whole, as a number of replicas, or by its memory in units of a size."""

    kind: Literal["exclusive", "replicas", "memory"] = "exclusive"
    replicas: int = 1
    fail_requests_greater_than_one: bool = False
    #: Whether the replicas of one container may lie on several cards; units of memory never do.
    span_cards: bool = True
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class ResourceRule:
    """What is wanted of one resource. `devices`: "all" whole cards, a count of them, or indices and uuids."""

    name: str
    devices: Literal["all"] | int | tuple[int | str, ...] = "all"
    sharing: Sharing = Sharing()
    policy: Policy | None = None
    placement: Placement = "local"
    ids: IdForm | None = None

    @property
    def form(self) -> IdForm:
        """How its device IDs are written: units of memory are many, and the list has an end."""
        return self.ids or ("short" if self.sharing.kind == "memory" else "uuid")


@dataclass(frozen=True, slots=True)
class Offering:
    """What a vendor makes of its devices: the resources, and a sentence for each thing it could not serve.

    `complaints` keep the agent from being ready. `notes` do not: what a config for many nodes names and this
    one does not have. Nor do `doubts`: what a person should mend of devices that are offered nevertheless,
    as inspect and the doctor tell.
    """

    rules: tuple[ResourceRule, ...] = ()
    complaints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


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
class Grant:
    """An allocation in use: what it was asked for, and the uuids of the cards that it has."""

    request: Request
    uuids: tuple[str, ...]
    #: Slices that the hardware made for it, by the vendor's ids.
    partitions: tuple[str, ...] = ()
    #: The pod that has it, as the API server shows it, and its container; None where it shows none.
    pod: Candidate | None = None
    container: str = ""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Mount:
    path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What a container gets: the container half of the kubelet's ContainerAllocateResponse."""

    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


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

        A device that can not be read is listed with a `fault` and hides no other.
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
            RequestRefused: The request can not be served as it is; the pod shows why. Nothing of it is left.
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


@dataclass(frozen=True, slots=True)
class Listing:
    """A card within one resource: how many IDs it has there.

    `mode` is the resource whose the card is for now, where that is another one; empty where it is not.
    """

    resource: str
    uuid: str
    count: int
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that has something, or is promised it. `created`: Unix time, seconds; None where nobody says."""

    namespace: str
    name: str
    uid: str = ""
    created: float | None = None
    #: Whether none of its containers has started yet.
    pending: bool = True


@dataclass(frozen=True, slots=True)
class Holding:
    """How many of a resource's IDs one container has of a card; None holds what nobody is known to have.

    An ID that several containers of a pod have one after another is counted once.
    """

    resource: str
    uuid: str
    count: int
    holder: Holder | None = None
    container: str = ""
    #: Whether it has them; else a scheduler has promised them, and the kubelet has not asked yet.
    allocated: bool = True
    #: What the claim says of the hardware to make, and the slices that were made, by the vendor's ids.
    parameters: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A vendor's devices and who has what of them. Holdings are in the order of their pods, oldest first."""

    node: str
    devices: tuple[Device, ...] = ()
    listings: tuple[Listing, ...] = ()
    holdings: tuple[Holding, ...] = ()


class NotShown(LookupError):
    """Raised by a format that has nothing of what is asked for; `document` says so in its own way."""

    def __init__(self, document: Any) -> None:
        super().__init__(str(document))
        self.document = document


@dataclass(frozen=True, slots=True)
class Format:
    """How a tool of others shows what is given out, for those who read that.

    `document` is pure: of a picture, the node that is asked for (empty: none is named) and the query it makes
    plain JSON values. It raises NotShown where it has nothing, of another node, say.
    """

    #: For `xpu-agent inspect --format NAME`.
    name: str
    document: Callable[[Picture, str, Mapping[str, str]], Any]
    #: Where that tool shows it, such as `/acme/inspect`; below it is each node by name. Empty: nowhere.
    path: str = ""


Edits = Callable[[Sequence[Device], Request], ContainerEdits]
Resources = Callable[[Sequence[ResourceRule], Sequence[Device]], Offering]
Judge = Callable[[Sequence[ResourceRule]], None]
Labels = Callable[[Sequence[ResourceRule], Sequence[Device]], Mapping[str, str]]
Annotations = Callable[[Sequence[ResourceRule], Sequence[Device], Sequence[Grant]], Mapping[str, str | None]]
ExtendedResources = Callable[[Sequence[ResourceRule], Sequence[Device]], Mapping[str, int | None]]
CardsTold = Callable[[Mapping[str, str], Sequence[Device]], Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class Signs:
    """What shows that something of a vendor is on this node, without its library; any one of these does."""

    #: Files, directories and device nodes of its driver, absolute.
    driver: tuple[str, ...] = ()
    #: Who makes its cards, as sysfs writes it below `bus/pci/devices`: 0x10de.
    pci: tuple[str, ...] = ()
    sysfs: str = "/sys"


@dataclass(frozen=True, slots=True)
class HostPart:
    """What has to be on a node with a vendor's cards, beside the library; any of `paths` shows it."""

    #: What it is: Enflame's container runtime.
    name: str
    #: Absolute, or bare names of programs, which are looked for on PATH.
    paths: tuple[str, ...]
    #: What goes without it, and what brings it, as clauses: containers get no cards; install the driver.
    without: str
    remedy: str
    #: Whether nothing of the vendor works without it; else something does.
    needed: bool = True
    #: Whether it lies where a pod sees nothing of the host: it is looked for below the host's root.
    host: bool = False


@dataclass(frozen=True, slots=True)
class Vendor:
    """The agent's half of a vendor: names, and decisions without I/O.

    The functions are pure and repeatable; what they need of the settings is bound to them. A vendor whose
    `backend` or `settings` are others than before gets a new process, new functions alone do not cost one.
    """

    name: str
    #: Where the child process finds the Backend, as "package.module:Class".
    backend: str
    #: Devices are distinct, in the order in which the kubelet named their IDs.
    container_edits: Edits
    #: The resource advertised when neither the config nor `resources` names one: whole devices, exclusive.
    resource: str
    #: Given to the Backend's constructor; plain JSON values.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: What each setting is that the config does not say, as plain JSON values: `config check` prints it.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Whether `prepare` makes hardware that Allocate must wait for, and that each start of a container needs.
    prepares: bool = False
    #: Whether containers get their devices by CDI names alone: without the specs nothing is given out.
    by_cdi: bool = False
    #: The resources to which these two apply, where that is not all that the vendor has.
    prepared: tuple[str, ...] = ()
    #: What the configured rules (none: the vendor's own choice) mean on these devices. Rules that come out
    #: name their devices by uuid; several of one name make one resource.
    resources: Resources | None = None
    #: Judges the configured rules as far as that needs no devices. Raises SettingsError, with the path from
    #: the list of rules.
    judge: Judge | None = None
    #: How a card is counted, and who chooses it, where a rule does not say so.
    sharing: Sharing = Sharing()
    placement: Placement = "local"
    #: The same for resources of certain names, with policy and ids; None for a name leaves it at the above.
    named: Callable[[str], ResourceRule | None] | None = None
    #: Whether its resources may name the same cards, where the config does not say so.
    modes: Modes = "fixed"
    #: Labels of the Node that follow from the configured rules and these devices: key to value.
    labels: Labels | None = None
    #: Annotations of the Node that follow from the configured rules, these devices and what of them is given
    #: out: key to text. A device has a fault here where nobody new gets it, and nowhere else. One of
    #: `annotation_keys` that is None or absent is removed from the Node.
    annotations: Annotations | None = None
    #: The keys of these annotations, which are the vendor's own: nobody else writes them on this node.
    annotation_keys: tuple[str, ...] = ()
    #: Extended resources of the Node that nobody gives out and schedulers go by: name to count, from the
    #: configured rules and these devices. One of `extended_resource_keys` that is None or absent is taken
    #: from the Node where the agent wrote it. A device has a fault here where nobody new gets it.
    extended_resources: ExtendedResources | None = None
    #: Their names, which are the vendor's own and none that the kubelet counts.
    extended_resource_keys: tuple[str, ...] = ()
    #: What the agent adds to the labels: the machine's model where there are devices, and the time.
    machine_label: str = ""
    time_label: str = ""
    #: What is odd in the settings; `config check` and the log tell it with its place.
    doubts: tuple[Doubt, ...] = ()
    #: How schedulers say which container gets which of its cards; the first one that claims counts.
    dialects: tuple[Dialect, ...] = ()
    #: What becomes of a container that asks for so many IDs and of which no scheduler speaks, though one may
    #: choose: `is refused`, or `gets` and what, where that is not what the kubelet chooses.
    unclaimed: Callable[[int], str] | None = None
    #: The variable that tells a container its devices; a pod that sets it itself goes around us.
    visible: str = ""
    #: How the refusal begins of a request for units of memory that no single card has.
    shortage: str = "insufficient memory in one device"
    #: The files in which its library is looked for; a bare name is the loader's to find. The function looks
    #: at files alone and loads nothing.
    libraries: Callable[[], Sequence[str]] | None = None
    #: What else its cards are served with; `xpu-agent doctor` looks for it where they are.
    host_parts: tuple[HostPart, ...] = ()
    #: While none of these and none of `libraries` is here, which must be all then, no process is started
    #: unless the config asks for the vendor. None: it is always started.
    signs: Signs | None = None
    #: What it shows beside `/inspect`, to who may read that: as other tools of the vendor show it.
    formats: tuple[Format, ...] = ()
    #: The sockets of other plugins of its cards, by name in the kubelet's directory; * is any text.
    rivals: tuple[str, ...] = ()
    #: The resources that those give out of its cards: pods keep what they have of one that the config lacks.
    former: tuple[str, ...] = ()
    #: The uuids of the cards that the variables of such a plugin's answer name, of these devices: it may have
    #: given others than those of its IDs. None where they say nothing of cards; empty where what they say
    #: is no card.
    cards_told: CardsTold | None = None

    def makes(self, resource: str) -> bool:
        """Whether the resource's containers need hardware that `prepare` makes."""
        return self.prepares and (not self.prepared or resource in self.prepared)

    def rule(self, name: str) -> ResourceRule:
        """What a rule of this name is where it says nothing else."""
        its = self.named(name) if self.named else None
        return its or ResourceRule(name, sharing=self.sharing, placement=self.placement)

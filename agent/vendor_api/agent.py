"""What a vendor implements and returns.

Standard library only. A vendor folder has two halves. `backend.py` holds a `Backend`: plain synchronous
Python that talks to the vendor's library, in a child process, for which `agent.vendor_api.backend` is enough.
`plugin.py` registers a `Vendor`: names and pure functions that run in the agent. Neither ever speaks with
Kubernetes.
"""

from __future__ import annotations  # noqa: I001 - one list of what it hands on

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from agent.vendor_api.backend import (
    DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
    DRIVER_VERSION as DRIVER_VERSION,
    FOREIGN_SLICES as FOREIGN_SLICES,
    LIBRARY_NOT_FOUND as LIBRARY_NOT_FOUND,
    LIBRARY_UNUSABLE as LIBRARY_UNUSABLE,
    NO_LIBRARY as NO_LIBRARY,
    PCIE_ROOT as PCIE_ROOT,
    Backend as Backend,
    BackendUnavailable as BackendUnavailable,
    Device as Device,
    Distance as Distance,
    Fault as Fault,
    HealthEvent as HealthEvent,
    Link as Link,
    NoRoom as NoRoom,
    Partition as Partition,
    Proof as Proof,
    Request as Request,
    RequestRefused as RequestRefused,
    State as State,
    Usage as Usage,
    overrides as overrides,
)
from agent.scheduler_api import Candidate, Dialect, DialectOf


class SettingsError(ValueError):
    """Raised by `register_backend` when a vendor's own settings are wrong; `path` leads to the value."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = tuple(path)


@dataclass(frozen=True, slots=True)
class SettingsWarning:
    """What a person should know of settings that are valid; `path` leads to the value."""

    message: str
    path: tuple[str | int, ...] = ()


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
CheckRules = Callable[[Sequence[ResourceRule]], Sequence[SettingsWarning] | None]
DefaultRule = Callable[[str], ResourceRule | None]
CardsWithRoom = Callable[[Request, Sequence[Device], Sequence[Grant]], Sequence[str]]
WithoutChoice = Callable[[int], str]
Labels = Callable[[Sequence[ResourceRule], Sequence[Device]], Mapping[str, str]]
Annotations = Callable[[Sequence[ResourceRule], Sequence[Device], Sequence[Grant]], Mapping[str, str | None]]
ExtendedResources = Callable[[Sequence[ResourceRule], Sequence[Device]], Mapping[str, int | None]]
CardsOfAnswer = Callable[[ContainerEdits, Sequence[Device]], Sequence[str] | None]
Libraries = Callable[[], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a vendor, as its plugin has read them."""

    #: The argument of the Backend's constructor: plain JSON values. Another value starts a new process.
    for_backend: Mapping[str, Any] = field(default_factory=dict)
    #: Each setting with the value that it has where the config does not name it: plain JSON values, which
    #: `config check` prints.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Warnings about settings that are valid: `config check` and the log show each with its place.
    warnings: tuple[SettingsWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class Offers:
    """The resources that a vendor offers of its devices, how they are counted, and how cards are chosen."""

    #: What the configured rules (none: the vendor's own choice) mean on these devices. Rules that come out
    #: name their devices by uuid; several rules of one name make one resource.
    resources: Resources | None = None
    #: Checks the configured rules as far as that needs no devices. Raises SettingsError with the path from
    #: the list of rules. Returns a warning, with such a path, for each rule of which `resources` complains on
    #: every node with cards. Rules that may name the same cards are checked one at a time.
    check_rules: CheckRules | None = None
    #: The sharing and the placement of a rule that names none.
    sharing: Sharing = Sharing()
    placement: Placement = "local"
    #: Sharing, placement, policy and ids of a rule of this name that says nothing else. None: `sharing` and
    #: `placement` hold.
    default_rule: DefaultRule | None = None
    #: Whether resources may name the same cards, where the config does not say so.
    modes: Modes = "fixed"
    #: Whether containers get their devices by CDI names alone: nothing is given out while the CDI specs are
    #: not on disk. Where `Slices.resources` names some, this holds for those resources alone.
    cdi_only: bool = False
    #: The uuids of the devices that have left what the request asks for beside all that is given out, the
    #: most suitable one first, and of equal ones the first that is listed: at least as many as the request
    #: has IDs. Asked where a claim names no card, or where no claim is known. Raises RequestRefused, and
    #: NoRoom with what is asked for and what is left.
    cards_with_room: CardsWithRoom | None = None
    #: What becomes of a container that asks for so many IDs, where a scheduler may choose and none did:
    #: `is refused`, or `gets` and what, where that is not what the kubelet chooses.
    without_choice: WithoutChoice | None = None
    #: The first words of the refusal of a request for units of memory that no single card has.
    insufficient_memory: str = "insufficient memory in one device"

    def rule(self, name: str) -> ResourceRule:
        """What a rule of this name is where the config says nothing else."""
        own = self.default_rule(name) if self.default_rule else None
        return own or ResourceRule(name, sharing=self.sharing, placement=self.placement)


@dataclass(frozen=True, slots=True)
class Slices:
    """The hardware that `Backend.prepare` makes, and `Backend.release` removes."""

    #: The resources that need it: Allocate, and each start of a container, wait for `prepare`. Empty: all
    #: resources of the vendor.
    resources: tuple[str, ...] = ()
    #: Whether no resource needs it with these settings. Slices that other settings made are still released
    #: with their pods.
    release_only: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a vendor writes on the Node.

    Devices have a `fault` in `annotations` and `extended_resources` exactly where no new pod gets them.
    """

    #: Labels that follow from the configured rules and these devices: key to value.
    labels: Labels | None = None
    #: The keys of two labels that the agent adds: the machine's model where there are devices, and the time.
    machine_label: str = ""
    time_label: str = ""
    #: Annotations that follow from the configured rules, these devices and what of them is given out: key to
    #: text. One of `annotation_keys` that is None or absent is removed from the Node.
    annotations: Annotations | None = None
    #: The keys of all these annotations. The vendor owns them: nothing else on this node writes them.
    annotation_keys: tuple[str, ...] = ()
    #: Extended resources that no plugin gives out and schedulers count: name to number, from the configured
    #: rules and these devices. One of `extended_resource_keys` that is None or absent is removed from the
    #: Node where the agent wrote it.
    extended_resources: ExtendedResources | None = None
    #: Their names. The vendor owns them, and the kubelet counts none of them.
    extended_resource_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherPlugin:
    """Other device plugins that give out the same cards, which the agent replaces."""

    #: Names of their sockets in the kubelet's directory; `*` is any text.
    sockets: tuple[str, ...] = ()
    #: Names of the resources that they give out of these cards; `*` is any text, and a whole domain is too
    #: much. Pods keep what they have of one that the config lacks.
    resources: tuple[str, ...] = ()
    #: The uuids, of these devices, of the cards that an answer to the kubelet names in the vendor's own way,
    #: as in a variable. They may differ from those of the device IDs. None: the answer has nothing of that
    #: kind; empty: what it names is no card. CDI names with a uuid and device nodes are read without this.
    cards_of_answer: CardsOfAnswer | None = None


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
    #: Whether devices that the vendor's process lists show that it is there, as they do of a driver.
    shown: bool = False


@dataclass(frozen=True, slots=True)
class HostRuntime:
    """A vendor's own container runtime, which reaches every pod where it is the node's default one."""

    #: What it is: Enflame's container runtime.
    name: str
    #: What it is called in configurations of containerd, CRI-O and Docker: nvidia.
    called: str
    #: The names of its program.
    programs: tuple[str, ...]
    #: What containers lack with another runtime, as a clause: containers see no card.
    without: str


@dataclass(frozen=True, slots=True)
class Host:
    """What a node has where it has the vendor's cards."""

    #: The files in which the library is looked for; a bare name is the loader's to find. The function looks
    #: at files alone and loads nothing.
    libraries: Libraries | None = None
    #: While none of these and none of `libraries` is here, no process is started unless the config asks for
    #: the vendor. None: the process is always started.
    signs: Signs | None = None
    #: What else the cards need; `xpu-agent doctor` looks for each part on nodes with such cards.
    parts: tuple[HostPart, ...] = ()
    #: The vendor's container runtime, where containers need that for their cards or for the driver's files.
    runtime: HostRuntime | None = None
    #: The variable that tells a container its devices; a pod that sets it bypasses the agent.
    devices_variable: str = ""
    #: Prefixes of the environment variables of the agent that the vendor's process gets, such as ACME_: what
    #: the library reads. PATH, LD_LIBRARY_PATH, LANG, HOME, TZ, TMPDIR, LC_* and XPU_* are always given.
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Vendor:
    """The agent's half of a vendor: names, and decisions without I/O.

    Four values are mandatory; the rest comes in groups, each with a section of docs/vendor-guide.md. The
    functions are pure and repeatable; what they need of the settings is bound to them. A change of `backend`
    or of `settings.for_backend` starts a new process; new functions do not.
    """

    name: str
    #: Where the child process finds the Backend, as "package.module:Class".
    backend: str
    #: The resource advertised when neither the config nor `offers` names one: whole devices, exclusive.
    resource: str
    #: What a container gets. Devices are distinct, in the order in which the kubelet named their IDs.
    container_edits: Edits
    _: KW_ONLY
    settings: Settings = Settings()
    offers: Offers = Offers()
    #: None: the vendor makes no hardware.
    makes: Slices | None = None
    publishes: NodeFacts = NodeFacts()
    #: How schedulers say which container gets which of the cards; the first one that claims counts.
    schedulers: tuple[Dialect, ...] = ()
    #: Dialects that schedulers' plugins make for this vendor, by name; heard before `schedulers`.
    hears: tuple[DialectOf, ...] = ()
    #: What a pod's own limits and annotations ask for: read after all schedulers, where one may choose and
    #: none has to. It has a claim without cards for each container that asks for the resource.
    pod_limits: Dialect | None = None
    replaces: OtherPlugin = OtherPlugin()
    host: Host = Host()
    #: What is shown beside `/inspect`, to clients that may read that: the formats of other tools.
    formats: tuple[Format, ...] = ()

    def prepares(self, resource: str) -> bool:
        """Whether the resource's containers need hardware that `Backend.prepare` makes."""
        slices = self.makes
        if slices is None or slices.release_only:
            return False
        return not slices.resources or resource in slices.resources

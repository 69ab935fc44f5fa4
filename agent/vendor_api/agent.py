"""The values that a vendor's agent half returns, and the values that its functions get.

Standard library only. A vendor's folder has two halves. `child/` holds a `Backend`: plain synchronous Python
that talks to the vendor's library in a process of its own, and that needs `agent.vendor_api.backend` alone.
`agent/` holds pure functions that run in the agent; `plugin.py` registers them as a `Vendor`. Neither half
speaks with Kubernetes.
"""

from __future__ import annotations  # noqa: I001 - one list of the names of the other half

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal

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
    ProcessUsage as ProcessUsage,
    Proof as Proof,
    Request as Request,
    RequestRefused as RequestRefused,
    State as State,
    Usage as Usage,
    overrides as overrides,
)
from agent.vendor_api.exporters import (
    Exporter as Exporter,
    ExporterOf as ExporterOf,
)
from agent.vendor_api.tool_formats import (
    CardCount as CardCount,
    ContainerShare as ContainerShare,
    Format as Format,
    FormatOf as FormatOf,
    ListedPod as ListedPod,
    NodeListing as NodeListing,
    NotShown as NotShown,
)
from agent.scheduler_api.dialects import Dialect, DialectOf
from agent.scheduler_api.findings import Finding
from agent.scheduler_api.node_facts import CountedCard as CountedCard
from agent.scheduler_api.node_facts import Grant as Grant
from agent.scheduler_api.observed import Observed


class SettingsError(ValueError):
    """Raised by `register_backend` where a setting of the vendor is wrong; `path` leads to the value."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = tuple(path)


@dataclass(frozen=True, slots=True)
class SettingsWarning:
    """A warning about settings that are valid; `path` leads to the value."""

    message: str
    path: tuple[str | int, ...] = ()


IdForm = Literal["uuid", "minor", "short"]
Policy = Literal["distributed", "packed", "aligned", "gpu-manager"]
#: By the tree of the cards, as the program does whose name the config has for this policy.
BY_TREE: Final = "gpu-manager"
Placement = Literal["local", "claim", "auto"]
Modes = Literal["fixed", "dynamic"]

#: More entries of one card never fit into the 4 MiB list that the kubelet receives.
MAX_REPLICAS = 131_072

#: GiB of a card's memory that one device ID stands for; `auto` is the smallest unit with a list that the
#: kubelet accepts.
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
    """What the config says of one resource. `devices`: "all" cards, a count, or indices and uuids."""

    name: str
    devices: Literal["all"] | int | tuple[int | str, ...] = "all"
    sharing: Sharing = Sharing()
    policy: Policy | None = None
    placement: Placement = "local"
    ids: IdForm | None = None

    @property
    def form(self) -> IdForm:
        """How the device IDs are written. Units of memory have short IDs: the kubelet's list is bounded."""
        return self.ids or ("short" if self.sharing.kind == "memory" else "uuid")


@dataclass(frozen=True, slots=True)
class Offering:
    """What a vendor makes of its devices: the resources, and sentences about what it could not serve.

    `complaints` keep the agent from being ready. `notes` do not: they name what a config for many nodes has
    and this node lacks. `doubts` do not keep the agent from being ready either: they name what a person
    should mend of devices that are offered nevertheless. `inspect` and the doctor show them.
    """

    rules: tuple[ResourceRule, ...] = ()
    complaints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node that a container gets at `path`; on the host the node is at `host_path`.

    `permissions` are letters of `rwm`: read, write, make.
    """

    path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host, `host_path`, that a container gets at `path`."""

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
CountedCards = Callable[[Sequence[ResourceRule], Sequence[Device]], Sequence[CountedCard]]
Libraries = Callable[[], Sequence[str]]
TopologyText = Callable[[str], Sequence[Device]]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a vendor, as the plugin has read them."""

    #: The argument of the Backend's constructor: plain JSON values. Another value starts a new process.
    for_backend: Mapping[str, Any] = field(default_factory=dict)
    #: The default of each setting: plain JSON values, which `config check` prints.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Warnings about settings that are valid: `config check` and the log show each with its place.
    warnings: tuple[SettingsWarning, ...] = ()
    #: Every setting with the words for its allowed values. `xpu-agent plugins --settings NAME` shows them
    #: with the defaults, and the conformance kit compares them with the vendor's README.
    descriptions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offers:
    """The resources that a vendor offers of its devices, how they are counted, and how cards are chosen."""

    #: What the configured rules (none: the vendor's own choice) mean on these devices. The rules that come
    #: out name their devices by uuid; several rules of one name make one resource.
    resources: Resources | None = None
    #: Checks the configured rules as far as that needs no devices. Raises SettingsError with the path from
    #: the list of rules. Returns a warning, with such a path, for each rule that `resources` complains about
    #: on every node with cards. Gets all rules together; where rules may name the same cards, it gets each
    #: rule alone for the warnings.
    check_rules: CheckRules | None = None
    #: The sharing and the placement of a rule that has none.
    sharing: Sharing = Sharing()
    placement: Placement = "local"
    #: Sharing, placement, policy and ids of a rule of this name, each where the config does not name it.
    #: None: `sharing` and `placement` hold.
    default_rule: DefaultRule | None = None
    #: Whether resources may name the same cards; the config may say otherwise.
    modes: Modes = "fixed"
    #: Whether containers get their devices by CDI names alone: no request is answered while the CDI specs are
    #: not on disk. Where `Slices.resources` names resources, this holds for those alone.
    cdi_only: bool = False
    #: The uuids of the devices that have room for the request beside all allocations, the most suitable one
    #: first, and of equal ones the first that is listed: at least as many as the request has IDs. Asked where
    #: a claim names no card, or where no claim is known. Raises RequestRefused, and NoRoom with the requested
    #: amount and the room that is left.
    cards_with_room: CardsWithRoom | None = None
    #: What happens to a container that asks for this number of IDs, where a scheduler may choose and none
    #: did: `is refused`, or `gets ...` where the container gets other devices than the kubelet chooses.
    without_choice: WithoutChoice | None = None
    #: The first words of the refusal of a request for units of memory that no single card has.
    insufficient_memory: str = "insufficient memory in one device"

    def rule(self, name: str) -> ResourceRule:
        """The rule of this name, where the config has no other key for the resource."""
        own = self.default_rule(name) if self.default_rule else None
        return own or ResourceRule(name, sharing=self.sharing, placement=self.placement)


@dataclass(frozen=True, slots=True)
class Slices:
    """The hardware that `Backend.prepare` makes, and `Backend.release` removes."""

    #: The resources that need it: Allocate, and each start of a container, wait for `prepare`. Empty: all
    #: resources of the vendor.
    resources: tuple[str, ...] = ()
    #: Whether no resource needs it with these settings. Slices that were made with other settings are still
    #: released with their pods.
    release_only: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a vendor writes on the Node.

    In `annotations` and `extended_resources`, `fault` is set exactly for devices that new pods cannot get.
    """

    #: Labels that follow from the configured rules and these devices: key to value.
    labels: Labels | None = None
    #: The keys of two labels that the agent adds: the machine's model where there are devices, and the time.
    machine_label: str = ""
    time_label: str = ""
    #: Annotations that follow from the configured rules, these devices and their allocations: key to text. A
    #: key of `annotation_keys` that is None or absent is removed from the Node.
    annotations: Annotations | None = None
    #: The keys of all these annotations. The vendor owns them: no other program on this node writes them.
    annotation_keys: tuple[str, ...] = ()
    #: Extended resources that no device plugin serves and schedulers count: name to number, from the
    #: configured rules and these devices. A key of `extended_resource_keys` that is None or absent is removed
    #: from the Node where the agent wrote it.
    extended_resources: ExtendedResources | None = None
    #: The names of all these resources. The vendor owns them, and the kubelet counts none of them.
    extended_resource_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFactsOf:
    """Annotations and extended resources of the Node that a scheduler's plugin makes for a vendor."""

    scheduler: str
    #: The name that the scheduler's plugin has for them, such as the dialect.
    facts: str
    terms: Mapping[str, str]
    #: The cards of the resources that the scheduler reads, from the configured rules and these devices.
    cards: CountedCards


@dataclass(frozen=True, slots=True)
class ReplacedPlugins:
    """Other device plugins of the same cards, which the agent replaces."""

    #: Names of their sockets in the kubelet's directory; `*` is any text.
    sockets: tuple[str, ...] = ()
    #: Names of the resources that they serve with these cards; `*` is any text, and a whole domain is too
    #: much. Pods keep the devices of such a resource, though the config lacks the resource.
    resources: tuple[str, ...] = ()
    #: The uuids of those devices that an answer to the kubelet names in the vendor's own way, such as in a
    #: variable. They may differ from the cards of the device IDs. None: the answer has no such variable;
    #: empty: the variable names no card of this node. CDI names with a uuid and device nodes are read
    #: without this function.
    cards_of_answer: CardsOfAnswer | None = None


@dataclass(frozen=True, slots=True)
class Signs:
    """What shows that hardware or a driver of a vendor is on this node; one sign is enough."""

    #: Files, directories and device nodes of the driver, absolute.
    driver: tuple[str, ...] = ()
    #: PCI ids of the makers of the cards, as sysfs has them below `bus/pci/devices`: 0x10de.
    pci: tuple[str, ...] = ()
    sysfs: str = "/sys"


@dataclass(frozen=True, slots=True)
class HostPart:
    """What a node with a vendor's cards needs beside the library; one existing path of `paths` shows it."""

    #: What people call the part: Enflame's container runtime.
    name: str
    #: Absolute, or bare names of programs, which are looked for on PATH.
    paths: tuple[str, ...]
    #: What fails without the part, and what brings the part, as clauses: containers get no cards; install the
    #: driver.
    consequence: str
    remedy: str
    #: Whether nothing of the vendor works without the part.
    needed: bool = True
    #: Whether a pod cannot see the part at its path: it is looked for below the host's root.
    on_host: bool = False
    #: Whether devices in the list of the vendor's process prove that the part is there, as for a driver.
    proven_by_devices: bool = False


@dataclass(frozen=True, slots=True)
class HostRuntime:
    """A vendor's own container runtime. As the default runtime of the node it starts every pod."""

    #: What people call the runtime: Enflame's container runtime.
    name: str
    #: The name of the handler in configurations of containerd, CRI-O and Docker: nvidia.
    handler: str
    #: The file names of the program.
    programs: tuple[str, ...]
    #: What containers lack with another runtime, as a clause: containers see no card.
    consequence: str


@dataclass(frozen=True, slots=True)
class Host:
    """What a node with the vendor's cards has."""

    #: The files in which the library is looked for; a bare name is the loader's to find. The function looks
    #: at files alone and loads nothing.
    libraries: Libraries | None = None
    #: While the node has none of these and none of `libraries`, no process is started unless the config asks
    #: for the vendor. None: the process is always started.
    signs: Signs | None = None
    #: What else the cards need. `xpu-agent doctor` looks for each part on nodes with such cards.
    parts: tuple[HostPart, ...] = ()
    #: The vendor's container runtime, where containers need one for their cards or for the driver's files.
    runtime: HostRuntime | None = None
    #: The variable that tells a container its devices; a pod that sets it bypasses the agent.
    devices_variable: str = ""
    #: Prefixes of the environment variables of the agent that the vendor's process gets, such as ACME_: what
    #: the library reads. PATH, LD_LIBRARY_PATH, LANG, HOME, TZ, TMPDIR, LC_* and XPU_* are always given.
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VendorLook:
    """A node as the doctor found it for one vendor."""

    #: The list of the vendor's process; or why there is none.
    devices: Observed[tuple[Device, ...]]
    #: The text of each file of `VendorCheck.files`, by path; or why the file cannot be read.
    files: Mapping[str, Observed[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VendorCheck:
    """A check of `xpu-agent doctor`, made on nodes with the vendor's cards.

    The function is pure. It returns at least one finding, such as `findings.well(...)` where nothing is
    wrong. Each finding has the name of the check.
    """

    name: str
    make: Callable[[VendorLook], Iterable[Finding]]
    #: Absolute paths of the files that the function needs. The doctor reads them below the root of the host,
    #: as text, and at most 64 KiB of each.
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Vendor:
    """The agent's half of a vendor: names, and decisions without I/O.

    Four values are mandatory; the rest comes in groups, each with a section of docs/vendor-guide.md. The
    functions are pure and repeatable; settings that they need are bound to them. A change of `backend` or of
    `settings.for_backend` starts a new process; new functions do not.
    """

    name: str
    #: Where the child process finds the Backend, as "package.module:Class".
    backend: str
    #: The resource advertised when neither the config nor `offers` names one: whole devices, exclusive.
    resource: str
    #: What a container gets. The devices are distinct, in the order in which the kubelet named their IDs.
    container_edits: Edits
    _: KW_ONLY
    settings: Settings = Settings()
    offers: Offers = Offers()
    #: None: the vendor makes no hardware.
    makes: Slices | None = None
    publishes: NodeFacts = NodeFacts()
    #: Annotations and extended resources that a scheduler's plugin makes for this vendor; `publishes` then
    #: has none of its own.
    named_node_facts: NodeFactsOf | None = None
    #: How schedulers say which container gets which of the cards; the first one that claims counts.
    dialects: tuple[Dialect, ...] = ()
    #: Dialects that schedulers' plugins make for this vendor, by name; heard before `dialects`.
    named_dialects: tuple[DialectOf, ...] = ()
    #: What a pod's own limits and annotations ask for: read after all schedulers, where a scheduler may
    #: choose and none has to. The dialect has a claim without cards for each container that asks for the
    #: resource.
    pod_limits: Dialect | None = None
    replaces: ReplacedPlugins = ReplacedPlugins()
    host: Host = Host()
    #: The formats of other tools, shown beside `/inspect` to clients that may read `/inspect`.
    formats: tuple[Format, ...] = ()
    #: Formats that schedulers' plugins make for this vendor, by name; they come before `formats`.
    named_formats: tuple[FormatOf, ...] = ()
    #: Programs whose metrics of use the agent can show for the vendor's cards, in the order of the page. A
    #: scheduler's plugin makes an `ExporterOf` for this vendor.
    exporters: tuple[Exporter | ExporterOf, ...] = ()
    #: Checks of `xpu-agent doctor` for nodes with the vendor's cards, made after the checks of `Host.parts`.
    checks: tuple[VendorCheck, ...] = ()
    #: The cards with their links that the output of the vendor's own tool shows, for `xpu-agent config check
    #: --topology`. Raises ValueError with line and column where the text is another one.
    topology_text: TopologyText | None = None

    def prepares(self, resource: str) -> bool:
        """Whether the resource's containers need hardware that `Backend.prepare` makes."""
        slices = self.makes
        if slices is None or slices.release_only:
            return False
        return not slices.resources or resource in slices.resources

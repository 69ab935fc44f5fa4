"""Everything that the checks look at, as frozen values: no check asks a server or a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.cluster.api_protocol import Object
from agent.config import Config
from agent.core.allocation.node_lock_rules import lock_keys
from agent.daemon.vendor_plugins import VendorPlugin
from agent.doctor.required_rights import RequiredRight
from agent.doctor.socket_listeners import SocketListener
from agent.http.inspect_document import InspectDocument, InspectedResource
from agent.http.usage.usage_document import UsageDocument
from agent.kubelet.plugin_sockets import OWN_NAME
from agent.scheduler_api import Scheduler
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.node_checks import UNREAD, Observed, OtherFile, SchedulerObjects
from agent.vendor_api.agent import Device

NOT_ASKED = SocketListener("missing", "not looked at")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration that the agent would use.

    With an `error` the rest is what can be known without it.
    """

    config: Config = field(default_factory=Config)
    source: str = "defaults"
    error: str = ""
    plugins: tuple[VendorPlugin, ...] = ()
    #: The registered schedulers, in the order in which their annotations are read.
    schedulers: tuple[Scheduler, ...] = ()
    #: Label keys that decide which part, or which file, of the configuration holds on this node.
    labels: tuple[str, ...] = ()
    #: Whether the error is that the Node's labels are not known.
    awaits_labels: bool = False

    @property
    def locks(self) -> tuple[str, ...]:
        """The annotations with which schedulers lock the Node."""
        return lock_keys(self.schedulers, [it.vendor for it in self.plugins if it.vendor is not None])


@dataclass(frozen=True, slots=True)
class PodResourcesAnswer:
    """The answer of the kubelet's PodResources. `status` is the gRPC status of a refusal."""

    pods: int | None = None
    status: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The answers of the API server, or in `away` why it could not be asked.

    `broken`: an API server is configured and cannot be used; otherwise none is known.
    """

    node: Observed[Object] = UNREAD
    pods: Observed[tuple[Object, ...]] = UNREAD
    #: The needed rights that this identity does not have.
    denied: Observed[tuple[RequiredRight, ...]] = UNREAD
    away: str = ""
    broken: bool = False
    #: What is there of each registered scheduler, by its name.
    schedulers: Mapping[str, SchedulerObjects] = field(default_factory=dict)
    #: (namespace, name) to the data of ConfigMaps from which containers of this node take variables.
    config_maps: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sockets:
    """The listeners at the sockets of this node."""

    kubelet: SocketListener = NOT_ASKED
    #: The agent's admin socket.
    admin: SocketListener = NOT_ASKED
    #: The other sockets in the kubelet's directory, or why the directory cannot be listed.
    others: Observed[Mapping[Path, SocketListener]] = UNREAD

    @property
    def agent(self) -> tuple[Path, SocketListener] | None:
        """A socket on which an agent serves the kubelet although none answers at the admin socket.

        Else None.
        """
        if self.admin.state == "listens":
            return None
        others = (self.others.value or {}).items()
        return next(
            (it for it in others if OWN_NAME.fullmatch(it[0].name) and it[1].state == "listens"), None
        )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that the doctor gathered about one node. `root` is where the host's / is mounted."""

    node: str
    version: str
    root: Path = Path("/")
    configuration: Configuration = Configuration()
    #: Vendor to its devices, or to why there are none.
    vendors: Mapping[str, Observed[tuple[Device, ...]]] = field(default_factory=dict)
    #: What the agent behind the admin socket answers to /inspect.
    inspected: Observed[InspectDocument] = UNREAD
    #: What the agent behind the admin socket answers to /inspect/usage.
    use: Observed[UsageDocument] = UNREAD
    #: What the agent at the HTTP port answers; that may be another agent, which stands by.
    inspected_on_port: Observed[InspectDocument] = UNREAD
    pod_resources: PodResourcesAnswer = PodResourcesAnswer()
    sockets: Sockets = Sockets()
    cluster: Cluster = Cluster()
    #: Files of other programs in the directory of the report to a scheduler, or why it cannot be read.
    report_files: Observed[tuple[OtherFile, ...]] = UNREAD

    @property
    def config(self) -> Config:
        return self.configuration.config

    @property
    def serves(self) -> bool:
        """Whether an agent answers and serves the node; an agent that stands by does not serve."""
        return self.inspected.value is not None and not self.inspected.value.standby

    @property
    def document(self) -> InspectDocument:
        """What the agent behind the admin socket knows; without an answer the document is empty."""
        return self.inspected.value or InspectDocument()

    @property
    def resources(self) -> Mapping[str, InspectedResource]:
        """The resources that the running agent serves, by name."""
        return {resource.name: resource for resource in self.document.resources}

    @property
    def names(self) -> frozenset[str]:
        """The names of the resources that the running agent serves.

        Without an agent, of those it would serve.
        """
        if self.resources:
            return frozenset(self.resources)
        named: set[str] = set()
        for plugin in self.configuration.plugins:
            if plugin.vendor is not None and self.has_cards(plugin.name):
                rules = self.config.vendor(plugin.name).resources
                named.update([it.name for it in rules] or [plugin.vendor.resource])
        return frozenset(named)

    @property
    def cards(self) -> frozenset[str]:
        """The uuids of this node's cards, as their libraries report them."""
        looks = self.vendors.values()
        return frozenset(it.uuid for look in looks for it in look.value or () if it.parent is None)

    @property
    def engine(self) -> str:
        """The container runtime of the kubelet as the Node names it: docker, containerd, cri-o.

        Empty if unknown.
        """
        info = part_of(part_of(self.cluster.node.value or {}, "status"), "nodeInfo")
        return str(info.get("containerRuntimeVersion") or "").partition("://")[0]

    @property
    def known_vendors(self) -> list[str]:
        """Names of the vendors that list devices here, that the config names, or that have a plugin."""
        plugins = (it.name for it in self.configuration.plugins)
        return sorted({*self.vendors, *self.config.vendors, *plugins})

    def lists(self, vendor: str) -> bool:
        """Whether the vendor's process lists devices."""
        return bool(self.vendors.get(vendor, Observed()).value)

    def has_cards(self, vendor: str) -> bool:
        """Whether the vendor should serve here: it lists devices, or the config enables it by name."""
        return self.lists(vendor) or self.config.vendor(vendor).enabled is True

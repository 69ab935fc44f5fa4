"""What the checks look at, gathered once and frozen: no check asks anybody anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from agent.cluster.api import Object
from agent.config import Config
from agent.core.allocation.node_locks import lock_keys
from agent.daemon.vendor_plugins import VendorPlugin
from agent.doctor.required_rights import RequiredRight
from agent.doctor.socket_listeners import SocketListener
from agent.kubelet.plugin_sockets import OURS
from agent.scheduler_api import Scheduler
from agent.scheduler_api.document_parts import part_of, rows_of
from agent.vendor_api.agent import Device

T = TypeVar("T")
NOT_ASKED = SocketListener("missing", "nobody looked")


@dataclass(frozen=True, slots=True)
class Observed(Generic[T]):
    """A value, or why there is none."""

    value: T | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the agent would run with. With an `error` the rest is what holds without the file."""

    config: Config = field(default_factory=Config)
    source: str = "defaults"
    error: str = ""
    plugins: tuple[VendorPlugin, ...] = ()
    #: The registered ones, in the order in which they are heard.
    schedulers: tuple[Scheduler, ...] = ()
    #: Label keys that decide which part, or which file, of the configuration holds on this node.
    labels: tuple[str, ...] = ()
    #: Whether the error is that nobody has told the Node's labels.
    awaits_labels: bool = False

    @property
    def locks(self) -> tuple[str, ...]:
        """The annotations of the Node in which registered schedulers lock it, or dialects of the vendors."""
        return lock_keys(self.schedulers, [it.vendor for it in self.plugins if it.vendor is not None])


@dataclass(frozen=True, slots=True)
class PodResourcesAnswer:
    """How the kubelet's PodResources answered. `status` is gRPC's where it refused."""

    pods: int | None = None
    status: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Stale:
    """A Device of another name that lists cards of this node, and what is wrong with the Node of its name."""

    name: str
    cards: tuple[str, ...]
    gone: str


@dataclass(frozen=True, slots=True)
class KoordinatorObjects:
    """What the API server shows of it. Without Device objects nothing else is looked at."""

    #: Whether there are Device objects.
    kind: Observed[bool] = Observed()
    #: This node's Device; empty where there is none.
    device: Observed[tuple[Object, ...]] = Observed()
    stale: Observed[tuple[Stale, ...]] = Observed()
    #: The pods of its scheduler and its manager, wherever they are.
    programs: Observed[tuple[Object, ...]] = Observed()
    #: Pods that wait for a scheduler, and ask for something of Koordinator's.
    waiting: Observed[tuple[Object, ...]] = Observed()
    #: Why its manager does not work for the nodes; empty where it does.
    colocation: Observed[str] = Observed()
    #: Where its manager has its settings.
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the API server said, or in `away` why it could not be asked.

    `broken`: there is a way to it that leads nowhere, where else none is known.
    """

    node: Observed[Object] = Observed()
    pods: Observed[tuple[Object, ...]] = Observed()
    #: What this identity may not do.
    denied: Observed[tuple[RequiredRight, ...]] = Observed()
    away: str = ""
    broken: bool = False
    koordinator: KoordinatorObjects = KoordinatorObjects()
    #: By namespace and name the ConfigMaps that were read, from which containers here have variables.
    config_maps: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sockets:
    """Who listens at the sockets of this node."""

    kubelet: SocketListener = NOT_ASKED
    #: The agent's admin socket.
    admin: SocketListener = NOT_ASKED
    #: Those beside the kubelet's, or why its directory cannot be listed.
    others: Observed[Mapping[Path, SocketListener]] = Observed()

    @property
    def agent(self) -> tuple[Path, SocketListener] | None:
        """Where an agent serves the kubelet; None where one answers at the admin socket, or none does."""
        if self.admin.state == "listens":
            return None
        others = (self.others.value or {}).items()
        return next((it for it in others if OURS.fullmatch(it[0].name) and it[1].state == "listens"), None)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """One node as the doctor found it. `root`: below what the host's files are seen."""

    node: str
    version: str
    root: Path = Path("/")
    configuration: Configuration = Configuration()
    #: Vendor to its devices, or to why it has none.
    vendors: Mapping[str, Observed[tuple[Device, ...]]] = field(default_factory=dict)
    #: The document of /inspect, of the agent that serves this node.
    told: Observed[Mapping[str, Any]] = Observed()
    #: The same on the port: of an agent that stands by, perhaps.
    told_on_port: Observed[Mapping[str, Any]] = Observed()
    pod_resources: PodResourcesAnswer = PodResourcesAnswer()
    sockets: Sockets = Sockets()
    cluster: Cluster = Cluster()

    @property
    def config(self) -> Config:
        return self.configuration.config

    @property
    def serves(self) -> bool:
        """Whether an agent serves the node, and said so."""
        return self.told.value is not None and not self.told.value.get("standby")

    @property
    def resources(self) -> Mapping[str, Mapping[str, Any]]:
        """The resources that the running agent serves, as /inspect has them."""
        return {str(it.get("name")): it for it in rows_of(self.told.value or {}, "resources")}

    @property
    def names(self) -> frozenset[str]:
        """The names of our resources: those that are served, else those that would be."""
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
        """The ids of this node's cards, as their libraries have them."""
        looks = self.vendors.values()
        return frozenset(it.uuid for look in looks for it in look.value or () if it.parent is None)

    @property
    def engine(self) -> str:
        """Whom the kubelet has its containers from, as the Node says: docker, containerd, cri-o; or empty."""
        info = part_of(part_of(self.cluster.node.value or {}, "status"), "nodeInfo")
        return str(info.get("containerRuntimeVersion") or "").partition("://")[0]

    def lists(self, vendor: str) -> bool:
        """Whether the vendor's process lists devices."""
        return bool(self.vendors.get(vendor, Observed()).value)

    def has_cards(self, vendor: str) -> bool:
        """Whether the vendor is meant to serve here: it has devices, or the config insists on it."""
        return self.lists(vendor) or self.config.vendor(vendor).enabled is True

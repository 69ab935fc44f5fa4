"""The effective configuration as frozen values with every default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Literal

from agent.config import location
from agent.core.devices.health_rules import HealthTiming
from agent.core.errors import ConfigError
from agent.vendor_api.agent import Modes, ResourceRule
from agent.vendor_api.config_inputs import Path

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]
LabelsAs = Literal["auto", "node", "nodeFeature", "file"]
ToldAs = Literal["node", "nodeFeature", "file"]
ReportMode = Literal["auto", "feed", "device", "none"]

#: Where a koordlet looks for the files of others unless its flag says otherwise.
DEVICE_INFOS_DIR = "/var/run/koordlet/xpu-device-infos"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How the agent logs. With a `dir` it also writes a file there, which turns at `max_bytes`."""

    level: LogLevel = "info"
    format: LogFormat = "auto"
    dir: str = ""
    max_bytes: int = 50_000_000
    #: Turned files kept beside the one being written.
    keep: int = 5


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """How often allocations are compared with what kubelet and hardware say, and how patiently; seconds."""

    interval: float = 30.0
    #: What was just answered, or just found to lack an owner, is left alone for so long.
    grace: float = 60.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Where the agent finds the kubelet, and where it keeps and shows what it knows."""

    kubelet_dir: FilePath = FilePath("/var/lib/kubelet/device-plugins")
    pod_resources_socket: FilePath = FilePath("/var/lib/kubelet/pod-resources/kubelet.sock")
    state_dir: FilePath = FilePath("/var/lib/xpu-agent")
    #: Where container runtimes look for CDI specs.
    cdi_dir: FilePath = FilePath("/var/run/cdi")
    #: ADDR:PORT; empty switches it off.
    http: str = "127.0.0.1:9808"
    #: Whether the API server is asked for this node's pods: who asks for devices, and whom an Event is about.
    watch_pods: bool = True
    log: LogSettings = LogSettings()
    #: How patient the rules of health are.
    health: HealthTiming = field(default_factory=HealthTiming)
    reconcile: ReconcileSettings = ReconcileSettings()


@dataclass(frozen=True, slots=True)
class VendorSettings:
    """One vendor. `auto` takes it when its hardware is there; `library` empty means search."""

    enabled: Literal["auto"] | bool = "auto"
    library: str = ""
    #: Bytes of memory that the vendor's process may have of its own; 0 is no limit.
    memory_limit: int = 1 << 30
    #: Plain JSON values for the vendor's own backend.
    settings: Mapping[str, Any] = field(default_factory=dict)
    resources: tuple[ResourceRule, ...] = ()
    #: `dynamic`: its resources may name the same cards, each of which is the first's that takes of it. None
    #: is the vendor's way.
    modes: Modes | None = None
    #: What is done while another plugin serves its cards, of which nothing is registered then: `refuse`
    #: keeps the agent from being ready, `yield` leaves the cards to that plugin until it goes.
    foreign: Literal["refuse", "yield"] = "refuse"
    #: A directory with the files of MetaX's metax-device-config; what it says stands in `settings` once read.
    config_dir: str = ""
    #: A file in a form of the vendor's own, as Enflame's topscloud.json; what it says stands in `settings`
    #: once read.
    config_file: str = ""


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """What is told to the cluster."""

    #: How Koordinator hears of the cards: by koordlet's files, by the Device object, as it fits, or not.
    mode: ReportMode = "auto"
    labels: bool = True
    #: A file in the features.d directory of node-feature-discovery; empty is none.
    features_file: str = ""
    #: Whether the labels say when they were made.
    timestamp: bool = True
    #: Names the model of the machine; empty is none.
    machine_file: str = "/sys/class/dmi/id/product_name"
    #: `auto`: `file` where one is named, else `node` where there is an API server.
    labels_as: LabelsAs = "auto"
    #: Where the NodeFeature object is made; empty is where the agent's pod is.
    namespace: str = ""
    #: Whether what happens to cards, pods and config becomes Events of the cluster.
    events: bool = True
    #: The vendor whose cards Koordinator hears of; empty is the one with most cards.
    vendor: str = ""
    #: Where koordlet looks for files of cards.
    device_infos_dir: str = DEVICE_INFOS_DIR

    @property
    def told_as(self) -> ToldAs | None:
        """How the labels are told; None where nobody wants them."""
        if not self.labels:
            return None
        if self.labels_as == "auto":
            return "file" if self.features_file else "node"
        return self.labels_as


@dataclass(frozen=True, slots=True)
class Config:
    """Everything configured for this node. A vendor that is not named is `auto`."""

    agent: AgentSettings = AgentSettings()
    vendors: Mapping[str, VendorSettings] = field(default_factory=dict)
    report: ReportSettings = ReportSettings()
    #: What a person should know about the file, each with its place.
    warnings: tuple[str, ...] = ()
    #: Who says what; it makes no configuration another.
    places: location.Places = field(default_factory=dict, compare=False, repr=False)
    #: The keys of the Node's labels that decide what else it says.
    asks: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def vendor(self, name: str) -> VendorSettings:
        return self.vendors.get(name, VendorSettings())

    def says(self, path: Path) -> bool:
        """Whether anybody says the value at `path`: it is no default."""
        return location.is_said(self.places, path)

    def told(self, path: Path, message: str) -> str:
        """The message, with the file, line and key or the flag or variable that says the value at `path`."""
        return location.told(self.places, path, message)

    def refused(self, path: Path, message: str) -> ConfigError:
        """The same as an error; with the warnings, for a mistyped key may be what it is about."""
        return ConfigError("; ".join((self.told(path, message), *self.warnings[:3])))

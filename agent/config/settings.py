"""The effective configuration as frozen values, with all defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Literal, NewType

from agent.config import location
from agent.core.devices.health_thresholds import HealthThresholds
from agent.core.errors import ConfigError
from agent.vendor_api.agent import Modes, ResourceRule
from agent.vendor_api.config_inputs import Path

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]
LabelsAs = Literal["auto", "node", "nodeFeature", "file"]
PublishedAs = Literal["node", "nodeFeature", "file"]
ReportMode = Literal["auto", "feed", "device", "none"]
#: A part of an amount, such as 0.05.
Ratio = NewType("Ratio", float)

#: The default of `report.deviceInfosDir`, koordlet's own default for its -xpu-device-infos-dir.
DEVICE_INFOS_DIR = "/var/run/koordlet/xpu-device-infos"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How the agent logs. With a `dir`, also to a file there, which is rotated at `max_bytes`."""

    level: LogLevel = "info"
    format: LogFormat = "auto"
    dir: str = ""
    max_bytes: int = 50_000_000
    #: Rotated files that are kept.
    keep: int = 5


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """How often, in seconds, allocations are compared with what the kubelet and the hardware say."""

    interval: float = 30.0
    #: Seconds for which an allocation that was just answered, and a slice that was just found without an
    #: owner, are left alone.
    grace: float = 60.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Where the agent finds the kubelet, keeps its state, and serves its views."""

    kubelet_dir: FilePath = FilePath("/var/lib/kubelet/device-plugins")
    pod_resources_socket: FilePath = FilePath("/var/lib/kubelet/pod-resources/kubelet.sock")
    state_dir: FilePath = FilePath("/var/lib/xpu-agent")
    #: Where container runtimes look for CDI specs.
    cdi_dir: FilePath = FilePath("/var/run/cdi")
    #: ADDR:PORT; empty switches it off.
    http: str = "127.0.0.1:9808"
    #: Whether this node's pods are read from the API server, for pod attribution and Events.
    watch_pods: bool = True
    log: LogSettings = LogSettings()
    #: The timing of the health rules.
    health: HealthThresholds = field(default_factory=HealthThresholds)
    reconcile: ReconcileSettings = ReconcileSettings()


@dataclass(frozen=True, slots=True)
class VendorSettings:
    """One vendor. `auto` enables it if its hardware is there; an empty `library` means search."""

    enabled: Literal["auto"] | bool = "auto"
    library: str = ""
    #: Bytes of memory that the vendor's process may use; 0 for no limit.
    memory_limit: int = 1 << 30
    #: Plain JSON values for the vendor's backend.
    settings: Mapping[str, Any] = field(default_factory=dict)
    resources: tuple[ResourceRule, ...] = ()
    #: `dynamic`: resources may share cards, and a card belongs to the first that takes of it. None: the
    #: vendor's default.
    modes: Modes | None = None
    #: While another plugin serves the vendor's cards, nothing is registered. `refuse`: the agent is not ready
    #: then. `yield`: the agent waits until that plugin is gone.
    foreign: Literal["refuse", "yield"] = "refuse"
    #: A directory of files in the vendor's own form (`ConfigInputs`); `settings` has their values once read.
    config_dir: str = ""
    #: A file in the vendor's own form (`ConfigInputs`); `settings` has its values once read.
    config_file: str = ""

    @property
    def required(self) -> bool:
        """Whether the config names the vendor outright: without its cards the node is not ready."""
        return self.enabled is True

    @property
    def sought(self) -> bool:
        """Whether the vendor is taken to be on this node, with or without a sign of it."""
        return self.required or bool(self.library or self.settings)


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """What is published in the cluster."""

    #: How a scheduler gets the cards: by a file (`feed`), by an API object (`device`), by the way that fits
    #: (`auto`), or not at all (`none`).
    mode: ReportMode = "auto"
    labels: bool = True
    #: A file in node-feature-discovery's features.d directory; empty for none.
    features_file: str = ""
    #: Whether the labels have the time at which they were made.
    timestamp: bool = True
    #: The file with the machine's model; empty for none.
    machine_file: str = "/sys/class/dmi/id/product_name"
    #: `auto` means `file` if one is named, else `node` if there is an API server.
    labels_as: LabelsAs = "auto"
    #: The namespace of the NodeFeature object; empty for that of the agent's pod.
    namespace: str = ""
    #: Whether notices about cards, pods and the configuration become Events.
    events: bool = True
    #: The vendor of the reported cards; empty for the vendor with most cards.
    vendor: str = ""
    #: The directory in which the scheduler's program on the node reads files of cards.
    device_infos_dir: str = DEVICE_INFOS_DIR

    @property
    def published_as(self) -> PublishedAs | None:
        """How the labels are published; None if they are off."""
        if not self.labels:
            return None
        if self.labels_as == "auto":
            return "file" if self.features_file else "node"
        return self.labels_as


@dataclass(frozen=True, slots=True)
class LimitExceededSettings:
    """When there is a notice about a container that uses more memory than it was granted."""

    #: The part of the limit by which the memory exceeds the limit, and for how many seconds.
    by: Ratio = Ratio(0.05)
    for_: float = 30.0


@dataclass(frozen=True, slots=True)
class IdleSettings:
    """When there is a notice about a container that holds a card and does not use it."""

    event: bool = False
    #: Seconds without use.
    after: float = 1800.0


@dataclass(frozen=True, slots=True)
class UsageSettings:
    """Whether and how often, in seconds, the vendors are asked for the use of the cards by processes."""

    enabled: bool = False
    interval: float = 5.0
    #: Where the processes of the node are: its /proc.
    proc_dir: FilePath = FilePath("/proc")
    limit_exceeded: LimitExceededSettings = LimitExceededSettings()
    idle: IdleSettings = IdleSettings()


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What metrics there are besides those under the agent's own names."""

    #: Names of exporters that vendors' plugins have. `daemon.vendor_config` refuses names that no vendor has.
    compat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """Everything configured for this node. A vendor without an entry is `auto`."""

    agent: AgentSettings = AgentSettings()
    vendors: Mapping[str, VendorSettings] = field(default_factory=dict)
    report: ReportSettings = ReportSettings()
    usage: UsageSettings = UsageSettings()
    metrics: MetricsSettings = MetricsSettings()
    #: Warnings for people about the file, each with its place.
    warnings: tuple[str, ...] = ()
    #: The places of values. Not compared: equal values from other places are equal.
    places: location.Places = field(default_factory=dict, compare=False, repr=False)
    #: Keys of the Node's labels that decide values of this configuration.
    asks: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def vendor(self, name: str) -> VendorSettings:
        return self.vendors.get(name, VendorSettings())

    def is_set(self, path: Path) -> bool:
        """Whether the value at `path` is set, by a file, a flag or a variable; a default is not."""
        return location.is_set(self.places, path)

    def with_place(self, path: Path, message: str) -> str:
        """The message, with the file, line and key or the flag or variable that says the value at `path`."""
        return location.with_place(self.places, path, message)

    def refused(self, path: Path, message: str) -> ConfigError:
        """The error about this key. The error has the warnings, too: a mistyped key may be its cause."""
        return ConfigError("; ".join((self.with_place(path, message), *self.warnings[:3])))

"""The configuration: one strict file, its defaults, and the watch over it."""

from __future__ import annotations

from agent.config.address import Address, parse_address
from agent.config.effective import effective, elsewhere, to_yaml
from agent.config.flags import FLAGS, given_flags
from agent.config.given import Given
from agent.config.load import configured, load, parse
from agent.config.node_labels import (
    CONFIG_LABEL,
    Labels,
    LabelsUnknown,
    NodeLabels,
    given_labels,
    seen_labels,
)
from agent.config.nvidia_flags import NVIDIA_FLAGS, Flag, Kind
from agent.config.overlay import with_flags
from agent.config.reading import ConfigState
from agent.config.remembered import LastConfig, Remembered
from agent.config.settings import (
    AgentSettings,
    Config,
    LogFormat,
    LogLevel,
    LogSettings,
    ReconcileSettings,
    ReportSettings,
    VendorSettings,
)
from agent.config.source import Source, given_source
from agent.config.stated import stated
from agent.config.watch import ConfigWatch

__all__ = [
    "CONFIG_LABEL",
    "FLAGS",
    "NVIDIA_FLAGS",
    "Address",
    "AgentSettings",
    "Config",
    "ConfigState",
    "ConfigWatch",
    "Flag",
    "Given",
    "Kind",
    "Labels",
    "LabelsUnknown",
    "LastConfig",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "NodeLabels",
    "ReconcileSettings",
    "Remembered",
    "ReportSettings",
    "Source",
    "VendorSettings",
    "configured",
    "effective",
    "elsewhere",
    "given_flags",
    "given_labels",
    "given_source",
    "load",
    "parse",
    "parse_address",
    "seen_labels",
    "stated",
    "to_yaml",
    "with_flags",
]

"""The configuration: one strict file, its defaults, flags over it, and the watch over changes."""

from __future__ import annotations

from agent.config.agent_settings_of_broken_file import stated
from agent.config.config_state import ConfigState
from agent.config.effective import effective, elsewhere, to_yaml
from agent.config.flag_overlay import with_flags
from agent.config.given_flags import FLAGS, GivenValue, given_flags
from agent.config.http_address import HttpAddress, parse_address
from agent.config.known_labels import (
    CONFIG_LABEL,
    Labels,
    LabelsUnknown,
    NodeLabels,
    given_labels,
    seen_labels,
)
from agent.config.load import configured, load, parse
from agent.config.remembered_config import LastConfig, RememberedConfig
from agent.config.settings import (
    AgentSettings,
    Config,
    IdleSettings,
    LimitExceededSettings,
    LogFormat,
    LogLevel,
    LogSettings,
    MetricsSettings,
    ReconcileSettings,
    ReportSettings,
    UsageSettings,
    VendorSettings,
)
from agent.config.source import ConfigSource, given_source
from agent.config.watch import ConfigWatch

__all__ = [
    "CONFIG_LABEL",
    "FLAGS",
    "HttpAddress",
    "AgentSettings",
    "Config",
    "ConfigState",
    "ConfigWatch",
    "GivenValue",
    "IdleSettings",
    "Labels",
    "LabelsUnknown",
    "LastConfig",
    "LimitExceededSettings",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "MetricsSettings",
    "NodeLabels",
    "ReconcileSettings",
    "RememberedConfig",
    "ReportSettings",
    "ConfigSource",
    "UsageSettings",
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

"""The configuration: one strict file, its defaults, and the watch over it."""

from __future__ import annotations

from agent.config.address import Address, parse_address
from agent.config.effective import effective, to_yaml
from agent.config.flags import FLAGS, from_environ, with_flags
from agent.config.load import load, parse
from agent.config.settings import (
    AgentSettings,
    Config,
    LogFormat,
    LogLevel,
    LogSettings,
    ReportSettings,
    VendorSettings,
)
from agent.config.watch import ConfigState, ConfigWatch

__all__ = [
    "FLAGS",
    "Address",
    "AgentSettings",
    "Config",
    "ConfigState",
    "ConfigWatch",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "ReportSettings",
    "VendorSettings",
    "effective",
    "from_environ",
    "load",
    "parse",
    "parse_address",
    "to_yaml",
    "with_flags",
]

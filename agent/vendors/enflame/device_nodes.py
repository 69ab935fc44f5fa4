"""The device nodes of the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.vendors.common import host

#: What every program opens, whatever card it has.
CONTROL = "/dev/gcuctl"


def control(settings: Mapping[str, Any]) -> str:
    """The driver's own node; empty where it is not there."""
    return CONTROL if host.is_node(host.driver_root(settings), CONTROL) else ""


def root(settings: Mapping[str, Any]) -> str:
    """Where the host's files are for us."""
    return host.root(host.driver_root(settings))

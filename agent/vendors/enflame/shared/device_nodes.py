"""The device nodes of the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.vendors.common import host

#: The node that every program opens.
CONTROL = "/dev/gcuctl"


def control(settings: Mapping[str, Any]) -> str:
    """The driver's control node; empty if it does not exist."""
    return CONTROL if host.is_node(host.driver_root(settings), CONTROL) else ""


def root(settings: Mapping[str, Any]) -> str:
    """The directory with the host's files, as this process sees it."""
    return host.root(host.driver_root(settings))

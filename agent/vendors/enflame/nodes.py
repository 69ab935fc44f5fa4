"""The device nodes of the driver."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from . import facts

#: What every program opens, whatever card it has.
CONTROL = "/dev/gcuctl"


def control(settings: Mapping[str, Any]) -> str:
    """The driver's own node; empty where it is not there."""
    return CONTROL if _exists(settings, CONTROL) else ""


def _exists(settings: Mapping[str, Any], path: str) -> bool:
    """Whether it is a device node, below where the host's /dev is for us."""
    try:
        found = os.stat(os.path.join(host(settings), path.lstrip("/")))
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode)


def host(settings: Mapping[str, Any]) -> str:
    """Where the host's files are mounted for us, or without a container around us where they are."""
    mounted = settings.get("containerDriverRoot") or facts.DRIVER_ROOT
    return mounted if os.path.isdir(os.path.join(mounted, "dev")) else "/"

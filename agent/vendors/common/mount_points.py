"""Where a vendor's process sees sysfs and the host's files: two settings that vendors have alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Where a container sees the host's files, unless `containerDriverRoot` says otherwise.
DRIVER_ROOT = "/driver-root"


def sysfs(settings: Mapping[str, Any]) -> Path:
    """The directory of the setting `sysfs`."""
    return Path(settings.get("sysfs") or "/sys")


def driver_root(settings: Mapping[str, Any]) -> str:
    """The directory of the setting `containerDriverRoot`, which need not be there."""
    return settings.get("containerDriverRoot") or DRIVER_ROOT

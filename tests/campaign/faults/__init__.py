"""Every fault that the campaign knows, by name."""

from __future__ import annotations

from collections.abc import Mapping

from . import clock, dying, enflame, hardware, kubelet, metax, owners, podresources, storage, vendor
from .fault import Fault, Kind

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for room in (dying, kubelet, vendor, hardware, storage, clock, podresources, owners, metax, enflame)
    for kind in room.KINDS
}

__all__ = ["KINDS", "Fault", "Kind"]

"""The device nodes of the driver, of a card, and of a slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.vendors.common import host
from agent.vendors.metax.shared import sysfs

#: The node that every program opens.
CONTROL = ("/dev/mxcd",)
#: Assumption: a slice has the render node of its minor number. MetaX has not published its nodes.
SLICE = ("/dev/dri/renderD{minor}",)


@dataclass(frozen=True, slots=True)
class SliceNumbers:
    """The numbers for patterns of a slice's nodes. `card` and `render` are None if sysfs has none."""

    minor: int
    sgpu: int
    card: int | None = None
    render: int | None = None


def control(settings: Mapping[str, Any]) -> list[str]:
    """The driver's control nodes that exist, out of the setting `controlNodes` or CONTROL."""
    wanted = settings.get("controlNodes")
    return [path for path in (CONTROL if wanted is None else wanted) if exists(settings, path)]


def of_card(settings: Mapping[str, Any], pci: str) -> tuple[str, ...]:
    """The paths of the card's device nodes below /dev/dri."""
    names = sysfs.drm(host.sysfs(settings), pci)
    return tuple(f"/dev/dri/{name}" for name in names)


def of_slice(settings: Mapping[str, Any], numbers: SliceNumbers) -> list[str]:
    """The paths by the setting sliceNodes and these numbers. A pattern with an unknown number gives none."""
    known = {name: value for name in numbers.__slots__ if (value := getattr(numbers, name)) is not None}
    return [path for pattern in _patterns(settings) if (path := _filled(pattern, known))]


def _patterns(settings: Mapping[str, Any]) -> Sequence[str]:
    wanted = settings.get("sliceNodes")
    return SLICE if wanted is None else wanted


def _filled(pattern: str, known: Mapping[str, int]) -> str:
    """The path for a pattern, or empty with an unknown number. str.format would give access to attributes."""
    for name, value in known.items():
        pattern = pattern.replace(f"{{{name}}}", str(value))
    return "" if "{" in pattern else pattern


def lacking(settings: Mapping[str, Any], slice_name: str, numbers: SliceNumbers) -> str:
    """Why a container cannot get this slice: with slice, path and setting. Empty if all nodes exist."""
    paths = of_slice(settings, numbers)
    where = f"slice {slice_name}, number {numbers.minor}"
    if path := next((path for path in paths if not exists(settings, path)), None):
        return f"{where}: {path} is no device node here; let the setting sliceNodes say which a slice has"
    if len(paths) < len(_patterns(settings)):
        return f"{where}: its card has no DRM nodes in sysfs, which the setting sliceNodes asks for"
    return ""


def exists(settings: Mapping[str, Any], path: str) -> bool:
    """Whether the host has a device node at this path."""
    return host.is_node(host.driver_root(settings), path)

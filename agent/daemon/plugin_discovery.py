"""Finds plugins, in a folder of this tree and in other distributions; nothing is imported before `load`."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

DISTRIBUTION = "xpu-agent"


class BrokenPlugin(Exception):
    """Raised when a plugin does not keep the contract; says what would."""


@dataclass(frozen=True, slots=True)
class FoundPlugin:
    """A plugin by its name. `clash`: why it is left out, where another distribution has brought its name."""

    name: str
    origin: str
    version: str
    load: Callable[[], object]
    clash: str = ""


def found(package: ModuleType, group: str, kind: str) -> tuple[FoundPlugin, ...]:
    """Every plugin of the kind: a folder of `package` with a `plugin.py`, then entry points of the group."""
    in_tree = [
        FoundPlugin(
            it.name, DISTRIBUTION, _version(DISTRIBUTION), _importer(f"{package.__name__}.{it.name}.plugin")
        )
        for it in pkgutil.iter_modules(package.__path__)
        if _is_whole(package, it.name)
    ]
    first = {it.name: it.origin for it in in_tree}
    return (*in_tree, *(_pointed(it, first, kind) for it in metadata.entry_points(group=group)))


def _is_whole(package: ModuleType, folder: str) -> bool:
    """Whether the folder registers a plugin; one that is still being built does not."""
    paths = [str(Path(path, folder)) for path in package.__path__]
    return any(it.name == "plugin" for it in pkgutil.iter_modules(paths))


def _pointed(point: metadata.EntryPoint, first: dict[str, str], kind: str) -> FoundPlugin:
    origin = point.dist.name if point.dist else "unknown"
    version = point.dist.version if point.dist else ""
    clash = f"{first[point.name]} already brings a {kind} named {point.name!r}" if point.name in first else ""
    first.setdefault(point.name, origin)
    return FoundPlugin(point.name, origin, version, point.load, clash)


def _importer(module: str) -> Callable[[], ModuleType]:
    return lambda: import_module(module)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""

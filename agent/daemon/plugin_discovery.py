"""Finds plugins, in a folder of this tree and in other distributions. `FoundPlugin.load` imports one."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct

DISTRIBUTION = "xpu-agent"


class BrokenPlugin(Exception):
    """Raised for a plugin that does not keep the contract; the text says what would."""


class FoundPlugin(Struct, frozen=True):
    """A plugin by its name. `clash`: another distribution brings the same name, so this one is left out."""

    name: str
    origin: str
    version: str
    load: Callable[[], object]
    clash: str = ""


def found(package: ModuleType, group: str, kind: str) -> tuple[FoundPlugin, ...]:
    """Every plugin of the kind: folders of `package` with a `plugin.py`, then entry points of the group.

    Both by name, so that of two plugins that clash the same one comes first each time.
    """
    folders = [it.name for it in pkgutil.iter_modules(package.__path__) if _is_whole(package, it.name)]
    importers = {it: _importer(f"{package.__name__}.{it}.plugin") for it in folders}
    version = _version(DISTRIBUTION)
    in_tree = [FoundPlugin(name, DISTRIBUTION, version, load) for name, load in importers.items()]
    first = {it.name: it.origin for it in in_tree}
    points = sorted(_entry_points(tuple(sys.path)).select(group=group), key=lambda it: (it.name, _origin(it)))
    return (*in_tree, *(_pointed(it, first, kind) for it in points))


@cache
def _entry_points(path: tuple[str, ...]) -> Any:
    """The EntryPoints of all distributions on the path: one scan for vendors and schedulers.

    Python 3.11 returns another class here, which has the same `select`.
    """
    return metadata.entry_points()


def _is_whole(package: ModuleType, folder: str) -> bool:
    """Whether the folder has a `plugin.py`; an unfinished plugin has none."""
    paths = [str(Path(path, folder)) for path in package.__path__]
    return any(it.name == "plugin" for it in pkgutil.iter_modules(paths))


def _pointed(point: metadata.EntryPoint, first: dict[str, str], kind: str) -> FoundPlugin:
    origin = _origin(point)
    version = point.dist.version if point.dist else ""
    clash = f"{first[point.name]} already brings a {kind} named {point.name!r}" if point.name in first else ""
    first.setdefault(point.name, origin)
    return FoundPlugin(point.name, origin, version, point.load, clash)


def _origin(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"


def _importer(module: str) -> Callable[[], ModuleType]:
    return lambda: import_module(module)


@cache
def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""

"""What the configuration names beside itself, as it is now: files that another program had.

They are looked at together with the configuration, so that a change of either is one change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from agent.core.errors import ConfigError
from agent.host import files

#: The keys of MetaX's ConfigMap metax-device-config.
VERSION, CLUSTER, NODES = "version", "cluster-config", "nodes-config"
KEYS = (VERSION, CLUSTER, NODES)
MAX_BYTES = 1 << 19
#: What names them in the configuration.
DIRECTORY, FILE = "configDir", "configFile"
#: Directories and files that one configuration may name, and strange files of one that are told.
MAX_NAMED, MAX_OTHERS = 4, 5
#: Where a mounted ConfigMap has its files; the link is swapped when it changes.
_DATA = "..data"


@dataclass(frozen=True, slots=True)
class SideFiles:
    """What a look at a directory, or a file, found; or why it could not."""

    path: str
    #: Name to content of those of `KEYS` that are there; of a file its own.
    files: tuple[tuple[str, bytes], ...] = ()
    #: Names of others.
    others: tuple[str, ...] = ()
    error: str = ""


def looked_at(content: bytes) -> tuple[SideFiles, ...]:
    """Every directory and file that a configuration with this content names for any node."""
    return tuple(look(path) if key == DIRECTORY else look_at_file(path) for key, path in _named(content))


def look(path: str) -> SideFiles:
    """Read the directory, of which all is of one time."""
    try:
        try:
            return _found(path)
        except FileNotFoundError:  # what the link named a moment ago
            return _found(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return SideFiles(
            path, error=f"{path}: cannot be read: {why}; mount the ConfigMap metax-device-config there"
        )


def look_at_file(path: str) -> SideFiles:
    """Read the file."""
    try:
        return SideFiles(path, ((os.path.basename(path), files.read(Path(path), MAX_BYTES)),))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return SideFiles(path, error=f"{path}: cannot be read: {why}; mount the file, or name none")


def _found(path: str) -> SideFiles:
    data = os.path.join(path, _DATA)
    real = os.path.realpath(data) if os.path.isdir(data) else path
    names = sorted(islice((it for it in os.listdir(real) if not it.startswith(".")), 1000))
    found = [(it, files.read(Path(real, it), MAX_BYTES)) for it in KEYS if it in names]
    return SideFiles(path, tuple(found), tuple(it for it in names if it not in KEYS)[:MAX_OTHERS])


@lru_cache(maxsize=4)
def _named(content: bytes) -> tuple[tuple[str, str], ...]:
    """The keys and what they name."""
    if DIRECTORY.encode() not in content and FILE.encode() not in content:
        return ()
    from agent.config import yaml_document

    with suppress(ConfigError, UnicodeDecodeError):  # whoever reads the whole says so
        plain = yaml_document.read(content.decode(), "").plain()
        return tuple(dict.fromkeys(islice(_places(plain), MAX_NAMED)))
    return ()


def _places(plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    nodes = plain.get("nodes")
    sets = [it.get("set") for it in nodes if isinstance(it, Mapping)] if isinstance(nodes, list) else []
    for part in (plain, *sets):
        match part:
            case {"vendors": {**vendors}}:
                its = (it for it in vendors.values() if isinstance(it, Mapping))
                for key, path in ((key, it.get(key)) for it in its for key in (DIRECTORY, FILE)):
                    if isinstance(path, str) and os.path.isabs(path) and "\0" not in path:
                        yield key, path

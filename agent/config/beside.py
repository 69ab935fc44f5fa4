"""Directories that the configuration names, as they are now: files of a ConfigMap that another program had.

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

from agent import files
from agent.core.errors import ConfigError

#: The keys of MetaX's ConfigMap metax-device-config.
VERSION, CLUSTER, NODES = "version", "cluster-config", "nodes-config"
KEYS = (VERSION, CLUSTER, NODES)
MAX_BYTES = 1 << 19
#: Directories that one configuration may name, and strange files of one that are told.
MAX_DIRECTORIES, MAX_OTHERS = 4, 5
#: Where a mounted ConfigMap has its files; the link is swapped when it changes.
_DATA = "..data"


@dataclass(frozen=True, slots=True)
class Beside:
    """What a look at a directory found; or why it could not."""

    path: str
    #: Name to content of those of `KEYS` that are there.
    files: tuple[tuple[str, bytes], ...] = ()
    #: Names of others.
    others: tuple[str, ...] = ()
    error: str = ""


def looked_at(content: bytes) -> tuple[Beside, ...]:
    """Every directory that a configuration with this content names for any node."""
    return tuple(map(look, _named(content)))


def look(path: str) -> Beside:
    """Read the directory, of which all is of one time."""
    try:
        try:
            return _found(path)
        except FileNotFoundError:  # what the link named a moment ago
            return _found(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return Beside(
            path, error=f"{path}: can not be read: {why}; mount the ConfigMap metax-device-config there"
        )


def _found(path: str) -> Beside:
    data = os.path.join(path, _DATA)
    real = os.path.realpath(data) if os.path.isdir(data) else path
    names = sorted(islice((it for it in os.listdir(real) if not it.startswith(".")), 1000))
    found = [(it, files.read(Path(real, it), MAX_BYTES)) for it in KEYS if it in names]
    return Beside(path, tuple(found), tuple(it for it in names if it not in KEYS)[:MAX_OTHERS])


@lru_cache(maxsize=4)
def _named(content: bytes) -> tuple[str, ...]:
    if b"configDir" not in content:
        return ()
    from agent.config import document

    with suppress(ConfigError, UnicodeDecodeError):  # whoever reads the whole says so
        plain = document.read(content.decode(), "").plain()
        return tuple(dict.fromkeys(islice(_directories(plain), MAX_DIRECTORIES)))
    return ()


def _directories(plain: Mapping[str, Any]) -> Iterator[str]:
    nodes = plain.get("nodes")
    sets = [it.get("set") for it in nodes if isinstance(it, Mapping)] if isinstance(nodes, list) else []
    for part in (plain, *sets):
        match part:
            case {"vendors": {**vendors}}:
                for it in vendors.values():
                    match it:
                        case {"configDir": str(path)} if os.path.isabs(path) and "\0" not in path:
                            yield path

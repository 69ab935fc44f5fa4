"""Reads the files of other programs that the configuration names: `configDir` and `configFile` of a vendor.

The files are read together with the configuration, so that a change of either is one change.
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
from agent.vendor_api.config_inputs import ConfigFiles, ConfigInputs

MAX_BYTES = 1 << 19
#: The keys of a vendor that name files.
DIRECTORY, FILE = "configDir", "configFile"
#: Directories and files that a configuration may name, and further files of a directory in a message.
MAX_NAMED, MAX_OTHERS = 4, 5
#: Where a mounted ConfigMap has its files; the link is swapped when it changes.
_DATA = "..data"


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The content of a directory, or of a file, as it was read; or why it could not be read."""

    path: str
    #: Name to content of the files that the vendor reads; of a single file its own name.
    files: tuple[tuple[str, bytes], ...] = ()
    #: Names of further files.
    others: tuple[str, ...] = ()
    error: str = ""


def kind_of(inputs: Mapping[str, ConfigInputs], vendor: str, key: str) -> ConfigFiles | None:
    """The files that this vendor reads by this key, `configDir` or `configFile`; None where it reads none."""
    declared = inputs[vendor].files if vendor in inputs else ()
    return next((kind for kind in declared if kind.key == key), None)


def looked_at(content: bytes, inputs: Mapping[str, ConfigInputs]) -> tuple[SideFiles, ...]:
    """The files that a configuration with this content names for any node, without those of no vendor."""
    found = []
    for vendor, key, path in _named_by(content):
        kind = kind_of(inputs, vendor, key)
        if kind is not None:
            found.append(look(path, kind))
    return tuple(found)


def look(path: str, kind: ConfigFiles) -> SideFiles:
    """Read the file, or all files of the directory as they were at one time."""
    try:
        if kind.key == FILE:
            return SideFiles(path, ((os.path.basename(path), files.read(Path(path), MAX_BYTES)),))
        try:
            return _find(path, kind.names)
        except FileNotFoundError:  # what the link named a moment ago
            return _find(path, kind.names)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return SideFiles(path, error=f"{path}: cannot be read: {why}; {kind.remedy}")


def _find(path: str, known: tuple[str, ...]) -> SideFiles:
    data = os.path.join(path, _DATA)
    real = os.path.realpath(data) if os.path.isdir(data) else path
    names = sorted(islice((it for it in os.listdir(real) if not it.startswith(".")), 1000))
    found = [(it, files.read(Path(real, it), MAX_BYTES)) for it in known if it in names]
    return SideFiles(path, tuple(found), tuple(it for it in names if it not in known)[:MAX_OTHERS])


@lru_cache(maxsize=4)
def _named_by(content: bytes) -> tuple[tuple[str, str, str], ...]:
    """Each vendor that names files, with the key and the path."""
    if DIRECTORY.encode() not in content and FILE.encode() not in content:
        return ()
    from agent.config import yaml_document

    with suppress(ConfigError, UnicodeDecodeError):  # the reader of the whole file tells the error
        plain = yaml_document.read(content.decode(), "").plain()
        return tuple(dict.fromkeys(islice(_places(plain), MAX_NAMED)))
    return ()


def _places(plain: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    nodes = plain.get("nodes")
    sets = [it.get("set") for it in nodes if isinstance(it, Mapping)] if isinstance(nodes, list) else []
    for part in (plain, *sets):
        match part:
            case {"vendors": {**vendors}}:
                for vendor, settings in vendors.items():
                    paths = settings if isinstance(settings, Mapping) else {}
                    for key in (DIRECTORY, FILE):
                        path = paths.get(key)
                        if isinstance(path, str) and os.path.isabs(path) and "\0" not in path:
                            yield str(vendor), key, path

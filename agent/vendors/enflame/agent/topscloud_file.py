"""Enflame's `/etc/topscloud/topscloud.json`: what the cards of the node are called.

Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/config/config.go and config/topscloud.json
(ee04a65). The first element of `registerResource` alone decides anything there, as here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from agent.vendor_api.config_inputs import (
    ConfigFileError,
    ConfigFiles,
    FileContent,
    FoundFiles,
    found,
    nearest,
)
from agent.vendor_api.text import shorten

SETTING = "registerResource"
KEYS = (
    *("version", SETTING, "mainDevice", "virtualDevice"),
    *("driverDevice", "utilityBins", "utilityLibs"),
)
#: Warnings of unknown keys.
MAX_WARNINGS = 20


def resource_of_node(files: FoundFiles, node_name: str) -> FileContent:
    """The name of the whole card's resource, as the setting `registerResource`; the same on every node.

    Raises:
        ConfigFileError: The file is no JSON object, or begins with no resource.
    """
    document = _read(files)
    unknown = [key for key in document if key not in KEYS]
    return FileContent(
        {SETTING: _first(files.path, document)},
        {(SETTING,): f"{files.path}: {SETTING}[0]"},
        warnings=tuple(_warnings(files.path, unknown)),
    )


#: `configFile` of the vendor names the file.
TOPSCLOUD_FILE = ConfigFiles("configFile", settings=(SETTING,), read=resource_of_node)


def _warnings(path: str, unknown: Sequence[str]) -> Iterator[str]:
    for key in unknown[:MAX_WARNINGS]:
        yield f"{path}: {shorten(key, 60)}: unknown key; {nearest(key, KEYS)}"
    if len(unknown) > MAX_WARNINGS:
        yield f"{path}: and {len(unknown) - MAX_WARNINGS} more unknown keys"


def _read(files: FoundFiles) -> dict[str, Any]:
    path, text = files.path, next(iter(files.texts.values()), "")
    try:
        document: Any = json.loads(text, object_pairs_hook=partial(_once, path))
    except ConfigFileError:
        raise
    except json.JSONDecodeError as error:
        raise ConfigFileError(f"{path}:{error.lineno}: is no JSON: {error.msg}") from None
    except RecursionError:
        raise ConfigFileError(f"{path}: is too deep to be read") from None
    except ValueError as error:  # Python reads no number of more than 4,300 digits
        raise ConfigFileError(f"{path}: is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigFileError(f"{path}: expected a JSON object, found {found(document)}")
    return document


def _once(path: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ConfigFileError(f"{path}: the key {shorten(key, 60)} stands here {times} times; leave one")
    return dict(pairs)


def _first(path: str, document: dict[str, Any]) -> str:
    names = document.get(SETTING)
    first = names[0] if isinstance(names, list) and names else None
    if not isinstance(first, str):
        actual = "an empty list" if names == [] else found(names if first is None else first)
        why = f"expected a list that begins with a resource such as enflame.com/gcu, found {actual}"
        raise ConfigFileError(f"{path}: {SETTING}: {why}")
    return first

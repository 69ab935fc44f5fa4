"""Enflame's `/etc/topscloud/topscloud.json`: what its cards are called here.

Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/config/config.go and config/topscloud.json
(ee04a65). Of its keys the first of `registerResource` alone decides anything there, as here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agent.config import side_files
from agent.config.location import KeyLocation, Path, found, nearest
from agent.config.settings import Config, VendorSettings
from agent.config.side_files import SideFiles
from agent.config.validation import not_absolute
from agent.core.errors import ConfigError
from agent.vendor_api.text import shorten

VENDOR = "enflame"
SETTING = "registerResource"
KEYS = (
    *("version", SETTING, "mainDevice", "virtualDevice"),
    *("driverDevice", "utilityBins", "utilityLibs"),
)
#: Warnings of unknown keys.
MAX_DOUBTS = 20
INSTEAD = "write the resources here, or give NVIDIA's file as the whole configuration"
_NAME: Path = ("vendors", VENDOR, "settings", SETTING)


def applied(config: Config, seen: Sequence[SideFiles] = ()) -> Config:
    """The configuration with what the file says, where one is named; then it names none.

    `seen`: the files as they were looked at. One that was not is looked at now.

    Raises:
        ConfigError: The file cannot be used, or what it says is said here, too.
    """
    named = {name: it for name, it in config.vendors.items() if it.config_file}
    for name, vendor in named.items():
        at: Path = ("vendors", name, "configFile")
        if name != VENDOR:
            raise config.refused(at, f"is served for {VENDOR} alone; {INSTEAD}")
        if why := not_absolute(vendor.config_file):
            raise config.refused(at, why)
        if SETTING in vendor.settings:
            raise config.refused(_NAME, f"{vendor.config_file} (configFile) says it, too; remove one of both")
        there = next((it for it in seen if it.path == vendor.config_file), None)
        config = _with_name(config, vendor, there or side_files.look_at_file(vendor.config_file))
    return config


def _with_name(config: Config, vendor: VendorSettings, there: SideFiles) -> Config:
    if there.error:
        raise ConfigError(there.error)
    said = _read(there)
    settings = {**vendor.settings, SETTING: _first(there.path, said)}
    return replace(
        config,
        vendors={**config.vendors, VENDOR: replace(vendor, settings=settings, config_file="")},
        warnings=(*config.warnings, *_doubts(there.path, [it for it in said if it not in KEYS])),
        places={**config.places, _NAME: KeyLocation(f"{there.path}: {SETTING}[0]")},
    )


def _doubts(path: str, strange: Sequence[str]) -> Iterator[str]:
    for it in strange[:MAX_DOUBTS]:
        yield f"{path}: {shorten(it, 60)}: unknown key; {nearest(it, KEYS)}"
    if len(strange) > MAX_DOUBTS:
        yield f"{path}: and {len(strange) - MAX_DOUBTS} more unknown keys"


def _read(there: SideFiles) -> dict[str, Any]:
    content = next((content for _, content in there.files), b"")
    try:
        said: Any = json.loads(content.decode(), object_pairs_hook=partial(_once, there.path))
    except UnicodeDecodeError:
        raise ConfigError(f"{there.path}: is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{there.path}:{error.lineno}: is no JSON: {error.msg}") from None
    except RecursionError:
        raise ConfigError(f"{there.path}: is too deep to be read") from None
    except ValueError as error:  # Python reads no number of more than 4,300 digits
        raise ConfigError(f"{there.path}: is no JSON: {error}") from None
    if not isinstance(said, dict):
        raise ConfigError(f"{there.path}: expected a JSON object, found {found(said)}")
    return said


def _once(path: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ConfigError(f"{path}: the key {shorten(key, 60)} stands here {times} times; leave one")
    return dict(pairs)


def _first(path: str, said: dict[str, Any]) -> str:
    names = said.get(SETTING)
    first = names[0] if isinstance(names, list) and names else None
    if not isinstance(first, str):
        its = "an empty list" if names == [] else found(names if first is None else first)
        why = f"expected a list that begins with a resource such as enflame.com/gcu, found {its}"
        raise ConfigError(f"{path}: {SETTING}: {why}")
    return first

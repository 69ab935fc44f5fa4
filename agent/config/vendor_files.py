"""Lays the files of other programs, which a vendor's own functions read, over the settings of the vendor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from agent.config import side_files, yaml_document
from agent.config.location import KeyLocation
from agent.config.settings import Config
from agent.config.side_files import DIRECTORY, FILE, SideFiles, kind_of
from agent.config.validation import not_absolute
from agent.core.errors import ConfigError
from agent.vendor_api.config_inputs import (
    ConfigFileError,
    ConfigFiles,
    ConfigInputs,
    FileContent,
    FileValue,
    FoundFiles,
    Path,
)
from agent.vendor_api.text import shorten

T = TypeVar("T")


def applied(
    config: Config, node_name: str, inputs: Mapping[str, ConfigInputs], seen: Sequence[SideFiles] = ()
) -> Config:
    """The configuration with what the files say; then no vendor names files.

    `seen`: the files as they were read with the configuration. Others are read now.

    Raises:
        ConfigError: The files cannot be used, or the configuration has a setting that the files set.
    """
    for key in (DIRECTORY, FILE):
        named = {name: _path(config, name, key) for name in config.vendors if _path(config, name, key)}
        for vendor, path in named.items():
            kind = _kind(config, vendor, key, inputs)
            found = next((it for it in seen if it.path == path), None) or side_files.look(path, kind)
            config = _with_files(config, vendor, kind, found, node_name)
    return config


def _path(config: Config, vendor: str, key: str) -> str:
    settings = config.vendors[vendor]
    return settings.config_dir if key == DIRECTORY else settings.config_file


def _kind(config: Config, vendor: str, key: str, inputs: Mapping[str, ConfigInputs]) -> ConfigFiles:
    """The files that the vendor reads by this key.

    Raises:
        ConfigError: The vendor reads none, the path is not absolute, or a setting stands twice.
    """
    at: Path = ("vendors", vendor, key)
    kind = kind_of(inputs, vendor, key)
    if kind is None:
        raise config.refused(at, _unserved(key, inputs))
    path = _path(config, vendor, key)
    if why := not_absolute(path):
        raise config.refused(at, why)
    for setting in kind.settings:
        if setting in config.vendors[vendor].settings:
            both = f"{path} ({key}) says it, too; remove one of both"
            raise config.refused(("vendors", vendor, "settings", setting), both)
    return kind


def _unserved(key: str, inputs: Mapping[str, ConfigInputs]) -> str:
    readers = [vendor for vendor in inputs if kind_of(inputs, vendor, key) is not None]
    formats = [it.title for vendor in inputs.values() for it in vendor.formats] if key == FILE else []
    whole = f", or give {' or '.join(formats)} as the whole configuration" if formats else ""
    served = f"for {', '.join(readers)} alone" if readers else "for no vendor here"
    return f"is served {served}; write the resources here{whole}"


def _with_files(config: Config, vendor: str, kind: ConfigFiles, found: SideFiles, node_name: str) -> Config:
    if found.error:
        raise ConfigError(found.error)
    content = called(found.path, lambda: kind.read(_decode(found, kind), node_name))
    before = config.vendors[vendor]
    read = replace(before, settings={**before.settings, **content.settings})
    read = replace(read, config_dir="") if kind.key == DIRECTORY else replace(read, config_file="")
    return replace(
        config,
        vendors={**config.vendors, vendor: read},
        warnings=(*config.warnings, *content.warnings),
        places={**config.places, **places_of(vendor, content)},
    )


def _decode(found: SideFiles, kind: ConfigFiles) -> FoundFiles:
    texts, documents = {}, {}
    for name, content in found.files:
        source = f"{found.path}/{name}" if kind.key == DIRECTORY else found.path
        try:
            texts[name] = content.decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{source}: is not UTF-8 text") from None
        if kind.yaml:
            documents[name] = FileValue(source, yaml_document.value(texts[name], source))
    return FoundFiles(found.path, texts, documents, found.others)


def called(source: str, read: Callable[[], T]) -> T:
    """The answer of a plugin's function.

    Raises:
        ConfigError: The function refuses the file, or fails.
    """
    try:
        return read()
    except ConfigFileError as error:
        raise ConfigError(str(error)) from None
    except ConfigError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {shorten(str(error), 200)}"
        raise ConfigError(f"{source}: the vendor's plugin cannot read it: {why}") from error


def places_of(vendor: str, content: FileContent) -> dict[Path, KeyLocation]:
    """The places of the vendor's settings, by the paths of the effective configuration."""
    return {
        ("vendors", vendor, "settings", *path): KeyLocation(place)
        if isinstance(place, str)
        else KeyLocation(place.source, place.node, place.path)
        for path, place in content.places.items()
    }

"""MetaX's ConfigMap `metax-device-config`: in which mode the cards of this node are.

Source: koordinator.sh, user manual of MetaX GPUs. Its keys: `version`, `cluster-config` and `nodes-config`,
of which the entry of the node's own name holds before that of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.config import side_files, yaml_document
from agent.config.location import KeyLocation, Path, found, nearest, refused
from agent.config.schema import mapping, sequence
from agent.config.settings import Config, VendorSettings
from agent.config.side_files import CLUSTER, NODES, VERSION, SideFiles
from agent.config.validation import not_absolute
from agent.config.yaml_document import YamlNode
from agent.core.errors import ConfigError
from agent.vendor_api.text import shorten

VENDOR = "metax"
#: As the vendor has them, of which the configuration knows nothing.
MODES = ("native", "shared", "sgpu", "vgpu")
DEFAULT = "native"
_MODE: Path = ("vendors", VENDOR, "settings", "mode")


def applied(config: Config, node_name: str, seen: Sequence[SideFiles] = ()) -> Config:
    """The configuration with the mode that the directory says, where one is named; then it names none.

    `seen`: the directories as they were looked at. One that was not is looked at now.

    Raises:
        ConfigError: The directory or what stands there cannot be used, or the mode is said here, too.
    """
    named = {name: it for name, it in config.vendors.items() if it.config_dir}
    for name, vendor in named.items():
        at: Path = ("vendors", name, "configDir")
        if name != VENDOR:
            raise config.refused(at, f"is served for {VENDOR} alone; write the resources here")
        if why := not_absolute(vendor.config_dir):
            raise config.refused(at, why)
        if "mode" in vendor.settings:
            raise config.refused(_MODE, f"{vendor.config_dir} (configDir) says the mode; remove one of both")
        there = next((it for it in seen if it.path == vendor.config_dir), None)
        config = _with_mode(config, vendor, there or side_files.look(vendor.config_dir), node_name)
    return config


def _with_mode(config: Config, vendor: VendorSettings, there: SideFiles, node_name: str) -> Config:
    mode, place = _mode(there, node_name)
    settings = {**vendor.settings, "mode": mode}
    warned = tuple(
        f"{there.path}/{shorten(it, 60)}: is no key of metax-device-config; {nearest(it, side_files.KEYS)}"
        for it in there.others
    )
    return replace(
        config,
        vendors={**config.vendors, VENDOR: replace(vendor, settings=settings, config_dir="")},
        warnings=(*config.warnings, *warned),
        places={**config.places, _MODE: place},
    )


def _mode(there: SideFiles, node_name: str) -> tuple[str, KeyLocation]:
    """The mode of this node, and who says it.

    Raises:
        ConfigError: Something there is wrong, whichever node it is for.
    """
    if there.error:
        raise ConfigError(there.error)
    if not there.files:
        raise ConfigError(
            f"{there.path}: has none of {', '.join(side_files.KEYS)}; mount metax-device-config there"
        )
    roots = {name: _read(there, name, content) for name, content in there.files}
    _check_version(there, roots.get(VERSION))
    cluster = _cluster(there, roots.get(CLUSTER))
    own = _entries(there, roots.get(NODES), node_name).get(node_name)
    return own or cluster or (DEFAULT, KeyLocation(f"{there.path} (names no mode)"))


def _read(there: SideFiles, name: str, content: bytes) -> YamlNode:
    source = f"{there.path}/{name}"
    try:
        return yaml_document.value(content.decode(), source)
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: is not UTF-8 text") from None


def _check_version(there: SideFiles, root: YamlNode | None) -> None:
    if root is not None and root.value != "v1":
        raise refused(f"{there.path}/{VERSION}", root.line, (), f"expected v1, found {found(root.value)}")


def _cluster(there: SideFiles, root: YamlNode | None) -> tuple[str, KeyLocation] | None:
    source = f"{there.path}/{CLUSTER}"
    given = _keys(root, source, (), ("mode",)) if root is not None else {}
    return (
        (_named(given["mode"], source, ("mode",)), KeyLocation(source, given["mode"], ("mode",)))
        if given
        else None
    )


def _entries(
    there: SideFiles, root: YamlNode | None, node_name: str
) -> Mapping[str, tuple[str, KeyLocation]]:
    source = f"{there.path}/{NODES}"
    entries: dict[str, tuple[str, KeyLocation]] = {}
    for index, child in enumerate(sequence(root, source, ()) if root is not None else ()):
        given = _keys(child, source, (index,), ("nodeName", "mode"))
        for key in ("nodeName", "mode"):
            if key not in given:
                raise refused(source, child.line, (index,), f"needs the key '{key}'")
        node, at = given["nodeName"], (index, "nodeName")
        if not isinstance(node.value, str) or not node.value:
            raise refused(source, node.line, at, f"expected the name of a node, found {found(node.value)}")
        if node.value in entries:
            raise refused(source, node.line, at, f"the node '{shorten(node.value)}' stands here twice")
        mode = given["mode"]
        entries[node.value] = (
            _named(mode, source, (index, "mode")),
            KeyLocation(source, mode, (index, "mode")),
        )
    if entries and not node_name:
        raise ConfigError(f"{source}: needs the name of this node; give --node-name or NODE_NAME")
    return entries


def _keys(node: YamlNode, source: str, path: Path, known: Sequence[str]) -> Mapping[str, YamlNode]:
    """Those that hold something."""
    given = mapping(node, source, path)
    for key, child in given.items():
        if key not in known:
            raise refused(source, child.line, (*path, key), f"unknown key; {nearest(key, known)}")
    return {key: child for key, child in given.items() if child.value is not None}


def _named(node: YamlNode, source: str, path: Path) -> str:
    if node.value not in MODES:
        message = f"expected {', '.join(MODES[:-1])} or {MODES[-1]}, found {found(node.value)}"
        raise refused(source, node.line, path, message)
    return str(node.value)

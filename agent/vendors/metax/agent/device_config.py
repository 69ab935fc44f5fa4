"""MetaX's ConfigMap `metax-device-config`: in which mode the cards of this node are.

Source: koordinator.sh, user manual of MetaX GPUs. The keys are `version`, `cluster-config` and
`nodes-config`; an entry of `nodes-config` with this node's name goes before `cluster-config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.vendor_api.config_inputs import (
    ConfigFileError,
    ConfigFiles,
    FileContent,
    FileValue,
    FoundFiles,
    found,
    nearest,
    one_of,
)
from agent.vendor_api.text import shorten

from .options import MODES

VERSION, CLUSTER, NODES = "version", "cluster-config", "nodes-config"
KEYS = (VERSION, CLUSTER, NODES)
SETTING = "mode"
DEFAULT = "native"


def mode_of_node(files: FoundFiles, node_name: str) -> FileContent:
    """The mode of this node, as the setting `mode`, with the file and the line that say it.

    Raises:
        ConfigFileError: An entry is wrong, whichever node the entry is for.
    """
    if not files.documents:
        raise ConfigFileError(f"{files.path}: has none of {', '.join(KEYS)}; mount metax-device-config there")
    documents = files.documents
    _check_version(documents.get(VERSION))
    mode = _cluster_mode(documents.get(CLUSTER))
    mode = _node_modes(documents.get(NODES), node_name).get(node_name) or mode
    unknown = tuple(
        f"{files.path}/{shorten(name, 60)}: is no key of metax-device-config; {nearest(name, KEYS)}"
        for name in files.others
    )
    value = DEFAULT if mode is None else mode.value
    place = mode or f"{files.path} (names no mode)"
    return FileContent({SETTING: value}, {(SETTING,): place}, warnings=unknown)


#: `configDir` of the vendor names the directory in which the ConfigMap is mounted.
DEVICE_CONFIG = ConfigFiles(
    "configDir",
    settings=(SETTING,),
    read=mode_of_node,
    names=KEYS,
    yaml=True,
    remedy="mount the ConfigMap metax-device-config there",
)


def _check_version(version: FileValue | None) -> None:
    if version is not None and version.value != "v1":
        raise version.refused(f"expected v1, found {found(version.value)}")


def _cluster_mode(cluster: FileValue | None) -> FileValue | None:
    keys = _keys(cluster, ("mode",)) if cluster is not None else {}
    return _mode(keys["mode"]) if keys else None


def _node_modes(nodes: FileValue | None, node_name: str) -> Mapping[str, FileValue]:
    """The name of each node that has an entry, with its mode."""
    modes: dict[str, FileValue] = {}
    for node in nodes.elements() if nodes is not None else ():
        keys = _keys(node, ("nodeName", "mode"))
        for key in ("nodeName", "mode"):
            if key not in keys:
                raise node.refused(f"needs the key '{key}'")
        name = keys["nodeName"]
        if not isinstance(name.value, str) or not name.value:
            raise name.refused(f"expected the name of a node, found {found(name.value)}")
        if name.value in modes:
            raise name.refused(f"the node '{shorten(name.value)}' stands here twice")
        modes[name.value] = _mode(keys["mode"])
    if nodes is not None and modes and not node_name:
        raise ConfigFileError(f"{nodes.source}: needs the name of this node; give --node-name or NODE_NAME")
    return modes


def _keys(value: FileValue, known: Sequence[str]) -> Mapping[str, FileValue]:
    """The keys that hold something."""
    keys = value.keys()
    for key, child in keys.items():
        if key not in known:
            raise child.refused(f"unknown key; {nearest(key, known)}")
    return {key: child for key, child in keys.items() if child.value is not None}


def _mode(value: FileValue) -> FileValue:
    if value.value not in MODES:
        raise value.refused(f"expected {one_of(MODES)}, found {found(value.value)}")
    return value

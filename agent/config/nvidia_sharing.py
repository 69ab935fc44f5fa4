"""`sharing` and `resources` of NVIDIA's file: which devices count several times, and what each is called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent.config.document import Node
from agent.config.nvidia_file import NvidiaFile, raw
from agent.config.place import Path
from agent.config.rules import MAX_REPLICAS
from agent.config.shape import convert, sequence
from agent.core.text import shorten

_PREFIX = "nvidia.com/"
_MAX_NAME = 63
_SHARED = ".shared"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# The sentence of k8s.io/apimachinery, as NVIDIA's program prints it.
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    rf"'{_LABEL}(\.{_LABEL})*')"
)
_UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
#: An index, a MIG device's index, a uuid; MIG devices have them in two forms.
_DEVICE = re.compile(rf"[0-9]+(:[0-9]+)?|(GPU|MIG)-{_UUID}|MIG-GPU-{_UUID}/[0-9]+/[0-9]+")
_KINDS = {str: "string", bool: "bool", int: "int", float: "float64", type(None): "nil", list: "list"}


def replicated(file: NvidiaFile, node: Node, path: Path) -> dict[str, Any]:
    """`sharing.timeSlicing` or `sharing.mps` as plain values, names in full and renames resolved.

    Source: api/config/v1/replicas.go of NVIDIA/k8s-device-plugin v0.20.

    Raises:
        ConfigError: In NVIDIA's words.
    """
    known = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
    given = file.keys(node, path, known, exact=True)
    rename = switch(file, given.get("renameByDefault"), (*path, "renameByDefault"))
    strict = switch(file, given.get("failRequestsGreaterThanOne"), (*path, "failRequestsGreaterThanOne"))
    resources = given.get("resources")
    items = sequence(resources, file.source, (*path, "resources")) if resources else ()
    if not items:
        raise file.refused(resources or node, path, "no resources specified")
    entries = [_entry(file, item, (*path, "resources", index)) for index, item in enumerate(items)]
    for entry in entries:
        if rename and not entry["rename"]:
            entry["rename"] = entry["name"] + _SHARED
    _warn_of_nothing_left(file, items, entries, (*path, "resources"))
    return {"failRequestsGreaterThanOne": strict, "resources": entries}


def _warn_of_nothing_left(
    file: NvidiaFile, items: Sequence[Node], entries: Sequence[dict[str, Any]], path: Path
) -> None:
    whole: set[str] = set()
    for index, (item, entry) in enumerate(zip(items, entries, strict=True)):
        if entry["name"] in whole:
            message = f"an earlier entry takes all devices of '{entry['name']}'; none is left for this one"
            file.warn(item, (*path, index), message)
        if entry["devices"] == "all":
            whole.add(entry["name"])


def patterns(file: NvidiaFile, node: Node, path: Path) -> list[dict[str, str]]:
    """`resources.gpus` or `resources.mig`: what devices of a product or profile are called.

    Source: api/config/v1/resources.go of NVIDIA/k8s-device-plugin v0.20.

    Raises:
        ConfigError: In NVIDIA's words.
    """
    found = []
    for index, item in enumerate(sequence(node, file.source, path)):
        at = (*path, index)
        given = file.keys(item, at, ("pattern", "name"), exact=True)
        for key in ("pattern", "name"):
            if key not in given:
                raise file.refused(item, at, f"resources must have a '{key}' field set")
        pattern = convert(str, given["pattern"], file.source, (*at, "pattern"))
        found.append({"pattern": pattern, "name": _name(file, given["name"], (*at, "name"))})
    return found


def switch(file: NvidiaFile, node: Node | None, path: Path) -> bool:
    """A boolean, also in the words of YAML 1.1 that NVIDIA's programs read; absent is false."""
    if node is None:
        return False
    word = node.value.lower() if isinstance(node.value, str) else None
    if word in ("yes", "on", "y", "no", "off", "n"):
        return word in ("yes", "on", "y")
    value: bool = convert(bool, node, file.source, path)
    return value


def _entry(file: NvidiaFile, node: Node, path: Path) -> dict[str, Any]:
    given = file.keys(node, path, ("name", "rename", "devices", "replicas"), exact=True)
    if "name" not in given:
        raise file.refused(node, path, "no resource name specified")
    name = _name(file, given["name"], (*path, "name"))
    devices = _devices(file, given["devices"], (*path, "devices")) if "devices" in given else "all"
    if "replicas" not in given:
        raise file.refused(node, path, "no replicas specified")
    replicas = _replicas(file, given["replicas"], (*path, "replicas"))
    rename = _name(file, given["rename"], (*path, "rename")) if "rename" in given else ""
    return {"name": name, "rename": rename, "devices": devices, "replicas": replicas}


def _name(file: NvidiaFile, node: Node, path: Path) -> str:
    text: str = convert(str, node, file.source, path)
    name = text if text.startswith(_PREFIX) else f"{_PREFIX}{text}"
    if len(name.encode()) > _MAX_NAME:
        shown = shorten(name, 200)
        message = f"fully-qualified resource name must be {_MAX_NAME} characters or less: {shown}"
        raise file.refused(node, path, message)
    if not _SUBDOMAIN.fullmatch(name.removeprefix(_PREFIX)):
        message = f"incorrect format for resource name '{shorten(name)}': [{_SUBDOMAIN_RULE}]"
        raise file.refused(node, path, message)
    return name


def _replicas(file: NvidiaFile, node: Node, path: Path) -> int:
    replicas: int = convert(int, node, file.source, path)
    if replicas < 2:
        raise file.refused(node, path, "number of replicas must be >= 2")
    if replicas > MAX_REPLICAS:
        raise file.refused(node, path, f"must be {MAX_REPLICAS} or fewer: the kubelet takes a list of 4 MiB")
    return replicas


def _devices(file: NvidiaFile, node: Node, path: Path) -> str | int | list[int | str]:
    match node.value:
        case "all":
            return "all"
        case str(text):
            message = f"devices set as '{shorten(text)}' but the only valid string input is 'all'"
            raise file.refused(node, path, message)
        case bool() | float() | Mapping():
            raise file.refused(node, path, f"unrecognized type for devices spec: {raw(node)}")
        case int(count) if count <= 0:
            raise file.refused(node, path, f"devices set as '{count}' but a count of devices must be > 0")
        case int(count):
            return count
    items = sequence(node, file.source, path)
    return [_device(file, item, (*path, index)) for index, item in enumerate(items)]


def _device(file: NvidiaFile, node: Node, path: Path) -> int | str:
    match node.value:
        case bool():
            pass
        case int(index) if index >= 0:
            return index
        case str(text) if _DEVICE.fullmatch(text):
            return text
    plain = node.plain()
    shown = shorten(plain, 60) if isinstance(plain, str) else raw(node)
    kind = _KINDS.get(type(plain), "map")
    raise file.refused(node, path, f"unsupported type for device in devices list: {shown}, {kind}")

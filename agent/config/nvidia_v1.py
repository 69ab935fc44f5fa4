"""NVIDIA's own configuration file (v1), read as settings of the vendor nvidia."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agent.config.document import Node
from agent.config.place import Path, found, nearest, refused
from agent.config.rules import MAX_REPLICAS
from agent.config.settings import VendorSettings
from agent.config.shape import convert, mapping, sequence
from agent.core.errors import ConfigError
from agent.core.text import shorten
from agent.core.vendor import ResourceRule, Sharing

KEYS = ("flags", "resources", "sharing", "imex")

_PREFIX = "nvidia.com/"
#: The one resource that NVIDIA's cards are advertised as while nothing partitions them.
_SERVED = "nvidia.com/gpu"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# The sentence of k8s.io/apimachinery, as NVIDIA's program prints it.
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    rf"'{_LABEL}(\.{_LABEL})*')"
)
_NOT_SERVED = "is not served by this release; remove it"


class _File:
    """A file with its name, to word errors."""

    def __init__(self, source: str) -> None:
        self.source = source

    def refused(self, node: Node, path: Path, message: str) -> ConfigError:
        return refused(self.source, node.line, path, message)

    def keys(
        self, node: Node, path: Path, served: tuple[str, ...], known: tuple[str, ...]
    ) -> Mapping[str, Node]:
        """The keys that are set. One that is not served is refused by name, an empty one says nothing."""
        given = mapping(node, self.source, path)
        for key, child in given.items():
            if key not in served and key not in known:
                raise self.refused(child, (*path, key), f"unknown key; {nearest(key, (*served, *known))}")
            if key in known and _is_set(child):
                raise self.refused(*_first_set(child, (*path, key)), _NOT_SERVED)
        return {key: child for key, child in given.items() if key in served and child.value is not None}


def _is_set(node: Node) -> bool:
    """Whether anything stands under a key; an empty mapping asks for nothing."""
    match node.value:
        case Mapping():
            return any(_is_set(child) for child in node.value.values())
        case tuple():
            return bool(node.value)
    return node.value is not None


def _first_set(node: Node, path: Path) -> tuple[Node, Path]:
    """The first value under `flags`, `resources` or `imex`, to name flags.migStrategy rather than flags."""
    while len(path) < 3 and path[0] != "sharing" and isinstance(node.value, Mapping):
        key, node = next((key, child) for key, child in node.value.items() if _is_set(child))
        path = (*path, key)
    return node, path


def read(root: Node, source: str) -> VendorSettings:
    """Translate the whole file.

    Raises:
        ConfigError: NVIDIA's own checks refuse it (in their words), or it asks for more than is served.
    """
    file = _File(source)
    top = file.keys(root, (), ("version", "sharing"), ("flags", "resources", "imex"))
    if "sharing" not in top:
        return VendorSettings()
    sharing = file.keys(top["sharing"], ("sharing",), ("timeSlicing",), ("mps",))
    if "timeSlicing" not in sharing:
        return VendorSettings()
    return VendorSettings(
        resources=tuple(_time_slicing(file, sharing["timeSlicing"], ("sharing", "timeSlicing")))
    )


def _time_slicing(file: _File, node: Node, path: Path) -> Iterator[ResourceRule]:
    given = file.keys(node, path, ("resources", "failRequestsGreaterThanOne", "renameByDefault"), ())
    resources = given.get("resources")
    items = sequence(resources, file.source, (*path, "resources")) if resources else ()
    if not items:
        raise file.refused(resources or node, path, "no resources specified")
    rename = given.get("renameByDefault")
    if rename and convert(bool, rename, file.source, (*path, "renameByDefault")):
        raise file.refused(rename, (*path, "renameByDefault"), _NOT_SERVED)
    limit = given.get("failRequestsGreaterThanOne")
    strict = bool(limit and convert(bool, limit, file.source, (*path, "failRequestsGreaterThanOne")))
    names: set[str] = set()
    for index, item in enumerate(items):
        at = (*path, "resources", index)
        name, replicas = _resource(file, item, at)
        if name in names:
            raise file.refused(item, (*at, "name"), f"the resource '{name}' is named twice")
        names.add(name)
        yield ResourceRule(name, sharing=Sharing("replicas", replicas, strict))


def _resource(file: _File, node: Node, path: Path) -> tuple[str, int]:
    given = file.keys(node, path, ("name", "replicas", "devices"), ("rename",))
    if "name" not in given:
        raise file.refused(node, path, "no resource name specified")
    name = _name(file, given["name"], (*path, "name"))
    if "devices" in given:
        _all_devices(file, given["devices"], (*path, "devices"))
    if "replicas" not in given:
        raise file.refused(node, path, "no replicas specified")
    return name, _replicas(file, given["replicas"], (*path, "replicas"))


def _name(file: _File, node: Node, path: Path) -> str:
    text: str = convert(str, node, file.source, path)
    name = text if text.startswith(_PREFIX) else f"{_PREFIX}{text}"
    if len(name) > 63:
        message = f"fully-qualified resource name must be 63 characters or less: {shorten(name, 200)}"
        raise file.refused(node, path, message)
    if not _SUBDOMAIN.fullmatch(name.removeprefix(_PREFIX)):
        message = f"incorrect format for resource name '{shorten(name)}': [{_SUBDOMAIN_RULE}]"
        raise file.refused(node, path, message)
    if name != _SERVED:
        raise file.refused(node, path, f"'{name}' is not served by this release; it serves '{_SERVED}'")
    return name


def _replicas(file: _File, node: Node, path: Path) -> int:
    replicas: int = convert(int, node, file.source, path)
    if replicas < 2:
        raise file.refused(node, path, "number of replicas must be >= 2")
    if replicas > MAX_REPLICAS:
        raise file.refused(node, path, f"must be {MAX_REPLICAS} or fewer: the kubelet takes a list of 4 MiB")
    return replicas


def _all_devices(file: _File, node: Node, path: Path) -> None:
    """Only all devices are served; what NVIDIA itself would refuse is told in its words."""
    match node.value:
        case "all":
            return
        case str(text):
            message = f"devices set as '{shorten(text)}' but the only valid string input is 'all'"
            raise file.refused(node, path, message)
        case bool() | float() | Mapping():
            raise file.refused(node, path, f"unrecognized type for devices spec: {found(node.value)}")
        case int(count) if count <= 0:
            raise file.refused(node, path, f"devices set as '{count}' but a count of devices must be > 0")
        case tuple(items):
            _device_list(file, items, path)
    raise file.refused(
        node, path, "a subset of the devices is not served by this release; remove it or write 'all'"
    )


_DEVICE = re.compile(
    r"[0-9]+(:[0-9]+)?|(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|MIG-GPU-[0-9a-fA-F-]{36}/[0-9]+/[0-9]+"
)


def _device_list(file: _File, items: tuple[Node, ...], path: Path) -> None:
    for index, item in enumerate(items):
        plain = item.plain()
        if isinstance(plain, int) and not isinstance(plain, bool) and plain >= 0:
            continue
        if not isinstance(plain, str) or not _DEVICE.fullmatch(plain):
            kind = {str: "string", bool: "bool", int: "int", float: "float64"}.get(type(plain), "map")
            message = f"unsupported type for device in devices list: {shorten(str(plain), 60)}, {kind}"
            raise file.refused(item, (*path, index), message)

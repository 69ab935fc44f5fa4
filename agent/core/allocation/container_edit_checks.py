"""Checks that the kubelet can take a vendor's container edits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from posixpath import isabs

from agent.core.errors import AllocationError
from agent.vendor_api.agent import ContainerEdits, DeviceNode, Mount
from agent.vendor_api.text import shorten

#: What a container may do with a device node: read, write, make.
PERMISSIONS = frozenset("rwm")


class UnusableEdits(AllocationError):
    """Raised when a vendor's container edits cannot be given to the kubelet."""

    def __init__(self, vendor: str, field: str, value: object, wanted: str) -> None:
        super().__init__(f"vendor {vendor}: container edits: {field} is {_quote(value)}; wanted: {wanted}")


def check_edits(vendor: str, edits: ContainerEdits) -> ContainerEdits:
    """Return the edits if the kubelet can take them.

    Raises:
        UnusableEdits: Naming the first field of another type, or with a value that the kubelet does not take.
    """
    for field, value, wanted in _find_errors(edits):
        raise UnusableEdits(vendor, field, value, wanted)
    return edits


FieldError = tuple[str, object, str]


def _find_errors(edits: object) -> Iterator[FieldError]:
    if not isinstance(edits, ContainerEdits):
        yield "the whole", edits, "ContainerEdits"
        return
    yield from _check_texts("env", edits.env)
    yield from _check_texts("annotations", edits.annotations)
    for field, values in (
        ("device_nodes", edits.device_nodes),
        ("mounts", edits.mounts),
        ("cdi_devices", edits.cdi_devices),
    ):
        if not isinstance(values, tuple | list):
            yield field, values, "a tuple"
            return
    for n, node in enumerate(edits.device_nodes):
        yield from _check_node(f"device_nodes[{n}]", node)
    for n, mount in enumerate(edits.mounts):
        yield from _check_mount(f"mounts[{n}]", mount)
    for n, name in enumerate(edits.cdi_devices):
        yield from _check_text(f"cdi_devices[{n}]", name)


def _check_texts(field: str, texts: object) -> Iterator[FieldError]:
    if not isinstance(texts, Mapping):
        yield field, texts, "a mapping of text to text"
        return
    for key, value in texts.items():
        yield from _check_text(f"a key of {field}", key)
        yield from _check_text(f"{field}[{_quote(key)}]", value)


def _check_node(field: str, node: object) -> Iterator[FieldError]:
    if not isinstance(node, DeviceNode):
        yield field, node, "a DeviceNode"
        return
    yield from _check_paths(field, (("path", node.path), ("host_path", node.host_path)))
    allowed = node.permissions
    if not isinstance(allowed, str) or not allowed or not PERMISSIONS.issuperset(allowed):
        yield f"{field}.permissions", allowed, 'some of "rwm"'


def _check_mount(field: str, mount: object) -> Iterator[FieldError]:
    if not isinstance(mount, Mount):
        yield field, mount, "a Mount"
        return
    yield from _check_paths(field, (("path", mount.path), ("host_path", mount.host_path)))
    if not isinstance(mount.read_only, bool):
        yield f"{field}.read_only", mount.read_only, "True or False"


def _check_paths(field: str, paths: Iterable[tuple[str, object]]) -> Iterator[FieldError]:
    for name, path in paths:
        yield from _check_text(f"{field}.{name}", path)
        if isinstance(path, str) and not isabs(path):
            yield f"{field}.{name}", path, "an absolute path"


def _check_text(field: str, value: object) -> Iterator[FieldError]:
    if not isinstance(value, str):
        yield field, value, "text"
    elif not value.isascii() and any("\ud800" <= it <= "\udfff" for it in value):
        yield field, value, "text that UTF-8 can carry"


def _quote(value: object) -> str:
    return shorten(value if isinstance(value, str) else repr(value))

"""Annotations of the Node: what a vendor makes of its devices and of what of them is given out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.core.errors import VendorError
from agent.core.labels import domain
from agent.core.model import Allocation
from agent.core.names import wrong_label
from agent.core.promises import requested
from agent.core.text import shorten
from agent.core.vendor import Device, Grant, ResourceRule, Vendor

#: Keys of one vendor.
KEYS = 16
#: Bytes of all annotations of an object together. Source: kubernetes/kubernetes v1.36.0,
#: staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB.
MAX_BYTES = 256 << 10
_NOBODYS = ("kubernetes.io", "k8s.io", "xpu-agent.io")


@dataclass(frozen=True, slots=True)
class Annotated:
    """What the vendors make of the devices so far: key to text, None where there shall be none.

    `awaited`: keys that stay as they are, of vendors who have not spoken or can not.
    """

    texts: Mapping[str, str | None] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()


def grants(allocations: Iterable[Allocation], vendor: str) -> tuple[Grant, ...]:
    """What of the vendor is given out."""
    return tuple(Grant(requested(it), it.cards, it.partitions) for it in allocations if it.vendor == vendor)


def wrong_key(key: str) -> str:
    """Why it can not be a vendor's own; empty where it can."""
    of = domain(key)
    if not of:
        return f"{shorten(key)!r} has no domain; use one such as vendor.com/devices"
    if any(of == it or of.endswith(f".{it}") for it in _NOBODYS):
        return f"{shorten(key)!r} is of a domain that is no vendor's"
    return wrong_label(key, "") or ""


def made(
    vendor: Vendor, rules: Sequence[ResourceRule], devices: Sequence[Device], given: Sequence[Grant]
) -> dict[str, str | None]:
    """The annotations of a vendor: each of its keys, with None for one that shall not be there.

    Raises:
        VendorError: Its code failed, or made what can not be written.
    """
    try:
        texts = dict(vendor.annotations(rules, devices, given)) if vendor.annotations is not None else {}
        wrong = _wrong(vendor, texts)
    except Exception as exc:  # the vendor's own code: it must not end the agent
        wrong = shorten(f"{type(exc).__name__}: {exc}", 300)
    if wrong:
        raise VendorError(f"{vendor.name}: its plugin fails to make annotations: {wrong}")
    return {key: texts.get(key) for key in vendor.annotation_keys}


def _wrong(vendor: Vendor, texts: Mapping[str, str | None]) -> str:
    keys = vendor.annotation_keys
    if len(keys) > KEYS:
        return f"annotation_keys names {len(keys)}, at most {KEYS} work"
    if wrong := next(filter(None, map(wrong_key, keys)), ""):
        return wrong
    if others := sorted(texts.keys() - set(keys)):
        return f"{shorten(others[0])!r} is not among its annotation_keys"
    kinds = (type(it).__name__ for it in texts.values() if it is not None and not isinstance(it, str))
    if kind := next(kinds, ""):
        return f"a text is needed, or None, and no {kind}"
    size = sum(len(key.encode()) + len(text.encode()) for key, text in texts.items() if text is not None)
    return f"they have {size} bytes, at most {MAX_BYTES} work" if size > MAX_BYTES else ""

"""Annotations of the Node: what a vendor makes of its devices and their allocations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agent.core.allocation.vendor_requests import request_of
from agent.core.errors import VendorError
from agent.core.model import Allocation
from agent.core.publishing.vendor_key_rules import WantedKeys, wrong_domain, wrong_keys
from agent.scheduler_api.candidate import Candidate
from agent.vendor_api.agent import Device, Grant, ResourceRule, Vendor
from agent.vendor_api.kubernetes_names import wrong_label
from agent.vendor_api.text import shorten

#: The limit on all annotations of one object together, in bytes. Source: kubernetes/kubernetes v1.36.0,
#: staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB.
MAX_BYTES = 256 << 10

#: Key to text.
Annotated = WantedKeys[str]


def grants(
    allocations: Iterable[Allocation], vendor: str, pods: Iterable[Candidate] = ()
) -> tuple[Grant, ...]:
    """The vendor's allocations for its annotations, each with its pod where `pods` has the pod."""
    known = {it.uid: it for it in pods}
    return tuple(_grant(it, known) for it in allocations if it.vendor == vendor)


def _grant(allocation: Allocation, pods: Mapping[str, Candidate]) -> Grant:
    uid, container = allocation.container_key or ("", "")
    return Grant(request_of(allocation), allocation.cards, allocation.partitions, pods.get(uid), container)


def wrong_key(key: str) -> str:
    """Why a vendor may not publish an annotation with this key; empty where it may."""
    return wrong_domain(key) or wrong_label(key, "") or ""


def annotations_of(
    vendor: Vendor, rules: Sequence[ResourceRule], devices: Sequence[Device], allocations: Sequence[Grant]
) -> dict[str, str | None]:
    """The annotations that a vendor wants: each of its keys, with None for a key that must not be there.

    Raises:
        VendorError: The vendor's code failed, or made an annotation that cannot be written.
    """
    facts = vendor.publishes
    try:
        texts = dict(facts.annotations(rules, devices, allocations)) if facts.annotations is not None else {}
        wrong = _wrong(vendor, texts)
    except Exception as exc:  # the vendor's own code: it must not end the agent
        wrong = shorten(f"{type(exc).__name__}: {exc}", 300)
    if wrong:
        raise VendorError(f"{vendor.name}: its plugin fails to make annotations: {wrong}")
    return {key: texts.get(key) for key in facts.annotation_keys}


def _wrong(vendor: Vendor, texts: Mapping[str, str | None]) -> str:
    if wrong := wrong_keys("annotation_keys", vendor.publishes.annotation_keys, texts, wrong_key):
        return wrong
    kinds = (type(it).__name__ for it in texts.values() if it is not None and not isinstance(it, str))
    if kind := next(kinds, ""):
        return f"a text is needed, or None, and no {kind}"
    size = sum(len(key.encode()) + len(text.encode()) for key, text in texts.items() if text is not None)
    return f"they have {size} bytes, at most {MAX_BYTES} work" if size > MAX_BYTES else ""

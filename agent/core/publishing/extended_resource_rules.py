"""Extended resources: counts on the Node for a vendor's scheduler that no device plugin serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.core.errors import VendorError
from agent.core.publishing.vendor_key_rules import WantedKeys, wrong_domain, wrong_keys
from agent.vendor_api.agent import Device, ResourceRule, Vendor
from agent.vendor_api.kubernetes_names import wrong_name
from agent.vendor_api.text import shorten

#: The largest count of a vendor. Kubernetes itself counts in 64 bits.
MAX_COUNT = (1 << 31) - 1

#: Name to count.
Extended = WantedKeys[int]


def wrong_key(name: str) -> str:
    """Why a vendor may not publish an extended resource of this name; empty where it may."""
    return wrong_domain(name) or wrong_name(name) or ""


def counts_of(
    vendor: Vendor, rules: Sequence[ResourceRule], devices: Sequence[Device]
) -> dict[str, int | None]:
    """The counts that a vendor wants: each of its names, with None for a count that must not be on the Node.

    Raises:
        VendorError: The vendor's code failed, or made a count that Kubernetes refuses.
    """
    facts = vendor.publishes
    try:
        counts = dict(facts.extended_resources(rules, devices)) if facts.extended_resources else {}
        wrong = _wrong(vendor, rules, counts)
    except Exception as exc:  # the vendor's own code: it must not end the agent
        wrong = shorten(f"{type(exc).__name__}: {exc}", 300)
    if wrong:
        raise VendorError(f"{vendor.name}: its plugin fails to count for the Node: {wrong}")
    return {key: counts.get(key) for key in facts.extended_resource_keys}


def _wrong(vendor: Vendor, rules: Sequence[ResourceRule], counts: Mapping[str, int | None]) -> str:
    keys = vendor.publishes.extended_resource_keys
    if wrong := wrong_keys("extended_resource_keys", keys, counts, wrong_key):
        return wrong
    if served := sorted({vendor.resource, *(it.name for it in rules)} & set(keys)):
        return f"{shorten(served[0])!r} is what the kubelet counts by itself: it is given out"
    odd = (it for it in counts.values() if it is not None and not (type(it) is int and 0 <= it <= MAX_COUNT))
    return next((f"{shorten(repr(it))} is no count from 0 to {MAX_COUNT}" for it in odd), "")

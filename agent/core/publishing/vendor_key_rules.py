"""Rules for keys that a vendor owns on the Node: annotations and extended resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agent.core.publishing.label_rules import domain
from agent.vendor_api.text import shorten

T = TypeVar("T")

#: How many keys of each sort one vendor may have.
KEYS = 16
_RESERVED_DOMAINS = ("kubernetes.io", "k8s.io", "xpu-agent.io")


@dataclass(frozen=True)  # with slots Python 3.11 cannot make an Owned[T]
class WantedKeys(Generic[T]):
    """What the vendors want so far: key to value, None for a key that must not be there.

    `awaited`: keys that stay as they are, because their vendor has made no values yet or cannot make them.
    """

    values: Mapping[str, T | None] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()


def wrong_domain(key: str) -> str:
    """Why the domain of the key cannot be a vendor's; empty where it can."""
    key_domain = domain(key)
    if not key_domain:
        return f"{shorten(key)!r} has no domain; use one such as vendor.com/devices"
    if any(key_domain == it or key_domain.endswith(f".{it}") for it in _RESERVED_DOMAINS):
        return f"{shorten(key)!r} is of a domain that is no vendor's"
    return ""


def wrong_keys(called: str, keys: Sequence[str], made: Iterable[str], wrong: Callable[[str], str]) -> str:
    """Why a vendor may not have these keys; empty where it may.

    `keys` are the keys that the plugin names in its field `called`, `made` the keys that its code made.
    `wrong` returns why one key is refused.
    """
    if len(keys) > KEYS:
        return f"{called} names {len(keys)}, at most {KEYS} work"
    if why := next(filter(None, map(wrong, keys)), ""):
        return why
    others = sorted(set(made) - set(keys))
    return f"{shorten(others[0])!r} is not among its {called}" if others else ""

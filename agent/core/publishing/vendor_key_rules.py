"""What vendors want of the Node under keys of their own: annotations, extended resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agent.core.publishing.label_rules import domain
from agent.vendor_api.text import shorten

T = TypeVar("T")

#: Keys of one vendor, of each sort.
KEYS = 16
_NOBODYS = ("kubernetes.io", "k8s.io", "xpu-agent.io")


@dataclass(frozen=True)  # with slots Python 3.11 cannot make an Owned[T]
class WantedKeys(Generic[T]):
    """What the vendors make so far: key to value, None where there shall be none.

    `awaited`: keys that stay as they are, of vendors who have not spoken or cannot.
    """

    values: Mapping[str, T | None] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()


def wrong_domain(key: str) -> str:
    """Why the key cannot be a vendor's own, by its domain; empty where it can."""
    of = domain(key)
    if not of:
        return f"{shorten(key)!r} has no domain; use one such as vendor.com/devices"
    if any(of == it or of.endswith(f".{it}") for it in _NOBODYS):
        return f"{shorten(key)!r} is of a domain that is no vendor's"
    return ""


def wrong_keys(called: str, keys: Sequence[str], made: Iterable[str], wrong: Callable[[str], str]) -> str:
    """Why the vendor may not have made these; `called` names them, `wrong` judges one."""
    if len(keys) > KEYS:
        return f"{called} names {len(keys)}, at most {KEYS} work"
    if why := next(filter(None, map(wrong, keys)), ""):
        return why
    others = sorted(set(made) - set(keys))
    return f"{shorten(others[0])!r} is not among its {called}" if others else ""

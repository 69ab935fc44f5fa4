"""Resource names that a scheduler keeps for itself, so that no vendor may serve them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.vendor_api.kubernetes_names import wrong_name
from agent.vendor_api.text import shorten


@dataclass(frozen=True, slots=True)
class Reserved:
    """Resource names that a scheduler's programs write to the Node. No device plugin may serve them."""

    #: Prefix of the names: `acme.com/`.
    prefix: str
    #: The reason as a clause, and what would work: `is Acme's own; choose another domain`.
    why: str


def unserved_name(name: str, reserved: Iterable[Reserved] = ()) -> str:
    """Why the node cannot serve a resource of this name; empty where it can."""
    return wrong_name(name) or reserved_name(name, reserved)


def reserved_name(name: str, reserved: Iterable[Reserved]) -> str:
    """Why no device plugin may serve a resource of this name; empty where one may."""
    owner = next((it for it in reserved if name.startswith(it.prefix)), None)
    return f"the resource name '{shorten(name)}' {owner.why}" if owner else ""

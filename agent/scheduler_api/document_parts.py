"""The parts of a document that others wrote, whatever stands in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def part_of(document: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    """The mapping there; empty where it is none, or there is no document."""
    found = document.get(key) if document is not None else None
    return found if isinstance(found, Mapping) else {}


def text(of: Mapping[str, Any], key: str) -> str:
    """The text at this key; empty where there is none."""
    value = of.get(key)
    return value if isinstance(value, str) else ""


def rows_of(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The mappings of the list there; none where it is no list."""
    found = document.get(key)
    return [it for it in found if isinstance(it, Mapping)] if isinstance(found, list) else []

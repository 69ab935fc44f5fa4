"""Reads parts of a decoded JSON document that any author may have written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def part_of(document: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    """The mapping at this key; empty for another type, or without a document."""
    found = document.get(key) if document is not None else None
    return found if isinstance(found, Mapping) else {}


def text(of: Mapping[str, Any], key: str) -> str:
    """The text at this key; empty for another type."""
    value = of.get(key)
    return value if isinstance(value, str) else ""


def rows_of(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The mappings in the list at this key; empty for another type."""
    found = document.get(key)
    return [it for it in found if isinstance(it, Mapping)] if isinstance(found, list) else []

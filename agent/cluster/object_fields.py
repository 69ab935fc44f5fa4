"""Reads fields of API objects as the type that they should have, whatever a stranger wrote there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent.scheduler_api.document_parts import part_of, text

__all__ = ["text", "texts"]


def texts(of: Mapping[str, Any], key: str, longest: int) -> Iterator[tuple[str, str]]:
    """The texts of the mapping at this key, such as labels; one of more characters is left out."""
    for name, value in part_of(of, key).items():
        if isinstance(name, str) and isinstance(value, str) and len(value) <= longest:
            yield name, value

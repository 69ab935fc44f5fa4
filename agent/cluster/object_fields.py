"""Reads fields of API objects with the types they should have, whatever another client wrote there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent.scheduler_api.document_parts import part_of, text

__all__ = ["text", "texts"]


def texts(of: Mapping[str, Any], key: str, longest: int) -> Iterator[tuple[str, str]]:
    """The texts of the mapping at the key, such as labels; texts above `longest` characters are left out."""
    for name, value in part_of(of, key).items():
        if isinstance(name, str) and isinstance(value, str) and len(value) <= longest:
            yield name, value

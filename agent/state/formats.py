"""The formats that the checkpoint has had, and the way from each into the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: The format that is written.
FORMAT = 2
Document = Mapping[str, Any]


def _without_sightings(document: Document) -> Document:
    """Format 1 noted whether a pod had been seen alive. Whether it is gone is proven in another way now."""
    allocations = [
        {key: value for key, value in it.items() if key != "seen_alive"}
        for it in document.get("allocations", ())
    ]
    return {**document, "allocations": allocations}


#: Format to what makes a document of the next one.
MIGRATIONS: Mapping[int, Callable[[Document], Document]] = {1: _without_sightings}


def migrated(document: Document, version: int) -> Document:
    """The document in today's format.

    Raises:
        Exception: It is not what its format says; of any kind, as nothing in it was looked at before.
    """
    for step in range(version, FORMAT):
        document = MIGRATIONS[step](document)
    return document

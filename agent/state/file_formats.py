"""The formats that our files have had, and the way from each into the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: The checkpoint's format that is written.
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


def _version_since_2(version: int) -> bytes:
    return b"" if version == 1 else b"%d " % version


@dataclass(frozen=True, slots=True)
class Formats:
    """Those of one kind of file."""

    #: What an error calls the file.
    what: str
    #: The one that is written.
    newest: int
    #: From a format to what the checksum covers beside the content: a file must not be taken for another.
    mark: Callable[[int], bytes]
    steps: Mapping[int, Callable[[Document], Document]] = field(default_factory=dict)


CHECKPOINT = Formats("a checkpoint", FORMAT, _version_since_2, MIGRATIONS)
LAST_CONFIG = Formats("a last configuration", 1, lambda version: b"config %d " % version)


def migrated(document: Document, version: int, formats: Formats = CHECKPOINT) -> Document:
    """The document in today's format.

    Raises:
        Exception: It is not what its format says; of any kind, as nothing in it was looked at before.
    """
    for step in range(version, formats.newest):
        document = formats.steps[step](document)
    return document

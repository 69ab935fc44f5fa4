"""The formats of the agent's files, and the migration from each to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

#: The checkpoint format that is written.
FORMAT = 2
Document = Mapping[str, Any]


def _without_sightings(document: Document) -> Document:
    """Format 1 had `seen_alive`, whether a pod had been seen running; later formats do not need it."""
    allocations = [
        {key: value for key, value in allocation.items() if key != "seen_alive"}
        for allocation in document.get("allocations", ())
    ]
    return {**document, "allocations": allocations}


#: By format: the function that makes a document of the next format.
MIGRATIONS: Mapping[int, Callable[[Document], Document]] = {1: _without_sightings}


def _version_since_2(version: int) -> bytes:
    return b"" if version == 1 else b"%d " % version


class Formats(Struct, frozen=True):
    """The formats of one kind of file."""

    #: The file's name in error texts.
    what: str
    #: The format that is written.
    newest: int
    #: By format: bytes that the checksum covers besides the content, so that kinds of files are told apart.
    mark: Callable[[int], bytes]
    steps: Mapping[int, Callable[[Document], Document]] = field(default_factory=dict)


CHECKPOINT = Formats("a checkpoint", FORMAT, _version_since_2, MIGRATIONS)
USAGE_HISTORY = Formats("a usage history", 1, lambda version: b"usage history %d " % version)
LAST_CONFIG = Formats("a last configuration", 1, lambda version: b"config %d " % version)


def migrated(document: Document, version: int, formats: Formats = CHECKPOINT) -> Document:
    """The document in the newest format.

    Raises:
        Exception: Of any type, because the content was not checked against its format before.
    """
    for step in range(version, formats.newest):
        document = formats.steps[step](document)
    return document

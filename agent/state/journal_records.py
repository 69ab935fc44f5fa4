"""The format of the journal: one line for each change of the ledger since the checkpoint was written.

A line is a CRC-32 in hexadecimal digits, a space, JSON, and a line feed. The CRC covers the JSON of the line
and of all lines before, so that a line that is lost or moved shows, too. The first line names the format and
the checksum of the checkpoint that the journal continues. Each format keeps the form of that line.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from agent.core.allocation.ledger_change import LedgerChange
from agent.core.model import Allocation
from agent.state.file_envelope import UNDECODABLE, Unusable
from agent.vendor_api.text import shorten

#: The journal format that is written.
FORMAT = 1
_OURS = re.compile(rb'[0-9a-f]{8} \{"version":')
#: Bytes of a line before its JSON.
_CRC = 9
_NAMES = tuple(it.name for it in fields(Allocation) if it.name != "id")


class _Header(msgspec.Struct):
    version: int
    #: The checksum of the checkpoint before all changes of the journal.
    continues: str = ""


class _Gone(msgspec.Struct, tag="gone", tag_field="what"):
    """The ledger no longer has this allocation."""

    id: str


class _Folded(msgspec.Struct, tag="folded", tag_field="what"):
    """A checkpoint with all changes so far is about to be written. `into` is its checksum."""

    into: str


def _fields_of_change() -> list[tuple[str, Any, Any]]:
    hints = get_type_hints(Allocation)
    return [(name, hints[name] | msgspec.UnsetType, msgspec.UNSET) for name in _NAMES]


#: The fields of an allocation that have changed. `moved`: the allocation is the newest one now.
_Changed: Any = msgspec.defstruct(
    "_Changed",
    [("id", str), ("moved", bool, False), *_fields_of_change()],
    tag="changed",
    tag_field="what",
    omit_defaults=True,
)
_RECORD: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Gone | _Folded | _Changed)


class JournalEnd(Struct, frozen=True):
    """Where the next line begins, and the CRC of all lines before."""

    size: int = 0
    crc: int = 0


class Replay(Struct, frozen=True):
    """The allocations of a checkpoint with the changes of its journal."""

    allocations: tuple[Allocation, ...]
    #: The end of the last whole line that is as it was written.
    end: JournalEnd
    changes: int = 0
    #: What is wrong with the line at `end`; empty where there is no line, or an incomplete one.
    damage: str = ""


def header(checksum: str) -> bytes:
    """The JSON of the first line, for a checkpoint with this checksum."""
    return msgspec.json.encode(_Header(FORMAT, checksum))


def folded(checksum: str) -> bytes:
    """The JSON of the line before a checkpoint with this checksum is written."""
    return msgspec.json.encode(_Folded(checksum))


def change(changed: LedgerChange) -> bytes:
    """The JSON of a change.

    Raises:
        ValueError: A text of the allocation is no UTF-8.
    """
    if changed.after is None:
        return msgspec.json.encode(_Gone(changed.id))
    values = {name: getattr(changed.after, name) for name in changed.fields if name != "id"}
    return msgspec.json.encode(_Changed(changed.id, moved=changed.is_moved, **values))


def lines(payloads: Iterable[bytes], end: JournalEnd) -> tuple[bytes, JournalEnd]:
    """The lines to append at `end`, and the end after them."""
    found, crc = [], end.crc
    for payload in payloads:
        crc = zlib.crc32(payload, crc)
        found.append(b"%08x %s\n" % (crc, payload))
    text = b"".join(found)
    return text, JournalEnd(end.size + len(text), crc)


def replayed(content: bytes, checksum: str, allocations: Sequence[Allocation]) -> Replay:
    """The allocations of the checkpoint with this checksum, and the changes since.

    Changes before a line that names this checkpoint are part of the checkpoint. What follows the last line
    feed was not written to its end, and is left out.

    Raises:
        Unusable: The content is no journal, is of a later release, or continues another checkpoint.
    """
    first, *others = content.split(b"\n")[:-1] or [b""]
    if not first and header_line(checksum).startswith(content):
        return Replay(tuple(allocations), JournalEnd())
    continues, end = _opened(first, content)
    known = _by_id(allocations) if continues == checksum else None
    changes, damage = 0, ""
    for number, line in enumerate(others, 2):
        try:
            record, after = _record(line, end)
            if isinstance(record, _Folded) and record.into == checksum:
                known, changes = _by_id(allocations), 0
            elif known is not None and not isinstance(record, _Folded):
                _apply(record, known)
                changes += 1
        except (*UNDECODABLE, TypeError) as exc:
            damage = f"line {number} was torn or edited ({shorten(str(exc), 200)})"
            break
        end = after
    if known is None:
        raise Unusable("foreign", "it continues another checkpoint")
    return Replay(tuple(known.values()), end, changes, damage)


def header_line(checksum: str) -> bytes:
    """The first line, for a checkpoint with this checksum."""
    text, _ = lines([header(checksum)], JournalEnd())
    return text


def _by_id(allocations: Iterable[Allocation]) -> dict[str, Allocation]:
    return {it.id: it for it in allocations}


def _opened(line: bytes, content: bytes) -> tuple[str, JournalEnd]:
    """The checksum of the checkpoint that the journal with this first line continues, and the line's end.

    Raises:
        Unusable: It is the line of a later release, or of no journal.
    """
    if not content.strip(b"\0"):
        raise Unusable("empty", "it is empty")  # a power cut can leave a file of zeros
    if not _OURS.match(line):
        raise Unusable("foreign", "not a journal of this agent")
    try:
        found = msgspec.json.decode(line[_CRC:], type=_Header)
        if found.version > FORMAT:
            raise Unusable("newer", f"format {found.version}, this agent reads up to {FORMAT}")
        return found.continues, _end_after(line, JournalEnd())
    except UNDECODABLE as exc:
        raise Unusable("corrupt", f"its first line was torn or edited ({exc})") from exc


def _record(line: bytes, end: JournalEnd) -> tuple[Any, JournalEnd]:
    """The record in a line that begins at `end`, and the end of that line.

    Raises:
        UNDECODABLE: The line is not as it was written.
    """
    after = _end_after(line, end)
    return _RECORD.decode(line[_CRC:]), after


def _end_after(line: bytes, end: JournalEnd) -> JournalEnd:
    crc = zlib.crc32(line[_CRC:], end.crc)
    if line[:_CRC] != b"%08x " % crc:
        raise msgspec.ValidationError("its checksum does not match")
    return JournalEnd(end.size + len(line) + 1, crc)


def _apply(record: Any, known: dict[str, Allocation]) -> None:
    """Apply a change to the allocations.

    Raises:
        TypeError: A field of a new allocation is lacking.
    """
    if isinstance(record, _Gone):
        known.pop(record.id, None)
        return
    found = ((name, getattr(record, name)) for name in _NAMES)
    values = {name: value for name, value in found if value is not msgspec.UNSET}
    before = known.get(record.id)
    after = replace(before, **values) if before else Allocation(id=record.id, **values)
    if record.moved:
        known.pop(record.id, None)
    known[record.id] = after

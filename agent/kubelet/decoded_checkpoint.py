"""A decoded checkpoint of the kubelet with its bytes: of the next one only new entries are decoded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from .kubelet_checkpoint import (
    WRONG,
    CheckpointEntry,
    KubeletCheckpoint,
    parse,
    parse_entry,
    parse_registered,
    prove,
)

#: The form in which Go's encoding/json writes the file: no space, and the fields in the order of the structs.
#: Python's decoder takes other forms, too; these are decoded whole.
_START = b'{"Data":{"PodDeviceEntries":['
_ENTRY = b'{"PodUID":"'
_BETWEEN = b"}," + _ENTRY
_LISTS = b'}],"RegisteredDevices":'
_CHECKSUM = b'},"Checksum":'
_NUMBER = re.compile(rb"(?:0|[1-9][0-9]*)\}\s*")


class _Parts(Struct, frozen=True):
    """The bytes of the file's parts to what they mean; none where the file has another form than Go's.

    The kubelet writes the entries in another order each time.
    """

    entries: Mapping[bytes, CheckpointEntry] = field(default_factory=dict)
    lists: bytes = b"{}"
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))


class DecodedCheckpoint(Struct, frozen=True):
    """The bytes of a file and its content. Keeps nothing of the files before."""

    #: None before the first file.
    raw: bytes | None = None
    content: KubeletCheckpoint = field(default_factory=KubeletCheckpoint)
    is_proven: bool = False
    parts: _Parts = field(default_factory=_Parts)

    def next(self, raw: bytes) -> DecodedCheckpoint:
        """Decode the bytes of the file as it is now.

        Raises:
            ValueError: A value is wrong. Wrong bytes cause the other errors of `WRONG`, too.
        """
        if raw == self.raw:
            return self
        try:
            pieces, lists = _cut(raw)
            entries = {
                piece: known if (known := self.parts.entries.get(piece)) is not None else _entry(piece)
                for piece in pieces
            }
            same = lists == self.parts.lists
            registered = self.parts.registered if same else parse_registered(_value(lists))
        except WRONG:
            return DecodedCheckpoint(raw, parse(raw))
        content = KubeletCheckpoint(tuple(entries[piece] for piece in pieces), registered)
        return DecodedCheckpoint(raw, content, parts=_Parts(entries, lists, registered))

    def proven(self) -> DecodedCheckpoint:
        """Verify the checksum, once for the same bytes.

        Raises:
            ValueError: The checksum is wrong. Wrong bytes cause the other errors of `WRONG`, too.
        """
        if self.is_proven or self.raw is None:
            return self
        prove(self.raw)
        return replace(self, is_proven=True)


def _cut(raw: bytes) -> tuple[list[bytes], bytes]:
    """The entries, each without its braces and first key, and the lists of registered devices.

    A quotation mark within a text has a backslash before it. So a separator that is found stands between
    values, and the cuts are right wherever each part proves to be one whole value.

    Raises:
        ValueError: The file has another form.
    """
    start = len(_START) + len(_ENTRY)
    end = raw.rfind(_LISTS)
    last = raw.rfind(_CHECKSUM)
    if not (
        raw.startswith(_START + _ENTRY)
        and start <= end < last
        and _NUMBER.fullmatch(raw, last + len(_CHECKSUM))
    ):
        raise ValueError("not in the form of the kubelet")
    return raw[start:end].split(_BETWEEN), raw[end + len(_LISTS) : last]


def _entry(piece: bytes) -> CheckpointEntry:
    return parse_entry(_value(_ENTRY + piece + b"}"))


def _value(data: bytes) -> Any:
    # As json.loads decodes the bytes of the whole file, which it takes for UTF-8 because of its first bytes.
    return json.loads(data.decode("utf-8", "surrogatepass"))

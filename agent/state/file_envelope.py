"""What is around the content of a file of ours: its format and a checksum that shows damage."""

from __future__ import annotations

import hashlib
from typing import Literal, TypeVar

import msgspec

from agent.state.file_formats import CHECKPOINT, Formats, migrated

T = TypeVar("T")
#: Why a file cannot be used. `foreign`: no agent wrote it. `unreadable`: the disk's fault.
Why = Literal["newer", "corrupt", "foreign", "empty", "unreadable"]
#: How every file of ours begins, of whichever format.
_BEGINNING = b'{"version":'
#: What the decoder raises on bytes that are not ours: wrong shape, not UTF-8, nested without end.
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Unusable(Exception):
    """Raised when a file is there and cannot be used; the text says what was found."""

    def __init__(self, why: Why, found: str) -> None:
        super().__init__(found)
        self.why: Why = why


class _Version(msgspec.Struct):
    """All that is asked of a file that may be of a release to come."""

    version: int


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    checksum: str
    data: msgspec.Raw


def sealed(content: object, formats: Formats = CHECKPOINT) -> bytes:
    """The content as a file of today's format.

    Raises:
        ValueError: A text in it is no UTF-8.
    """
    data = msgspec.json.encode(content)
    version = formats.newest
    return msgspec.json.encode(_Envelope(version, _checksum(version, data, formats), msgspec.Raw(data)))


def opened(text: bytes, shape: type[T], formats: Formats = CHECKPOINT) -> T:
    """The content of a file of any format up to today's.

    Raises:
        Unusable: It is damaged, newer, or not ours.
    """
    if not text.strip(b"\0"):
        raise Unusable("empty", "it is empty")  # zeros are what a power cut leaves of a file
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version > formats.newest:
            raise Unusable("newer", f"format {version}, this agent reads up to {formats.newest}")
        envelope = msgspec.json.decode(text, type=_Envelope)
    except _UNDECODABLE as exc:
        raise _not_ours(text, exc, formats) from exc
    data = bytes(envelope.data)
    if envelope.checksum != _checksum(version, data, formats):
        raise Unusable("corrupt", "its checksum does not match, it is torn or was edited")
    return _typed(data, version, shape, formats)


def _typed(data: bytes, version: int, shape: type[T], formats: Formats) -> T:
    try:
        if version == formats.newest:
            return msgspec.json.decode(data, type=shape)
        return msgspec.convert(migrated(msgspec.json.decode(data), version, formats), shape)
    except Exception as exc:
        # A document that is whole and nonsense can break a migration in any way.
        raise Unusable("corrupt", f"its content is not what format {version} says ({exc!r})") from exc


def _not_ours(text: bytes, exc: Exception, formats: Formats) -> Unusable:
    if text.startswith(_BEGINNING) or _BEGINNING.startswith(text):
        return Unusable("corrupt", f"it is torn or was edited ({exc})")
    return Unusable("foreign", f"not {formats.what} of ours ({exc})")


def _checksum(version: int, data: bytes, formats: Formats) -> str:
    digest = hashlib.sha256(formats.mark(version))
    digest.update(data)
    return f"sha256:{digest.hexdigest()}"

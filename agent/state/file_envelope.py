"""The envelope of the agent's files: format and checksum, which show damage."""

from __future__ import annotations

import hashlib
from typing import Literal, TypeVar

import msgspec

from agent.state.file_formats import CHECKPOINT, Formats, migrated

T = TypeVar("T")
#: Why a file cannot be used. `foreign`: the agent did not write it. `unreadable`: the disk failed.
Why = Literal["newer", "corrupt", "foreign", "empty", "unreadable"]
#: How every file of the agent begins, in any format.
_BEGINNING = b'{"version":'
#: Errors of the decoder for other bytes: wrong type, not UTF-8, nested too deeply.
UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Unusable(Exception):
    """Raised for a file that exists but cannot be used; the text says what was found."""

    def __init__(self, why: Why, found: str) -> None:
        super().__init__(found)
        self.why: Why = why


class _Version(msgspec.Struct):
    """The one field that is read of a file that may come from a later release."""

    version: int


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    checksum: str
    data: msgspec.Raw


def sealed(content: object, formats: Formats = CHECKPOINT) -> bytes:
    """Encode the content in the newest format.

    Raises:
        ValueError: A text of the content is no UTF-8.
    """
    data = msgspec.json.encode(content)
    version = formats.newest
    return msgspec.json.encode(_Envelope(version, _checksum(version, data, formats), msgspec.Raw(data)))


def checksum_of(text: bytes) -> str:
    """The checksum in a file that this process sealed, or has opened."""
    return msgspec.json.decode(text, type=_Envelope).checksum


def opened(text: bytes, shape: type[T], formats: Formats = CHECKPOINT) -> T:
    """Decode a file of any format up to the newest.

    Raises:
        Unusable: The file is damaged, from a later release, or not the agent's.
    """
    if not text.strip(b"\0"):
        raise Unusable("empty", "it is empty")  # a power cut can leave a file of zeros
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version > formats.newest:
            raise Unusable("newer", f"format {version}, this agent reads up to {formats.newest}")
        envelope = msgspec.json.decode(text, type=_Envelope)
    except UNDECODABLE as exc:
        raise _unusable(text, exc, formats) from exc
    data = bytes(envelope.data)
    if envelope.checksum != _checksum(version, data, formats):
        raise Unusable("corrupt", "its checksum does not match, it is torn or was edited")
    return _convert(data, version, shape, formats)


def _convert(data: bytes, version: int, shape: type[T], formats: Formats) -> T:
    try:
        if version == formats.newest:
            return msgspec.json.decode(data, type=shape)
        return msgspec.convert(migrated(msgspec.json.decode(data), version, formats), shape)
    except Exception as exc:
        # A valid document with unexpected content can break a migration in any way.
        raise Unusable("corrupt", f"its content is not what format {version} says ({exc!r})") from exc


def _unusable(text: bytes, exc: Exception, formats: Formats) -> Unusable:
    if text.startswith(_BEGINNING) or _BEGINNING.startswith(text):
        return Unusable("corrupt", f"it is torn or was edited ({exc})")
    return Unusable("foreign", f"not {formats.what} of this agent ({exc})")


def _checksum(version: int, data: bytes, formats: Formats) -> str:
    digest = hashlib.sha256(formats.mark(version))
    digest.update(data)
    return f"sha256:{digest.hexdigest()}"

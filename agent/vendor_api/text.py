"""Strangers' text (pods, hardware, files), made fit for a message, a log line or a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with control characters, half characters and turns of direction spelled out."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def shorten(text: str, limit: int = 80) -> str:
    """The text in printable ASCII, and bounded."""
    clean = text.encode("unicode_escape").decode("ascii")
    return clean if len(clean) <= limit else f"{clean[:limit]}… ({len(clean)} characters)"


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")

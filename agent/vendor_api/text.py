"""Makes text of pods, hardware and files fit for a message, a log line or a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with control characters, surrogates and marks of text direction as escapes."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def shorten(text: str, limit: int = 80) -> str:
    """The text in printable ASCII, with at most `limit` characters and a note where it is longer."""
    clean = text.encode("unicode_escape").decode("ascii")
    return clean if len(clean) <= limit else f"{clean[:limit]}… ({len(clean)} characters)"


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")

"""Makes text of pods, hardware and files fit for a message, a log line or a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with control characters, surrogates and marks of text direction as escapes."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def shorten(text: str, limit: int = 80) -> str:
    """The text in printable ASCII, with at most `limit` characters and a note where it is longer."""
    clean = text.encode("unicode_escape").decode("ascii")
    return clean if len(clean) <= limit else f"{clean[:limit]}… ({len(clean)} characters)"


def error_text(exc: BaseException, limit: int = 300) -> str:
    """The type and the text of an error, as `shorten`; of an error that cannot be worded the type alone."""
    kind = type(exc).__name__
    try:
        return shorten(f"{kind}: {exc}", limit)
    except BaseException:  # a plugin's own class
        return kind


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")

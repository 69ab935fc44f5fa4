"""Where in a file something stands, and how an error names it."""

from __future__ import annotations

from collections.abc import Iterable

from agent.core.errors import ConfigError
from agent.core.text import shorten

Path = tuple[str | int, ...]


def camel(name: str) -> str:
    """`max_bytes` as the file writes it: maxBytes."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def dotted(path: Path) -> str:
    """The path as people write it: vendors.nvidia.resources[0].sharing."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{shorten(step)}" if text else shorten(step)
    return text


def refused(source: str, line: int | None, path: Path, message: str) -> ConfigError:
    """An error that names the file, the line, the key and what is wrong."""
    where = source if line is None else f"{source}:{line}"
    return ConfigError(f"{where}: {dotted(path)}: {message}" if path else f"{where}: {message}")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the key that was probably meant, or at all there are."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(word[:100], names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(names)}"


def found(value: object) -> str:
    """What stands there, in the file's words."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return f"the text '{shorten(value, 60)}'"
        case int() | float():
            return f"the number {shorten(str(value), 30)}"
        case list() | tuple():
            return "a list"
    return "a mapping"

"""Places of configured values, and how errors name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import ConfigError
from agent.vendor_api.text import shorten

if TYPE_CHECKING:
    from agent.config.yaml_document import YamlNode

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class KeyLocation:
    """What sets a key and all below it: a flag, a variable, or a part of a file."""

    source: str
    #: In a file: the node, and its path.
    node: YamlNode | None = None
    path: Path = ()

    def told(self, below: Path, message: str) -> str:
        """The message with this place, and the line where it is one of a file."""
        if self.node is None:
            return f"{self.source}: {message}"
        return _located(self.source, self.node.line_of(below), (*self.path, *below), message)

    @property
    def where(self) -> str:
        """The place alone: --log-level, or /etc/x/nodes-config:2: [0].mode."""
        if self.node is None:
            return self.source
        return _located(self.source, self.node.line_of(()), (), dotted(self.path))


#: Places by path of the effective configuration; the longest path above a value applies to it.
Places = Mapping[Path, KeyLocation]


def told(places: Places, path: Path, message: str) -> str:
    """The message with the place that sets the value at `path`, in the form of that place."""
    for depth in range(len(path), -1, -1):
        place = places.get(path[:depth])
        if place is not None:
            return place.told(path[depth:], message)
    return f"{dotted(path)}: {message}"


def is_said(places: Places, path: Path) -> bool:
    """Whether a place sets the value at `path`, or all above it."""
    return any(
        path[: len(above)] == above and (place.node is None or place.node.has(path[len(above) :]))
        for above, place in places.items()
    )


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
            text += f".{shorten(str(step))}" if text else shorten(str(step))
    return text


def refused(source: str, line: int | None, path: Path, message: str) -> ConfigError:
    """An error that names the file, the line, the key and what is wrong."""
    return ConfigError(_located(source, line, path, message))


def _located(source: str, line: int | None, path: Path, message: str) -> str:
    where = source if line is None else f"{source}:{line}"
    return f"{where}: {dotted(path)}: {message}" if path else f"{where}: {message}"


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

"""Places of configured values, and how errors name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.core.errors import ConfigError
from agent.vendor_api.config_inputs import Path, YamlNode, dotted, located


@dataclass(frozen=True, slots=True)
class KeyLocation:
    """What sets a key and all below it: a flag, a variable, or a part of a file."""

    source: str
    #: In a file: the node, and its path.
    node: YamlNode | None = None
    path: Path = ()

    def with_place(self, below: Path, message: str) -> str:
        """The message with this place, and the line where it is one of a file."""
        if self.node is None:
            return f"{self.source}: {message}"
        return located(self.source, self.node.line_of(below), (*self.path, *below), message)

    @property
    def where(self) -> str:
        """The place alone: --log-level, or /etc/x/nodes-config:2: [0].mode."""
        if self.node is None:
            return self.source
        return located(self.source, self.node.line_of(()), (), dotted(self.path))


#: Places by path of the effective configuration; the longest path above a value applies to it.
Places = Mapping[Path, KeyLocation]


def with_place(places: Places, path: Path, message: str) -> str:
    """The message with the place that sets the value at `path`, in the form of that place."""
    for depth in range(len(path), -1, -1):
        place = places.get(path[:depth])
        if place is not None:
            return place.with_place(path[depth:], message)
    return f"{dotted(path)}: {message}"


def is_set(places: Places, path: Path) -> bool:
    """Whether a place sets the value at `path`, or all above it."""
    return any(
        path[: len(above)] == above and (place.node is None or place.node.has(path[len(above) :]))
        for above, place in places.items()
    )


def camel(name: str) -> str:
    """`max_bytes` as the file writes it: maxBytes."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def refused(source: str, line: int | None, path: Path, message: str) -> ConfigError:
    """An error that names the file, the line, the key and what is wrong."""
    return ConfigError(located(source, line, path, message))

"""What a vendor reads beside the agent's own configuration: files, flags and variables of other programs.

A plugin that replaces another program reads that program's configuration. `ConfigInputs` names the files, the
command-line flags and the environment variables; the functions of the plugin turn their content into
settings of the vendor. The functions are pure: the agent reads the files, and parses YAML. An error names the
file, the line and the key, as errors of the agent's own configuration do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agent.vendor_api.config_flags import FlagGroup, FlagValue
from agent.vendor_api.text import shorten

#: The keys and indices that lead to a value.
Path = tuple[str | int, ...]


class ConfigFileError(ValueError):
    """Raised by a plugin's function where a file cannot be used; the text names the place."""


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value of a YAML document and the line where the value, or its key, stands."""

    value: bool | int | float | str | Mapping[str, YamlNode] | tuple[YamlNode, ...] | None
    line: int

    def plain(self) -> Any:
        """The value without its lines, as JSON would hold it."""
        match self.value:
            case Mapping():
                return {key: child.plain() for key, child in self.value.items()}
            case tuple():
                return [child.plain() for child in self.value]
        return self.value

    def line_of(self, path: Path) -> int:
        """The line of the deepest step of the path that exists."""
        node = self
        for step in path:
            child = node._child(step)
            if child is None:
                break
            node = child
        return node.line

    def has(self, path: Path) -> bool:
        """Whether the whole path exists."""
        node: YamlNode | None = self
        for step in path:
            node = node._child(step) if node is not None else None
        return node is not None

    def _child(self, step: str | int) -> YamlNode | None:
        if isinstance(self.value, Mapping):
            return self.value.get(str(step))
        if isinstance(self.value, tuple) and isinstance(step, int) and step < len(self.value):
            return self.value[step]
        return None


@dataclass(frozen=True, slots=True)
class FileValue:
    """A value of a YAML file with its place: the file's name, and the path to the value."""

    source: str
    node: YamlNode
    path: Path = ()

    @property
    def value(self) -> Any:
        """A plain value; a Mapping or a tuple of nodes for a mapping or a list; None for nothing."""
        return self.node.value

    def plain(self) -> Any:
        """The value and all below it, as JSON would hold it."""
        return self.node.plain()

    def keys(self) -> Mapping[str, FileValue]:
        """The keys of a mapping with their values; none where the value is empty.

        Raises:
            ConfigFileError: The value is no mapping.
        """
        if self.value is None:
            return {}
        if not isinstance(self.value, Mapping):
            raise self.refused(f"expected a mapping of keys, found {found(self.value)}")
        return {key: replace(self, node=node, path=(*self.path, key)) for key, node in self.value.items()}

    def elements(self) -> tuple[FileValue, ...]:
        """The elements of a list; none where the value is empty.

        Raises:
            ConfigFileError: The value is no list.
        """
        if self.value is None:
            return ()
        if not isinstance(self.value, tuple):
            raise self.refused(f"expected a list, found {found(self.value)}")
        return tuple(
            replace(self, node=node, path=(*self.path, index)) for index, node in enumerate(self.value)
        )

    def placed(self, message: str) -> str:
        """The message with the file, the line and the key of the value."""
        return located(self.source, self.node.line, self.path, message)

    def refused(self, message: str) -> ConfigFileError:
        """An error with the message and the place of the value, for the caller to raise."""
        return ConfigFileError(self.placed(message))


@dataclass(frozen=True, slots=True)
class FileFlag:
    """A flag of the vendor, by its name, that a file sets."""

    name: str
    value: FlagValue
    place: FileValue


@dataclass(frozen=True, slots=True)
class FileContent:
    """What a file of another program means for the vendor."""

    #: Settings of the vendor: plain JSON values.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The path of a setting to the value that says it, or to the words for the place: later errors name it.
    places: Mapping[Path, FileValue | str] = field(default_factory=dict)
    #: Flags of the vendor that the file sets. The environment and the command line go before these.
    flags: tuple[FileFlag, ...] = ()
    #: What a person should know of the file, each with its place.
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigFormat:
    """A configuration file of another program, which the agent takes in place of its own.

    `read` has the document and the vendor's flags that the environment and the command line set, by name, in
    rising precedence. Raises ConfigFileError. The vendor counts as enabled.
    """

    #: What the file is called in messages: NVIDIA's file.
    title: str
    #: Keys at the top of the document that tell it from the agent's own file; compared in lower case.
    keys: tuple[str, ...]
    read: Callable[[FileValue, Mapping[str, FlagValue]], FileContent]


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files that a key of the vendor names, as the agent found them."""

    #: The path that the configuration has.
    path: str
    #: The name of each file to its text.
    texts: Mapping[str, str]
    #: The name of each file to its parsed document, where `ConfigFiles.yaml` asks for documents.
    documents: Mapping[str, FileValue] = field(default_factory=dict)
    #: Names of further files in the directory, at most five.
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """Files of another program that a key of the vendor in the agent's configuration names.

    `read` has the files and the name of this node (empty: unknown). Raises ConfigFileError.
    """

    #: `configDir` names a directory, `configFile` one file.
    key: Literal["configDir", "configFile"]
    #: The settings that the files set, which the configuration then may not set.
    settings: tuple[str, ...]
    read: Callable[[FoundFiles, str], FileContent]
    #: Of a directory: the names of the files that are read.
    names: tuple[str, ...] = ()
    #: Whether each file is YAML.
    yaml: bool = False
    #: What to do where the path cannot be read, as a clause.
    remedy: str = "mount the file, or name none"


@dataclass(frozen=True, slots=True)
class ConfigInputs:
    """All that a vendor reads beside the agent's own configuration, whatever its settings."""

    flags: FlagGroup | None = None
    formats: tuple[ConfigFormat, ...] = ()
    files: tuple[ConfigFiles, ...] = ()


def located(source: str, line: int | None, path: Path, message: str) -> str:
    """The message with the file, the line and the key that it is about."""
    where = source if line is None else f"{source}:{line}"
    return f"{where}: {dotted(path)}: {message}" if path else f"{where}: {message}"


def dotted(path: Path) -> str:
    """The path as people write it: vendors.acme.resources[0].sharing."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{shorten(str(step))}" if text else shorten(str(step))
    return text


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the key that was probably meant, or all keys that there are."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(word[:100], names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(names)}"


def found(value: object) -> str:
    """A value in the words of the file."""
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


def one_of(names: Sequence[str]) -> str:
    """Names as a choice: native, shared or sgpu."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last

"""The source of the configuration: a file, or a directory from which one file is chosen for this node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.config.given_flags import variable
from agent.config.known_labels import CONFIG_LABEL, NOWHERE, LabelsUnknown, NodeLabels
from agent.config.named_configs import DEFAULT_FALLBACKS, FALLBACKS, Fallback, chosen
from agent.config.side_files import SideFiles, looked_at
from agent.core.errors import ConfigError
from agent.host import files
from agent.vendor_api.config_inputs import ConfigInputs
from agent.vendor_api.text import shorten

DEFAULTS = "defaults"
MAX_BYTES = 1 << 20
MAX_FILES = 10_000
MAX_NAME_BYTES = 1000

#: The flags that choose the configuration. Vendors may bring further variables for them.
_FLAGS = ("config", "node-config", "node-config-file", "default-config", "fallback-strategies")


@dataclass(frozen=True, slots=True)
class SourceContent:
    """What a look at the source found: content and its place, or an error."""

    source: str
    content: bytes = b""
    error: str = ""
    #: The name of the configuration in a directory.
    name: str = ""
    #: Whether the error is a label that chooses the configuration and is not known yet.
    labels_awaited: bool = False
    #: Directories that the content names, as they were at the same time.
    side_files: tuple[SideFiles, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A file, or a directory of named configurations; `path` None for neither."""

    path: Path | None = None
    #: The name of this node's configuration, and a file with that name; empty or missing: not set.
    node_config: str = ""
    node_config_file: Path | None = None
    default_config: str = ""
    fallbacks: tuple[Fallback, ...] = DEFAULT_FALLBACKS
    #: What each vendor reads besides the configuration.
    inputs: Mapping[str, ConfigInputs] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_directory(self) -> bool:
        return self.path is not None and os.path.isdir(self.path)

    def look(self, labels: NodeLabels = NOWHERE) -> SourceContent:
        """Choose and read the configuration as it is now; in a directory the Node's label may choose."""
        try:
            named = self.node_config or _name_in(self.node_config_file)
            if self.path is not None and self.is_directory:
                return self._read(self._chosen(named or self._asked_for(labels)))
            if named:
                found = f"{self.path} is no directory" if self.path else "there is no --config"
                why = "chooses one of a directory of configurations"
                raise ConfigError(f"--node-config: '{shorten(named, 60)}' {why}, but {found}")
            return self._look_at(self.path) if self.path is not None else SourceContent(DEFAULTS)
        except ConfigError as error:
            awaited = isinstance(error, LabelsUnknown)
            return SourceContent(str(self.path or DEFAULTS), error=str(error), labels_awaited=awaited)

    def look_at(self, name: str) -> SourceContent:
        """Read the configuration of this name in the directory."""
        try:
            return self._read(self._chosen(name))
        except ConfigError as error:
            return SourceContent(str(self.path), error=str(error))

    def _asked_for(self, labels: NodeLabels) -> str:
        """The name that the Node's label asks for; empty if it asks for none, or is unobtainable."""
        if labels.obtainable and not labels.knows(CONFIG_LABEL) and not self._has_one():
            why = "chooses here, and is not known of this Node yet: the API server has not given its labels"
            raise LabelsUnknown(f"{self.path}: the label '{CONFIG_LABEL}' {why}")
        return labels.get(CONFIG_LABEL) or ""

    def _has_one(self) -> bool:
        """Whether one configuration is chosen without a label, as the only one."""
        assert self.path is not None
        names = _names(self.path)
        return len(names) == 1 and self._chosen("") in names

    def _chosen(self, named: str) -> str:
        assert self.path is not None
        try:
            return chosen(_names(self.path), named, self.default_config, self.fallbacks)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None

    def _read(self, name: str) -> SourceContent:
        if self.path is None or not name:
            return SourceContent(DEFAULTS)
        return self._look_at(self.path / name, name)

    def _look_at(self, path: Path, name: str = "") -> SourceContent:
        content = read_bytes(path)
        return SourceContent(str(path), content, name=name, side_files=looked_at(content, self.inputs))


def given_source(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str],
    inputs: Mapping[str, ConfigInputs] | None = None,
) -> ConfigSource:
    """The source that the command line names, or else the environment.

    `inputs`: what each vendor reads besides the configuration, by the vendor's name.

    Raises:
        ConfigError: A fallback strategy is none.
    """
    texts, places = {}, {}
    for flag in _FLAGS:
        places[flag] = f"--{flag}"
        texts[flag] = str(arguments.get(flag) or "")
        for name in (variable(flag), *_variables(flag, inputs or {})):
            if not texts[flag] and environ.get(name):
                texts[flag], places[flag] = environ[name], name
    return ConfigSource(
        Path(texts["config"]) if texts["config"] else None,
        texts["node-config"],
        Path(texts["node-config-file"]) if texts["node-config-file"] else None,
        texts["default-config"],
        _fallbacks(texts["fallback-strategies"], places["fallback-strategies"]),
        inputs or {},
    )


def _variables(flag: str, inputs: Mapping[str, ConfigInputs]) -> Iterator[str]:
    """The variables of other programs for this flag, in the order in which they are looked at."""
    for reads in inputs.values():
        for other in reads.flags.config_flags if reads.flags is not None else ():
            if other.flag == flag:
                yield from other.variables


def _fallbacks(text: str, where: str) -> tuple[Fallback, ...]:
    if not text:
        return DEFAULT_FALLBACKS
    known: dict[str, Fallback] = {fallback: fallback for fallback in FALLBACKS}
    words = [word.strip() for word in text.split(",")]
    unknown = next((word for word in words if word not in known), None)
    if unknown is not None:
        why = f"unknown fallback strategy: {shorten(unknown, 60)}; there are {', '.join(FALLBACKS)}"
        raise ConfigError(f"{where}: {why}")
    return tuple(known[word] for word in words)


def _name_in(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return files.read(file, MAX_NAME_BYTES).decode(errors="backslashreplace").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{file}: cannot be read: {why}; give --node-config-file a file") from error


def _names(directory: Path) -> frozenset[str]:
    """The files of the directory, without a mounted ConfigMap's `..data` and the like."""
    names = set()
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if not entry.name.startswith("..") and entry.is_file():
                    names.add(entry.name)
                if len(names) > MAX_FILES:
                    raise ConfigError(f"more than {MAX_FILES} files; name a directory of configurations")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from error
    return frozenset(names)


def read_bytes(path: Path) -> bytes:
    """The content of the file, with a bound on its length.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        return files.read(path, MAX_BYTES, devices=True)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read: {why}; give --config a readable file") from error

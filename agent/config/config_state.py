"""The configuration in force on this node, and how it is made from what was read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from agent.config.agent_settings_of_broken_file import stated
from agent.config.flag_overlay import with_flags
from agent.config.given_flags import GivenValue
from agent.config.known_labels import (
    CONFIG_LABEL,
    Answers,
    LabelsUnknown,
    NodeLabels,
    remembered_labels,
    seen_labels,
)
from agent.config.load import taken
from agent.config.remembered_config import LastConfig
from agent.config.settings import Config
from agent.config.side_files import SideFiles
from agent.config.source import ConfigSource, SourceContent
from agent.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The configuration in force, its source, and why newer content of the source is not used."""

    config: Config
    source: str
    error: str = ""
    #: Whether there has been no usable configuration yet; nothing is served until then.
    waiting: bool = False
    #: Whether only the Node's labels are missing, which is no error of the configuration.
    labels_awaited: bool = False
    #: The name of the configuration in a directory; empty for a single file and for all defaults.
    name: str = ""
    #: The Node's labels that the configuration was chosen and read by; a restart needs them and the name.
    labels: Answers = field(default_factory=dict)
    #: The file's content. Not compared: equal settings from other bytes are equal.
    content: bytes = field(default=b"", compare=False, repr=False)
    #: The content of directories that the file names.
    side_files: tuple[SideFiles, ...] = field(default=(), compare=False, repr=False)
    #: When it came into force, if that was before the last start.
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class ConfigInput:
    """What a look at the source found, and the Node's labels known at that time."""

    seen: SourceContent
    labels: NodeLabels


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """Makes configurations from the source's content, always with the same flags and checks."""

    source: ConfigSource
    node_name: str
    flags: Sequence[GivenValue]
    check: Callable[[Config], Config]

    def good(self, found: ConfigInput) -> ConfigState:
        """The configuration that was found.

        Raises:
            ConfigError: It cannot be used.
            LabelsUnknown: It depends on a label of the Node that is not known yet.
        """
        seen, labels = found.seen, found.labels
        config = self._taken(seen, labels)
        known_labels = labels.of(config.asks | ({CONFIG_LABEL} if self.source.is_directory else set()))
        return ConfigState(
            self.check(config),
            seen.source,
            name=seen.name,
            labels=known_labels,
            content=seen.content,
            side_files=seen.side_files,
        )

    def last(self, last: LastConfig) -> ConfigState:
        """The configuration that was last in force, read again.

        Raises:
            ConfigError: It cannot be used any more.
        """
        return replace(self.good(ConfigInput(last.seen, remembered_labels(last.labels))), since=last.since)

    def waiting(self, seen: SourceContent, error: ConfigError, words: str) -> ConfigState:
        """The state while nothing is served; the `agent` settings are used as far as possible."""
        awaited = isinstance(error, LabelsUnknown)
        config = self._agent_settings(seen)
        if awaited:
            with suppress(ConfigError):
                config = self._taken(seen, seen_labels({}))
        return ConfigState(config, seen.source, words, waiting=True, labels_awaited=awaited)

    def _taken(self, seen: SourceContent, labels: NodeLabels) -> Config:
        return taken(seen, self.node_name, flags=self.flags, labels=labels, inputs=self.source.inputs)

    def _agent_settings(self, seen: SourceContent) -> Config:
        """The settings of flags, and of the usable parts of `agent` in an unusable file.

        Without the file's settings, a waiting agent would take its lock in another state directory.
        """
        with suppress(ConfigError):
            return with_flags(Config(agent=stated(seen, self.node_name)), self.flags)
        return with_flags(Config(), self.flags)

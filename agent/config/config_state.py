"""What this agent makes of a file: the configuration that holds on this node, by what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from agent.config.agent_settings import stated
from agent.config.flag_overlay import with_flags
from agent.config.given_values import GivenValue
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
    """The configuration in force, the file that it is from, and why what stands there now is not it."""

    config: Config
    source: str
    error: str = ""
    #: Whether there was no good one yet: nothing is served until there is.
    waiting: bool = False
    #: Whether it waits for the Node's labels alone, which is nothing wrong with the config.
    labels_awaited: bool = False
    #: Which of a directory it is; empty for a single file, and for all defaults.
    name: str = ""
    #: The Node's labels that it was chosen and read by. With the name they are what a restart needs.
    labels: Answers = field(default_factory=dict)
    #: What the file held; it makes no configuration another.
    content: bytes = field(default=b"", compare=False, repr=False)
    #: What the directories held that the file names.
    beside: tuple[SideFiles, ...] = field(default=(), compare=False, repr=False)
    #: When it was taken in, where that was before the last start.
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class ConfigInput:
    """What a look found, and what was known of the Node then."""

    seen: SourceContent
    labels: NodeLabels


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """Reads what was found in the source, always in the same way."""

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
        told = labels.of(config.asks | ({CONFIG_LABEL} if self.source.is_directory else set()))
        return ConfigState(
            self.check(config),
            seen.source,
            name=seen.name,
            labels=told,
            content=seen.content,
            beside=seen.beside,
        )

    def last(self, last: LastConfig) -> ConfigState:
        """The last configuration that was in force, as this agent reads it.

        Raises:
            ConfigError: It cannot be used any more.
        """
        return replace(self.good(ConfigInput(last.seen, remembered_labels(last.labels))), since=last.since)

    def waiting(self, seen: SourceContent, error: ConfigError, words: str) -> ConfigState:
        """Nothing is served; where the agent keeps and shows what it knows is said all the same."""
        awaited = isinstance(error, LabelsUnknown)
        config = self._said(seen)
        if awaited:
            with suppress(ConfigError):
                config = self._taken(seen, seen_labels({}))
        return ConfigState(config, seen.source, words, waiting=True, labels_awaited=awaited)

    def _taken(self, seen: SourceContent, labels: NodeLabels) -> Config:
        return taken(seen, self.node_name, flags=self.flags, labels=labels, inputs=self.source.inputs)

    def _said(self, seen: SourceContent) -> Config:
        """What flags tell of the agent itself, and what a file does that cannot be used as a whole.

        Without the file's word an agent that waits would keep its lock in a directory that nobody named.
        """
        with suppress(ConfigError):
            return with_flags(Config(agent=stated(seen, self.node_name)), self.flags)
        return with_flags(Config(), self.flags)

"""What the agent keeps of its configuration for the next start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from agent.config.known_labels import Answers
from agent.config.side_files import SideFiles
from agent.config.source import SourceContent


@dataclass(frozen=True, slots=True)
class LastConfig:
    """The configuration that was last in force: all that is needed to read it again, except flags."""

    #: Its source and content; no content for all defaults.
    source: str
    text: str
    #: When it came into force.
    since: datetime
    #: Its name in a directory of configurations.
    name: str = ""
    #: The Node's labels that it was read by.
    labels: Answers = field(default_factory=dict)
    #: Directories that the configuration named: the content by file name, by path. The file has this key.
    beside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def seen(self) -> SourceContent:
        """The configuration in the form of a look at the source."""
        directories = (
            SideFiles(path, tuple((name, text.encode()) for name, text in contents.items()))
            for path, contents in self.beside.items()
        )
        return SourceContent(self.source, self.text.encode(), name=self.name, side_files=tuple(directories))


@dataclass(frozen=True, slots=True)
class RememberedConfig:
    """What the checkpoint and the file of the last configuration have."""

    labels: Answers = field(default_factory=dict)
    #: The name of the configuration that was in force, in a directory of them.
    config: str = ""
    last: LastConfig | None = None
    #: Why `last` is missing although its file exists.
    trouble: str = ""

    @property
    def known(self) -> Answers:
        """The Node's labels as they last were; the checkpoint is newer than the last configuration."""
        return {**(self.last.labels if self.last else {}), **self.labels}

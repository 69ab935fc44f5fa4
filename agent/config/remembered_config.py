"""What the agent knew when it last ran, for a start that has nothing better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from agent.config.known_labels import Answers
from agent.config.side_files import SideFiles
from agent.config.source import SourceContent


@dataclass(frozen=True, slots=True)
class LastConfig:
    """The last configuration that was in force: all that makes the same settings again, but for flags."""

    #: What it was called, and its content; nothing where all had its default.
    source: str
    text: str
    #: When it was taken in.
    since: datetime
    #: Which of a directory it was.
    name: str = ""
    #: The Node's labels that it was read by.
    labels: Answers = field(default_factory=dict)
    #: The directories that it named: path to file to content.
    beside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def seen(self) -> SourceContent:
        """It as a look would find it."""
        beside = (
            SideFiles(path, tuple((name, text.encode()) for name, text in its.items()))
            for path, its in self.beside.items()
        )
        return SourceContent(self.source, self.text.encode(), name=self.name, beside=tuple(beside))


@dataclass(frozen=True, slots=True)
class RememberedConfig:
    """Of the checkpoint, and of the file beside it."""

    labels: Answers = field(default_factory=dict)
    #: The name of the configuration that held, of a directory of them.
    config: str = ""
    last: LastConfig | None = None
    #: Why there is none, though there is a file.
    trouble: str = ""

    @property
    def known(self) -> Answers:
        """The Node's labels as they last were. Either file may be lost; the checkpoint is the newer one."""
        return {**(self.last.labels if self.last else {}), **self.labels}

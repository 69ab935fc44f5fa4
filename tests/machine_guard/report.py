"""The touches that processes of one pytest worker wrote down."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: Touches that a failure shows in full.
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Touch:
    """One call on one of the machine's own places, and where it was made."""

    path: str
    call: str
    pid: int
    #: The test that the process was started by, as far as its environment tells.
    test: str
    stack: tuple[str, ...]

    def __str__(self) -> str:
        by = "this process" if self.pid == os.getpid() else f"process {self.pid}"
        lines = [f"by {by}" + (f", started by {self.test}" if self.test else ""), *self.stack]
        return "\n  ".join([f"{self.path}: {self.call}", *lines])

    @property
    def first_line(self) -> str:
        """The path, the call and the test."""
        return f"{self.path}: {self.call}" + (f", started by {self.test}" if self.test else "")


class Report:
    """A file of lines, to which any process of the worker appends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def take(self) -> tuple[Touch, ...]:
        """What was written since the last time. A process may be in the middle of its line."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                lines = [it for it in file if it.endswith(b"\n")]
        except FileNotFoundError:
            return ()
        self._read += sum(map(len, lines))
        return tuple(Touch(*ast.literal_eval(line.decode())) for line in lines)


def text(touches: Iterable[Touch]) -> str:
    """For people: the first line names a path and a call, and what a test is to do follows."""
    each = list(dict.fromkeys(touches))
    texts = [str(it) for it in each[:SHOWN]]
    texts += [f"and {len(each) - SHOWN} more"] if len(each) > SHOWN else []
    remedy = "a test gives the agent directories of its own: flags, XPU_AGENT_*, `agent:`, `report:`"
    return "\n".join((*texts, remedy))

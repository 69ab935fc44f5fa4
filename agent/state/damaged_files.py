"""Checkpoints that cannot be used: moved aside for a person to look at, a few of them kept."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent.state.file_envelope import Why

#: Set-aside files that are kept.
KEPT = 5


@dataclass(frozen=True, slots=True)
class SetAside:
    """Why the agent starts without its checkpoint, and where that lies now."""

    path: Path
    why: Why
    #: One sentence for people.
    message: str
    #: The file's name now; empty where it could not be moved and lies where it was.
    aside: str = ""


def move(path: Path) -> Path:
    """Rename the file, whatever it is; of those moved before the newest stay.

    They are counted: a clock that was wrong once, as it may be after a boot, says nothing of which is newest.

    Raises:
        OSError: It cannot be moved, and is where it was.
    """
    before = sorted(path.parent.glob(f"{path.name}.corrupt-*"), key=lambda it: (_number(it), it.name))
    moved = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    number = _number(before[-1]) + 1 if before else 1
    aside = path.with_name(f"{path.name}.corrupt-{number}-{moved}")
    os.rename(path, aside)
    for old in before[: 1 - KEPT]:
        with suppress(OSError):  # a directory, say; it is not worth the agent
            old.unlink()
    return aside


def _number(aside: Path) -> int:
    """How many were moved before; 0 where the name does not say."""
    found = re.search(r"\.corrupt-([0-9]{1,9})-", aside.name)
    return int(found[1]) if found else 0

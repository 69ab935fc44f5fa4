"""Checkpoints that can not be used: moved aside for a person to look at, a few of them kept."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent.state.envelope import Why

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

    Raises:
        OSError: It can not be moved, and is where it was.
    """
    moved = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = path.with_name(f"{path.name}.corrupt-{moved}")
    os.rename(path, aside)
    others = sorted(it for it in path.parent.glob(f"{path.name}.corrupt-*") if it != aside)
    for old in others[: 1 - KEPT]:
        with suppress(OSError):  # a directory, say; it is not worth the agent
            old.unlink()
    return aside

"""Moves unusable checkpoints and journals aside for a person to look at, and keeps a few of them."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from agent.core.errors import StateError
from agent.state.file_envelope import Unusable, Why

#: How many of these files are kept.
MAX_KEPT_FILES = 5


class SetAside(Struct, frozen=True):
    """Why the agent starts without its checkpoint or a part of its journal, and where that file is now."""

    path: Path
    why: Why
    #: One sentence for people.
    message: str
    #: The file's new name; empty where it could not be moved.
    aside: str = ""


def unreadable(path: Path, exc: OSError) -> Unusable:
    """Why a file that cannot be read cannot be used.

    Raises:
        StateError: The file may not be read. A missing right stays missing until it is granted.
    """
    found = exc.strerror or str(exc)
    with suppress(OSError):
        if not stat.S_ISREG(path.lstat().st_mode):
            return Unusable("foreign", found)
    if exc.errno == errno.EIO:
        return Unusable("unreadable", f"the disk cannot read it ({found})")
    raise StateError(path, f"cannot be read: {found}") from exc


def set_aside(path: Path, exc: Unusable, then: str) -> SetAside:
    """Move the file aside, if possible; `then` says how the agent goes on without the file."""
    try:
        name = move(path).name
    except OSError as refusal:
        kept = f"it cannot be set aside ({refusal.strerror}) and is not overwritten before it is"
        return SetAside(path, exc.why, f"{path}: {exc}; {kept}; {then}")
    return SetAside(path, exc.why, f"{path}: {exc}; set aside as {name}, {then}", name)


def move(path: Path) -> Path:
    """Rename a file of any kind, and remove all but the newest of those renamed before.

    The names are numbered: clocks can be wrong after a boot, so times do not show which file is newest.

    Raises:
        OSError: The file cannot be moved.
    """
    before = sorted(path.parent.glob(f"{path.name}.corrupt-*"), key=lambda it: (_number(it), it.name))
    moved = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    number = _number(before[-1]) + 1 if before else 1
    aside = path.with_name(f"{path.name}.corrupt-{number}-{moved}")
    os.rename(path, aside)
    for old in before[: 1 - MAX_KEPT_FILES]:
        with suppress(OSError):  # for instance a directory; then it stays
            old.unlink()
    return aside


def _number(aside: Path) -> int:
    """The number in the name; 0 where there is none."""
    found = re.search(r"\.corrupt-([0-9]{1,9})-", aside.name)
    return int(found[1]) if found else 0

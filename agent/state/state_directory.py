"""The state directory: there, and nobody else's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: How the names of all our files begin but the checkpoint's, and of all.
AGENTS = "agent."
OURS = ("checkpoint.", AGENTS)
#: The directory in which each vendor has one of its own.
VENDORS = "vendors"


def make(directory: Path) -> None:
    """Make the directory where there is none.

    Raises:
        OSError: There is none and it cannot be made, or something else has its name.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def close_to_others(directory: Path) -> str:
    """Take the directory's rights from others, and say it where others can still write there.

    The kubelet makes the directory of a hostPath volume 0755. One that holds files of others is left alone:
    it may be theirs.
    """
    mode = 0
    try:
        mode = stat.S_IMODE(directory.stat().st_mode)
        if mode & 0o077 and all(it == VENDORS or it.startswith(OURS) for it in os.listdir(directory)):
            directory.chmod(0o700)
            return ""
    except FileNotFoundError:
        return ""
    except OSError as exc:
        why = f" and it cannot be closed to them ({exc.strerror})"
    else:
        why = ""
    return f"{directory}: others can write there{why}" if mode & 0o022 else ""

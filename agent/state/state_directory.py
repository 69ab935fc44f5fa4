"""The state directory: made if it is missing, and closed to other users."""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: Prefix of all the agent's files except the checkpoint, and the prefixes of all.
AGENTS = "agent."
OWN_PREFIXES = ("checkpoint.", AGENTS)
#: The directory with one directory for each vendor.
VENDORS = "vendors"


def make(directory: Path) -> None:
    """Make the directory if it does not exist.

    Raises:
        OSError: The directory cannot be made, or something else has its name.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def close_to_others(directory: Path) -> str:
    """Remove other users' rights to the directory; returns a complaint if others can still write there.

    The kubelet makes the directory of a hostPath volume with mode 0755. A directory with other programs'
    files is left alone, because it may belong to them.
    """
    mode = 0
    try:
        mode = stat.S_IMODE(directory.stat().st_mode)
        if mode & 0o077 and all(it == VENDORS or it.startswith(OWN_PREFIXES) for it in os.listdir(directory)):
            directory.chmod(0o700)
            return ""
    except FileNotFoundError:
        return ""
    except OSError as exc:
        why = f" and it cannot be closed to them ({exc.strerror})"
    else:
        why = ""
    return f"{directory}: others can write there{why}" if mode & 0o022 else ""

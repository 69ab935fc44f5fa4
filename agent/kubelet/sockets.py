"""Names of our own sockets in the kubelet's directory, and what is left of them after a crash."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from pathlib import Path

import structlog

log = structlog.get_logger()

_NAME = re.compile(r"xpu-[0-9a-f]{8}-(\d+)-\d+\.sock")


def socket_name(resource: str, number: int) -> str:
    """A name that was never used before: kubelet 1.37 mistrusts a path it has seen."""
    digest = hashlib.sha256(resource.encode()).hexdigest()[:8]
    return f"xpu-{digest}-{os.getpid()}-{number}.sock"


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def sweep(directory: Path) -> tuple[Path, ...]:
    """Unlink the sockets that a dead agent left behind; return which.

    Nobody must answer and the pid must be dead or ours: in containers all agents may share one pid.
    """
    left = tuple(path for path in sorted(directory.glob("xpu-*.sock")) if _is_leftover(path))
    for path in left:
        remove(path)
        log.info("socket of a former agent removed", path=str(path))
    return left


def _is_leftover(path: Path) -> bool:
    name = _NAME.fullmatch(path.name)
    if name is None or not path.is_socket():
        return False
    pid = int(name[1])
    return (pid == os.getpid() or not _is_alive(pid)) and not _is_served(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _is_served(path: Path) -> bool:
    """Whether somebody listens; in doubt yes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True

"""Names of our own sockets in the kubelet's directory, and what is left of them after a crash."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from pathlib import Path

import structlog

log = structlog.get_logger()

#: What an agent calls its sockets, in whatever process.
OURS = re.compile(r"xpu-[0-9a-f]{8}-(\d+)-\d+\.sock")


def socket_name(resource: str, number: int) -> str:
    """A name that was never used before: kubelet 1.37 mistrusts a path it has seen."""
    digest = hashlib.sha256(resource.encode()).hexdigest()[:8]
    return f"xpu-{digest}-{os.getpid()}-{number}.sock"


def remove(path: Path) -> None:
    """Unlink our socket; one that stays is said, for it ends nothing but its own registration."""
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        log.warning("our socket not removed", path=str(path), error=exc.strerror)


def sweep(directory: Path) -> tuple[Path, ...]:
    """Unlink the sockets that a dead agent left behind; return which.

    Nobody must answer and the pid must be dead or ours: in containers all agents may share one pid.
    """
    try:
        return tuple(path for path in sorted(directory.glob("xpu-*.sock")) if _swept(path))
    except OSError as exc:
        log.warning("sockets of former agents not looked for", path=str(directory), error=exc.strerror)
        return ()


def _swept(path: Path) -> bool:
    try:
        if not _is_leftover(path):
            return False
        path.unlink(missing_ok=True)
    except OSError as exc:
        log.warning("socket of a former agent not removed", path=str(path), error=exc.strerror)
        return False
    log.info("socket of a former agent removed", path=str(path))
    return True


def _is_leftover(path: Path) -> bool:
    name = OURS.fullmatch(path.name)
    if name is None or not path.is_socket():
        return False
    pid = int(name[1])
    return (pid == os.getpid() or not _is_alive(pid)) and not is_served(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether it has ended and is only waiting to be collected (proc_pid_stat(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1] == ["Z"]
    except OSError:
        return False


def served(directory: Path) -> str:
    """The name of a socket of an agent's in the directory that somebody serves; "" where there is none."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ""
    return next((it for it in names if OURS.fullmatch(it) and is_served(directory / it)), "")


def is_served(path: Path) -> bool:
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

"""Names of the agent's sockets in the kubelet's directory, and their removal after a crash."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from pathlib import Path

import structlog

log = structlog.get_logger()

#: Name of a socket of any process of the agent.
OWN_NAME = re.compile(r"xpu-[0-9a-f]{8}-(\d+)-\d+\.sock")


def socket_name(resource: str, number: int) -> str:
    """A name that no earlier socket had: kubelet 1.37 distrusts a path that it has seen before."""
    digest = hashlib.sha256(resource.encode()).hexdigest()[:8]
    return f"xpu-{digest}-{os.getpid()}-{number}.sock"


def remove(path: Path) -> None:
    """Unlink one of the agent's sockets. A failure is only logged: it affects that registration alone."""
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        log.warning("own plugin socket not removed", path=str(path), error=exc.strerror)


def sweep(directory: Path) -> tuple[Path, ...]:
    """Unlink the sockets that a dead agent left, and return their paths.

    A socket is left if no process listens and the pid in its name is dead or is this process's pid: in
    containers all agents may have the same pid.
    """
    try:
        return tuple(path for path in sorted(directory.glob("xpu-*.sock")) if _swept(path))
    except OSError as exc:
        log.warning("sockets of earlier agents not searched", path=str(directory), error=exc.strerror)
        return ()


def _swept(path: Path) -> bool:
    try:
        if not _is_leftover(path):
            return False
        path.unlink(missing_ok=True)
    except OSError as exc:
        log.warning("socket of an earlier agent not removed", path=str(path), error=exc.strerror)
        return False
    log.info("socket of an earlier agent removed", path=str(path))
    return True


def _is_leftover(path: Path) -> bool:
    name = OWN_NAME.fullmatch(path.name)
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
    """Whether the process has ended and waits for its parent to collect it (proc_pid_stat(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1] == ["Z"]
    except OSError:
        return False


def served(directory: Path) -> str:
    """The name of an agent's socket in the directory on which a process listens; "" where there is none."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ""
    return next((it for it in names if OWN_NAME.fullmatch(it) and is_served(directory / it)), "")


def is_served(path: Path) -> bool:
    """Whether a process listens on the socket; True in doubt."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True

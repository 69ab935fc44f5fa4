"""What refuses the machine's own places to a Python process, and writes down who asked for one.

Every Python process that tests start loads this before anything else, so that it imports nothing. Symbolic
links are not resolved. Programs that are no Python are not seen here; `traces` sees what they leave behind.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Names the file that touches are written to. Without it nothing is refused. A vendor's process is handed
#: what begins like this (`agent.isolation.backend_runner`).
REPORT = "XPU_MACHINE_GUARD"
#: The home directory of the user, which children with another HOME do not know.
HOME = "XPU_MACHINE_GUARD_HOME"
#: What the agent, or one of those whose place it takes, uses where nobody names another place.
PLACES = (
    "/var/lib/xpu-agent",
    "/var/log/xpu-agent",
    "/etc/xpu-agent",
    "/var/lib/kubelet",
    "/var/run/cdi",
    "/run/cdi",
    "/etc/cdi",
    "/etc/kubernetes",  # node-feature-discovery's features.d, and the kubeconfig of the kubelet
    "/var/run/koordlet",
    "/run/koordlet",
    "/var/run/secrets/kubernetes.io",
    "/run/secrets/kubernetes.io",
    *([f"{_HOME}/.kube"] if (_HOME := os.environ.get(HOME) or os.environ.get("HOME", "/")) != "/" else []),
)
#: The default port of the agent's HTTP views.
PORT = 9808
#: Not read from the environment at each call, for a test may clear the environment. On `sys`, for a worker of
#: pytest has this module twice: from the .pth file, and imported.
_state: dict[str, str] = sys.__dict__.setdefault("_machine_guard", {})
_BEGINNINGS = tuple({f"/{it.split('/')[1]}/" for it in PLACES})
#: Which arguments of an audit event are paths (docs.python.org/3/library/audit_events.html).
_EVENTS = {
    "open": (0,),
    "os.chdir": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.getxattr": (0,),
    "os.link": (0, 1),
    "os.listdir": (0,),
    "os.listxattr": (0,),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.removexattr": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.scandir": (0,),
    "os.setxattr": (0,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "socket.bind": (1,),
    "socket.connect": (1,),
    "socket.sendmsg": (1,),
    "socket.sendto": (1,),
    "os.exec": (0,),
    "os.posix_spawn": (0,),
    "subprocess.Popen": (0, 2),
}
#: Which argument of an audit event is the environment of a child. The first two have read it by then.
_ENVIRONMENTS = {"os.exec": 2, "os.posix_spawn": 2, "subprocess.Popen": 3}
#: Functions of `os` that take a path and have no audit event.
_WITHOUT_EVENT = ("access", "lstat", "mkfifo", "mknod", "readlink", "stat", "statvfs")
#: Frames of a touch that are told, innermost first.
_FRAMES = 12


def guarded(path: object) -> str:
    """The path, or address, where it is one of the machine's own places or in one; else nothing."""
    if not isinstance(path, str):
        if isinstance(path, tuple) and path[1:2] == (PORT,):
            return f"{path[0]}:{PORT}"
        if not isinstance(path, bytes | os.PathLike):
            return ""
        path = os.fsdecode(path)
    if path.startswith("/") and not path.startswith(_BEGINNINGS) and "/../" not in path:
        return ""  # the fast path: this is called for every file
    path = os.path.abspath(path)
    return path if any(path == it or path.startswith(f"{it}/") for it in PLACES) else ""


def install() -> None:
    """Refuse from now on, for the rest of the process, where the environment names a report."""
    if "installed" in _state:  # a worker of pytest was started with it
        return
    _state["installed"] = "yes"
    report_to(os.environ.get(REPORT, ""))
    sys.addaudithook(_on_event)
    for name in _WITHOUT_EVENT:
        _wrap(name, getattr(os, name))


def report_to(report: str) -> None:
    """Write touches of this process and of its children to this file; to none, and refuse nothing: ""."""
    _state["report"] = report


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    numbers = _EVENTS.get(event)
    if numbers is None:  # most of the thousands of events of a start
        return
    for number in numbers:
        if path := guarded(args[number]):
            _refuse(event, path)
    if event in _ENVIRONMENTS:
        _hand_on(event, args[_ENVIRONMENTS[event]])


def _wrap(name: str, plain: Callable[..., Any]) -> None:
    def wrapped(path: Any, *args: Any, **more: Any) -> Any:
        if found := guarded(path):
            _refuse(f"os.{name}", found)
        return plain(path, *args, **more)

    wrapped.__name__ = name
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if plain in known:
            known.add(wrapped)
    setattr(os, name, wrapped)


def _hand_on(event: str, environment: Any) -> None:
    """A child that is given an environment of its own is held to the same.

    Raises:
        TypeError: The guard cannot be added to the environment.
    """
    report = _state["report"]
    if not report or environment is None or REPORT in environment:
        return
    if event != "subprocess.Popen" or not isinstance(environment, dict):
        raise TypeError(f"the machine's guard cannot be added: pass a dict to subprocess, or {REPORT}")
    environment[REPORT] = report
    environment.setdefault(HOME, _HOME)


def _refuse(call: str, path: str) -> None:
    report = _state["report"]
    if not report:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    _write(report, repr((path, call, os.getpid(), test, _stack())))
    raise PermissionError(13, "is the machine's own, and refused to tests", path)


def _write(report: str, line: str) -> None:
    try:
        descriptor = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # the tests have ended; this process is left of them
        return
    try:
        os.write(descriptor, f"{line}\n".encode(errors="backslashreplace"))
    finally:
        os.close(descriptor)


def _stack() -> tuple[str, ...]:
    """Where the call was made, innermost first."""
    found: list[str] = []
    frame = sys._getframe(2)
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        if code.co_filename != _stack.__code__.co_filename and not code.co_filename.startswith("<frozen"):
            found.append(f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)

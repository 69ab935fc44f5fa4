"""Agents as processes of their own, forked off one that has imported the agent: that takes half a second."""

from __future__ import annotations

import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

#: Bytes of a request: arguments and environment.
MOST = 1 << 20


class Fork:
    """A process that another one than this started; its end is seen by a descriptor."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = os.pidfd_open(pid)

    def __del__(self) -> None:
        os.close(self.fd)

    @property
    def has_ended(self) -> bool:
        return bool(select.select([self.fd], [], [], 0)[0])

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)

    def wait(self) -> None:
        select.select([self.fd], [], [])


def demo_node(config: str, log: IO[bytes], **environment: str) -> Fork:
    """`python -m agent.demo.agent_process CONFIG`, whose output goes to the log."""
    env = {**os.environ, **environment}
    request = json.dumps({"argv": ["agent.demo.agent_process", config], "env": env, "cwd": os.getcwd()})
    server, _ = _server()
    socket.send_fds(server, [request.encode()], [log.fileno()])
    return Fork(int(server.recv(64)))


@functools.cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process to fork off, and the way to it; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, its):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.forks", str(its.fileno())],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    return ours, process


def serve(own: socket.socket) -> None:
    """Fork for each request, and return in the child. Who asks ends this, and this ends them."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(own, MOST, 1)
        if not data:
            os._exit(0)
        if (pid := os.fork()) == 0:
            own.close()
            return _become(json.loads(data), fds)
        os.close(fds[0])
        own.send(str(pid).encode())


def _become(request: dict[str, object], fds: Sequence[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (1, 2):
        os.dup2(fds[0], number)
    os.close(fds[0])
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    sys.argv[:] = request["argv"]  # type: ignore[call-overload]
    os.chdir(str(request["cwd"]))


if __name__ == "__main__":
    from agent.demo import agent_process

    serve(socket.socket(fileno=int(sys.argv[1])))
    agent_process.main()

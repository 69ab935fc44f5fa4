"""Who listens where, and what happens where nobody can be taken in."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.kubelet.kubelet_errors import KubeletError
from agent.kubelet.socket_listener import accepted, check_socket_path, listen


class Counted(socket.socket):
    tries = 0

    def accept(self) -> tuple[socket.socket, str]:
        self.tries += 1
        return super().accept()


@asynccontextmanager
async def taking_in(path: Path, rest: float) -> AsyncIterator[tuple[Counted, list[socket.socket]]]:
    clients: list[socket.socket] = []

    async def take() -> None:
        async with aclosing(accepted(listener, rest)) as coming:  # type: ignore[type-var]
            async for client in coming:
                clients.append(client)  # noqa: PERF401

    with Counted(fileno=listen(path).detach()) as listener:
        task = asyncio.create_task(take())
        with anyio.fail_after(30):
            yield listener, clients
        task.cancel()
        await asyncio.wait([task])
        for client in clients:
            client.close()


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """The lowest number that is free is beyond what this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def come(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client


async def test_everybody_is_taken_in(plugins_dir: Path) -> None:
    path = plugins_dir / "l.sock"
    async with taking_in(path, rest=3600) as (_, clients):
        with come(path), come(path), come(path):
            await eventually(lambda: len(clients) == 3)


async def test_without_descriptors_nobody_is_tried_before_a_rest_is_over(plugins_dir: Path) -> None:
    path = plugins_dir / "l.sock"
    async with taking_in(path, rest=3600) as (listener, _):
        with come(path), no_descriptor_left():
            await eventually(lambda: listener.tries)
            for _ in range(100):
                await asyncio.sleep(0)

        assert listener.tries == 1


async def test_without_descriptors_is_said_once_and_is_over_when_there_are_some(plugins_dir: Path) -> None:
    path = plugins_dir / "l.sock"
    async with taking_in(path, rest=0.001) as (listener, clients):
        with come(path), capture_logs() as logs:
            with no_descriptor_left():
                await eventually(lambda: listener.tries >= 5)
            await eventually(lambda: clients)

    assert [(one["log_level"], one["error"]) for one in logs] == [("warning", "Too many open files")]


async def test_who_is_gone_before_being_taken_in_harms_nobody(plugins_dir: Path) -> None:
    path = plugins_dir / "l.sock"
    async with taking_in(path, rest=3600) as (_, clients):
        come(path).close()
        with come(path):
            await eventually(lambda: len(clients) == 2)


def test_a_path_is_measured_in_bytes() -> None:
    check_socket_path(Path("/" + "x" * 106))
    with pytest.raises(KubeletError, match="has 108 bytes, a socket path can have 107"):
        check_socket_path(Path("/" + "x" * 105 + "é"))

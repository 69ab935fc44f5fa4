"""A connection to the kubelet that is kept: used again only for the same socket, and only after an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from agent.kubelet import kept_channel
from agent.kubelet.kept_channel import KeptChannel
from agent.kubelet.kubelet_errors import KubeletError, KubeletRefused
from agent.kubelet.rpc import ByteStream, ServerChannel, SocketServer, call_on, receive

from .fakes import listening

METHOD = "/test.Service/Do"


class Kubelet:
    """A server that notes which connection each call comes on, and answers with its name."""

    def __init__(self, path: Path, name: bytes) -> None:
        path.unlink(missing_ok=True)
        self.server = SocketServer({METHOD: Handler(self._serve, Cardinality.UNARY_UNARY, bytes, bytes)})
        self.asked = asyncio.Event()
        self.hangs = self.refuses = self.cuts = False
        self._name = name
        # Kept, so that no other connection gets the same identity.
        self._connections: list[Any] = []

    @property
    def connections(self) -> int:
        return len({id(it) for it in self._connections})

    async def _serve(self, stream: ByteStream) -> None:
        await receive(stream)
        connection = stream._stream.connection
        self._connections.append(connection)
        self.asked.set()
        if self.cuts:
            connection.close()
        if self.hangs or self.cuts:
            await asyncio.Event().wait()
        if self.refuses:
            raise GRPCError(Status.NOT_FOUND, "no such pod")
        await stream.send_message(self._name)


@pytest.fixture
def path(plugins_dir: Path) -> Path:
    return plugins_dir / "kubelet.sock"


@asynccontextmanager
async def kubelet(path: Path, name: bytes = b"kubelet") -> AsyncIterator[Kubelet]:
    one = Kubelet(path, name)
    async with listening(path, one.server):
        yield one


async def call(channel: KeptChannel, timeout: float = 30) -> bytes:
    return await channel.call(METHOD, b"", timeout=timeout)


async def test_calls_share_one_connection(path: Path) -> None:
    async with kubelet(path) as one:
        with closing(KeptChannel(path)) as channel:
            assert [await call(channel) for _ in range(3)] == [b"kubelet"] * 3

        assert one.connections == 1


async def test_a_refusal_is_an_answer_after_which_the_connection_is_used_again(path: Path) -> None:
    async with kubelet(path) as one:
        one.refuses = True
        with closing(KeptChannel(path)) as channel:
            for _ in range(2):
                with pytest.raises(KubeletRefused, match="no such pod"):
                    await call(channel)

        assert one.connections == 1


async def test_another_socket_at_the_path_is_asked_while_the_first_server_still_runs(path: Path) -> None:
    async with kubelet(path, b"first") as first:
        with closing(KeptChannel(path)) as channel:
            assert await call(channel) == b"first"
            async with kubelet(path, b"second"):
                assert await call(channel) == b"second"
                assert await call(channel) == b"second"

        assert first.connections == 1


async def test_a_kubelet_that_restarted_since_the_last_call_is_asked(path: Path) -> None:
    with closing(KeptChannel(path)) as channel:
        for name in (b"first", b"second"):
            async with kubelet(path, name):
                assert await call(channel) == name


async def test_a_connection_that_the_server_ends_during_the_call_is_made_anew(path: Path) -> None:
    async with kubelet(path, b"first") as first:
        with closing(KeptChannel(path)) as channel:
            assert await call(channel) == b"first"
            first.cuts = True
            calling = asyncio.create_task(call(channel))
            first.asked.clear()
            await first.asked.wait()
            first.cuts = False

            assert await calling == b"first"

        assert first.connections == 2


async def test_a_server_that_ends_each_connection_is_asked_no_third_time(path: Path) -> None:
    async with kubelet(path) as one:
        with closing(KeptChannel(path)) as channel:
            await call(channel)
            one.cuts = True
            with pytest.raises(KubeletError, match="broke off"):
                await call(channel)

        assert one.connections == 2


async def test_a_second_try_has_what_is_left_of_the_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []

    async def timed(channel: ServerChannel, method: str, request: bytes, *, timeout: float) -> bytes:
        timeouts.append(timeout)
        return await call_on(channel, method, request, timeout=timeout)

    monkeypatch.setattr(kept_channel, "call_on", timed)
    async with kubelet(path) as one:
        with closing(KeptChannel(path)) as channel:
            await call(channel)
            one.cuts = True
            with pytest.raises(KubeletError, match="broke off"):
                await call(channel)

    assert timeouts[1] == 30 > timeouts[2]


async def test_a_call_without_an_answer_costs_the_connection(path: Path) -> None:
    async with kubelet(path) as one:
        with closing(KeptChannel(path)) as channel:
            await call(channel)
            one.hangs = True
            with pytest.raises(KubeletError, match=r"no answer at .* within 0\.05 s"):
                await call(channel, timeout=0.05)
            one.hangs = False
            assert await call(channel) == b"kubelet"

        assert one.connections == 2


async def test_a_call_that_is_given_up_costs_the_connection(path: Path) -> None:
    async with kubelet(path) as one:
        one.hangs = True
        with closing(KeptChannel(path)) as channel:
            calling = asyncio.create_task(call(channel))
            await one.asked.wait()
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            one.hangs = False
            assert await call(channel) == b"kubelet"

        assert one.connections == 2


async def test_without_a_listener_the_path_is_named(path: Path) -> None:
    with closing(KeptChannel(path)) as channel:
        with pytest.raises(KubeletError, match=f"no process answers at {path}"):
            await call(channel)
        async with kubelet(path):
            assert await call(channel) == b"kubelet"
        with pytest.raises(KubeletError, match=f"no process answers at {path}"):
            await call(channel)

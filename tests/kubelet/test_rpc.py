"""What grpclib alone would get wrong: hostile input, lost words, and the end of a server."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    TrailersReceived,
)
from support.waiting import eventually

from agent.core.endless_tasks import LoopEnded
from agent.kubelet.kubelet_errors import KubeletError, KubeletRefused
from agent.kubelet.rpc import (
    FRAME,
    PIECE,
    ByteStream,
    RawMessages,
    ServerChannel,
    SocketBounds,
    SocketServer,
    call,
    call_on,
    send,
    streaming,
    unary,
)
from agent.testing.simkubelet.grpc_server import UnixServer

from .fakes import listening, nobody
from .wire import Wire

ECHO, FEED, FAIL, HANG = "/test.Test/Echo", "/test.Test/Feed", "/test.Test/Fail", "/test.Test/Hang"


async def echo(request: bytes) -> bytes:
    return request


async def fail(request: bytes) -> bytes:
    raise GRPCError(Status(int(request)), "so it is: äöü")


async def hang(request: bytes) -> bytes:
    await asyncio.Event().wait()
    return request


async def feed(stream: ByteStream) -> None:
    await send(stream, b"x" * 1_000_000)
    await asyncio.Event().wait()


@asynccontextmanager
async def serving(path: Path, **bounds: int) -> AsyncIterator[SocketServer]:
    methods = {ECHO: unary(echo), FEED: streaming(feed), FAIL: unary(fail), HANG: unary(hang)}
    async with listening(path, SocketServer(methods, SocketBounds(**bounds))) as server:
        yield server


@pytest.fixture
def path(plugins_dir: Path) -> Path:
    return plugins_dir / "t.sock"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", Status.INVALID_ARGUMENT, "there is none"),
        (b"\x00\x00", Status.INVALID_ARGUMENT, "ends early"),
        (b"\x00\x00\x00\x00\x05ab", Status.INVALID_ARGUMENT, "ends early"),
        (b"\x01\x00\x00\x00\x01a", Status.UNIMPLEMENTED, "compressed"),
        (b"\x00\xff\xff\xff\xffa", Status.RESOURCE_EXHAUSTED, "4294967295 bytes, more than 16777216"),
    ],
)
@pytest.mark.parametrize("method", [ECHO, FEED])
async def test_a_body_that_is_no_request_is_refused(
    path: Path, method: str, body: bytes, status: Status, words: str
) -> None:
    async with serving(path), Wire.to(path) as wire:
        answer = await wire.call(method, body)

        assert answer["grpc-status"] == str(status.value)
        assert words in answer["grpc-message"]


async def test_a_method_that_does_not_exist_is_refused(path: Path) -> None:
    async with serving(path), Wire.to(path) as wire:
        assert (await wire.call("/v1.Other/Call", b"\0" * 5))["grpc-status"] == str(
            Status.UNIMPLEMENTED.value
        )


async def test_a_frame_of_an_unknown_kind_is_ignored(path: Path) -> None:
    async with serving(path), Wire.to(path) as wire:
        wire.flush()
        wire.writer.write(b"\x00\x00\x04\xfa\x00\x00\x00\x00\x00abcd")

        assert (await wire.call(ECHO, b"\x00\x00\x00\x00\x01a"))["grpc-status"] == "0"


async def test_garbage_instead_of_http2_closes_that_connection_only(path: Path) -> None:
    async with serving(path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        assert await reader.read() is not None
        writer.close()

        assert await call(path, ECHO, b"hello", timeout=30) == b"hello"


async def test_the_frames_of_an_answer_come_together(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        async with serving(path):
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, str(path))
            wire = Wire(asyncio.StreamReader(), cast("asyncio.StreamWriter", None))
            stream = wire.begin(ECHO)
            wire.http.send_data(stream, b"\x00\x00\x00\x00\x01a", end_stream=True)
            await loop.sock_sendall(client, wire.http.data_to_send())

            while True:
                events = wire.http.receive_data(await loop.sock_recv(client, 65_536))
                if any(isinstance(it, ResponseReceived) for it in events):
                    break

            assert {DataReceived, TrailersReceived, StreamEnded} <= {type(it) for it in events}


async def test_shutdown_says_goodbye_to_every_client(path: Path) -> None:
    async with serving(path) as server, Wire.to(path) as wire:
        assert await wire.call(ECHO, b"\x00\x00\x00\x00\x01a")
        await server.shutdown()

        last = wire.http.receive_data(await wire.reader.read())
        assert any(isinstance(event, ConnectionTerminated) for event in last)


async def test_shutdown_ends_calls_that_hang(path: Path) -> None:
    async with serving(path) as server:
        calling = asyncio.get_running_loop().create_task(call(path, HANG, b"", timeout=30))
        await eventually(lambda: any(it.transport and it.processor.streams for it in server._protocols))
        await server.shutdown()

        with pytest.raises(KubeletError, match="broke off"):
            await calling


@contextmanager
def deaf_client(path: Path) -> Iterator[tuple[socket.socket, H2Connection]]:
    """A client that has asked for the list, and reads nothing."""
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.connect(str(path))
        http = H2Connection(H2Configuration(client_side=True))
        http.initiate_connection()
        http.update_settings({4: 2**31 - 1})
        http.increment_flow_control_window(2**31 - 1 - 65_535)
        deaf.sendall(http.data_to_send())
        wire_headers = [(":method", "POST"), (":scheme", "http"), (":path", FEED), (":authority", "x")]
        http.send_headers(1, [*wire_headers, ("content-type", "application/grpc"), ("te", "trailers")])
        http.send_data(1, b"\0" * 5, end_stream=True)
        deaf.sendall(http.data_to_send())
        yield deaf, http


async def test_shutdown_does_not_wait_for_a_client_that_does_not_read(path: Path) -> None:
    async with serving(path) as server:
        with deaf_client(path):
            await eventually(lambda: server._protocols and _is_stuffed(server._protocols[0]))

            await server.shutdown(patience=0.05)


@pytest.mark.parametrize("make", [SocketServer, UnixServer])
async def test_shutdown_does_not_wait_for_a_call_that_was_taken_back_by_a_client_that_does_not_read(
    path: Path, make: type[SocketServer | UnixServer]
) -> None:
    streams, taken_back = list[Any](), asyncio.Event()

    async def flood(stream: Any) -> None:
        streams.append(stream)
        await stream.recv_message()
        try:
            while True:
                await stream.send_message(b"x" * 100_000)
                await asyncio.sleep(0)
        finally:
            taken_back.set()

    server = make({FEED: Handler(flood, Cardinality.UNARY_STREAM, bytes, bytes)})
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            if isinstance(server, UnixServer):
                await server.listen(path)
            else:
                server.listen(path, group)
            with deaf_client(path) as (deaf, http):
                await eventually(lambda: streams and not streams[0]._stream.connection.write_ready.is_set())
                http.reset_stream(1)
                deaf.sendall(http.data_to_send())
                await taken_back.wait()

                await server.shutdown()


@pytest.mark.parametrize("make", [SocketServer, UnixServer])
@pytest.mark.parametrize("turns", range(6))
async def test_a_client_that_comes_while_a_server_closes_leaves_nothing_behind(
    path: Path, make: type[SocketServer | UnixServer], turns: int
) -> None:
    server = make({})
    async with anyio.create_task_group() as group:
        if isinstance(server, UnixServer):
            await server.listen(path)
        else:
            server.listen(path, group)
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(str(path))
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.shutdown()

    del server
    gc.collect()  # what asyncio leaks warns here, and a warning fails a test


async def test_a_server_that_takes_nobody_in_any_more_by_itself_ends_who_serves_by_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.kubelet.rpc.accepted", nobody)

    async def serve() -> None:
        async with serving(path):
            for _ in range(100):
                await asyncio.sleep(0)

    with pytest.raises(ExceptionGroup) as raised:
        await serve()

    assert raised.group_contains(LoopEnded, match=r"SocketServer\._accept returned")


async def test_who_is_served_is_still_taken_in_while_all_else_is_cancelled(path: Path) -> None:
    server = SocketServer({ECHO: unary(echo)})
    async with anyio.create_task_group() as group:
        server.listen(path, group)
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True), anyio.fail_after(30):
            assert await call(path, ECHO, b"hello", timeout=30) == b"hello"
            await server.shutdown()


async def test_a_server_can_be_shut_down_twice(path: Path) -> None:
    async with serving(path) as server:
        await server.shutdown()


def _is_stuffed(protocol: Any) -> bool:
    return protocol.transport is not None and protocol.transport.get_write_buffer_size() > 0


async def test_a_server_forgets_connections_that_are_over(path: Path) -> None:
    async with serving(path) as server:
        for _ in range(30):
            await call(path, ECHO, b"", timeout=30)

        assert len(server._protocols) < 5


def test_closed_streams_are_forgotten() -> None:
    assert H2Connection.MAX_CLOSED_STREAMS == 256


async def test_a_bug_is_answered_with_its_text(path: Path) -> None:
    async def bug(request: bytes) -> bytes:
        return request[99:100] or bytes([1][5])

    async with listening(path, SocketServer({ECHO: unary(bug)})):
        with pytest.raises(KubeletRefused, match="IndexError: list index out of range") as refusal:
            await call(path, ECHO, b"", timeout=30)

    assert refusal.value.status == "INTERNAL"


# What strangers may cost


def message(body: bytes) -> bytes:
    return b"\0" + len(body).to_bytes(4, "big") + body


async def test_of_too_many_connections_the_one_that_has_been_there_longest_is_closed(path: Path) -> None:
    async with serving(path, connections=3) as server, Wire.to(path) as fed:
        fed.ask(FEED, message(b""))
        await eventually(lambda: server._protocols and server._protocols[0].feeds)
        async with Wire.to(path) as eldest, Wire.to(path) as younger, Wire.to(path) as youngest:
            with pytest.raises(EOFError):
                await eldest.status()
            assert eldest.goodbye is ErrorCodes.ENHANCE_YOUR_CALM
            for wire in (younger, youngest):
                assert (await wire.call(ECHO, message(b"a")))["grpc-status"] == "0"

        assert server._protocols[0].feeds  # who is sent lists stays


async def test_hundreds_of_connections_are_as_few_as_are_served_at_a_time(path: Path) -> None:
    async with serving(path, connections=8) as server:
        for _ in range(200):
            async with Wire.to(path) as wire:
                assert (await wire.call(ECHO, message(b"a")))["grpc-status"] == "0"
                assert len(server._protocols) <= 8


async def test_a_client_that_takes_back_one_call_after_the_other_is_dropped(path: Path) -> None:
    # HTTP/2 rapid reset, CVE-2023-44487
    async with serving(path, resets=10), Wire.to(path) as wire:
        for _ in range(11):
            wire.http.reset_stream(wire.ask(HANG, message(b"")))
        wire.flush()

        with pytest.raises(EOFError):
            await wire.status()
        assert wire.goodbye is ErrorCodes.ENHANCE_YOUR_CALM
        assert await call(path, ECHO, b"others are served", timeout=30)


async def test_of_calls_that_are_taken_back_no_more_are_looked_at_than_come_in_one_piece(path: Path) -> None:
    async with serving(path, resets=10) as server, Wire.to(path) as wire:
        await eventually(lambda: server._protocols and server._protocols[0].transport)
        protocol = server._protocols[0]
        connection = protocol.connection
        for _ in range(4_000):
            wire.http.reset_stream(wire.begin(HANG))

        protocol.data_received(wire.http.data_to_send())  # as it is read where much has come

        assert connection.is_closing()
        assert 20 < connection._connection.highest_inbound_stream_id < 4_000  # of 8,000, for they are odd


async def test_a_call_that_is_answered_makes_up_for_those_that_were_taken_back(path: Path) -> None:
    async with serving(path, resets=10), Wire.to(path) as wire:
        for _ in range(5):
            for _ in range(10):
                wire.http.reset_stream(wire.ask(HANG, message(b"")))
            assert (await wire.call(ECHO, message(b"a")))["grpc-status"] == "0"
            wire.events.clear()


async def test_of_requests_that_are_too_long_together_the_eldest_is_given_up(path: Path) -> None:
    async with serving(path, request_bytes=4 * FRAME) as server, Wire.to(path) as slow, Wire.to(path) as wire:
        slow.begin_with(ECHO, message(bytes(9 * FRAME))[: 2 * FRAME + 5])
        await eventually(lambda: server._arriving.total == 2 * FRAME)

        assert (await wire.call(ECHO, message(bytes(3 * FRAME))))["grpc-status"] == "0"

        answer = await slow.status()
        assert answer["grpc-status"] == str(Status.RESOURCE_EXHAUSTED.value)
        assert "given up" in answer["grpc-message"]
        assert server._arriving.total == 0


async def test_of_too_many_requests_that_do_not_end_the_eldest_is_given_up(path: Path) -> None:
    async with serving(path, requests=5), Wire.to(path) as slow, Wire.to(path) as wire:
        for _ in range(5):
            slow.begin_with(ECHO, b"\0")

        assert (await wire.call(ECHO, message(b"a")))["grpc-status"] == "0"
        assert (await slow.status())["grpc-status"] == str(Status.RESOURCE_EXHAUSTED.value)


async def test_a_client_that_lets_answers_lie_is_dropped(path: Path) -> None:
    # the ping flood of CVE-2019-9512
    async with serving(path, unread=100_000) as server, Wire.to(path) as deaf:
        deaf.flush()
        await eventually(lambda: server._protocols)
        while not server._protocols[0].over.is_set():
            for _ in range(1000):
                deaf.http.ping(b"ping ping"[:8])
            deaf.flush()
            await asyncio.sleep(0)

        assert await call(path, ECHO, b"others are served", timeout=30)


@pytest.mark.parametrize("ending", ["taken back", "hung up"])
@pytest.mark.parametrize(("level", "told"), [(logging.INFO, False), (logging.DEBUG, True)])
async def test_what_a_client_takes_back_is_told_at_debug_alone(
    path: Path, caplog: pytest.LogCaptureFixture, level: int, told: bool, ending: str
) -> None:
    caplog.set_level(logging.INFO, "grpclib")  # as agent/logs/__init__.py has it
    caplog.set_level(level)
    began, over = asyncio.Event(), asyncio.Event()

    async def fail_when_cancelled(request: bytes) -> bytes:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise GRPCError(Status.ABORTED, "in the same moment") from None
        finally:
            over.set()
        return request

    async with listening(path, SocketServer({HANG: unary(fail_when_cancelled)})):
        async with Wire.to(path) as wire:
            stream = wire.ask(HANG, message(b""))
            await began.wait()
            if ending == "taken back":
                wire.http.reset_stream(stream)
                wire.flush()
                await over.wait()
        await over.wait()

    records = [it for it in caplog.records if it.name == "grpclib.server"]
    assert {it.levelname for it in records} == ({"DEBUG"} if told else set())
    assert not any(it.exc_info for it in records)


# The client's side


async def test_a_refusal_keeps_status_and_words(path: Path) -> None:
    async with serving(path):
        with pytest.raises(KubeletRefused, match="the kubelet refused Fail: so it is: äöü") as refusal:
            await call(path, FAIL, b"8", timeout=30)

        assert refusal.value.status == "RESOURCE_EXHAUSTED"


async def test_nobody_at_the_path_is_an_error(path: Path) -> None:
    with pytest.raises(KubeletError, match="no process answers"):
        await call(path, ECHO, b"", timeout=30)


async def test_a_dead_socket_is_an_error(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    with pytest.raises(KubeletError, match=r"no process answers at .*: Connection refused"):
        await call(path, ECHO, b"", timeout=30)


@pytest.mark.parametrize("calls", [0, 1])
async def test_a_channel_never_reaches_a_server_that_takes_over_the_path_later(
    path: Path, calls: int
) -> None:
    async with serving(path):
        channel = ServerChannel(path)
        for _ in range(calls):
            assert await call_on(channel, ECHO, b"hello", timeout=30) == b"hello"
    os.unlink(path)

    async with serving(path) as later:
        with closing(channel), pytest.raises(KubeletError, match=r"Echo: the call to .* broke off"):
            await call_on(channel, ECHO, b"hello", timeout=30)

        assert later._protocols == []


async def test_a_channel_is_connected_before_the_first_call_and_names_the_server(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with closing(ServerChannel(path)) as channel:
            client, _ = listener.accept()

            assert channel.peer.pid == os.getpid()

        with client:
            assert client.recv(1) == b""  # closed, though no call was made


def test_a_channel_for_which_no_descriptor_is_left_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_left)

    with pytest.raises(KubeletError, match="Too many open files"):
        ServerChannel(path)


async def test_silence_is_an_error(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()

        with pytest.raises(KubeletError, match=r"no answer at .* within 0\.05 s"):
            await call(path, ECHO, b"", timeout=0.05)


async def test_a_peer_that_sees_the_deadline_first_is_as_silent(path: Path) -> None:
    async with serving(path):
        with pytest.raises(KubeletError, match="no answer") as refusal:
            await call(path, FAIL, str(Status.DEADLINE_EXCEEDED.value).encode(), timeout=30)

        assert not isinstance(refusal.value, KubeletRefused)


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_peer_that_speaks_something_else_is_an_error(path: Path, words: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(words)
        writer.close()

    server = await asyncio.start_unix_server(answer, str(path))
    async with server:
        with pytest.raises(KubeletError, match="broke off"):
            await call(path, ECHO, b"", timeout=30)


async def test_a_call_that_breaks_off_leaves_the_scope_around_it_as_it_was(path: Path) -> None:
    """grpclib cancels the task that calls; a scope would no longer know its own cancellation."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # settings, and no more
        writer.close()

    server = await asyncio.start_unix_server(answer, str(path))
    task = asyncio.current_task()
    assert task is not None
    async with server:
        with anyio.CancelScope() as scope:
            with pytest.raises(KubeletError):
                await call(path, ECHO, b"", timeout=30)
            assert task.cancelling() == 0
            scope.deadline = anyio.current_time()
            await anyio.sleep_forever()

    assert scope.cancelled_caught


async def test_who_gives_up_a_call_is_told_so(path: Path) -> None:
    async with serving(path):
        with anyio.move_on_after(0.01) as scope:
            await call(path, HANG, b"", timeout=30)

    assert scope.cancelled_caught


async def test_an_answer_that_grpclib_stumbles_over_is_an_error_of_the_kubelet(path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = H2Connection(H2Configuration(client_side=False, validate_outbound_headers=False))
        http.initiate_connection()
        while not any(
            isinstance(event, StreamEnded) for event in http.receive_data(await reader.read(65_536))
        ):
            writer.write(http.data_to_send())
        http.send_headers(1, [("content-type", "application/grpc")], end_stream=True)  # and no :status
        writer.write(http.data_to_send())
        await reader.read()
        writer.close()
        await writer.wait_closed()
        over.set()

    over = asyncio.Event()
    async with await asyncio.start_unix_server(answer, str(path)):
        with pytest.raises(KubeletError, match=r"does not speak gRPC: KeyError\(':status'\)"):
            await call(path, ECHO, b"", timeout=30)
        await over.wait()


async def test_calls_can_be_cancelled(path: Path) -> None:
    async with serving(path):
        with anyio.move_on_after(0.05) as scope:
            await call(path, HANG, b"", timeout=30)
        assert scope.cancelled_caught

        assert await call(path, ECHO, b"still here", timeout=30) == b"still here"


async def test_messages_of_several_megabytes_pass_both_ways(path: Path) -> None:
    big = bytes(range(256)) * 20_000
    async with serving(path):
        assert await call(path, ECHO, big, timeout=30) == big


async def test_one_connection_carries_calls_and_a_stream_at_once(path: Path) -> None:
    async with serving(path):
        channel = Channel(path=str(path), codec=RawMessages())
        try:
            method = UnaryStreamMethod(channel, FEED, bytes, bytes)
            async with method.open() as stream:
                await stream.send_message(b"", end=True)
                assert len(await stream.recv_message() or b"") == 1_000_000
                assert await UnaryUnaryMethod(channel, ECHO, bytes, bytes)(b"hello") == b"hello"
                await stream.cancel()
        finally:
            channel.close()


class Eager:
    """A stream whose peer takes everything at once, so that sending alone never waits."""

    _send_initial_metadata_done = True

    def __init__(self) -> None:
        self._stream = self
        self.log: list[bytes] = []

    async def send_data(self, data: bytes) -> None:
        self.log.append(data)


async def test_between_the_pieces_of_a_long_message_others_have_their_turn() -> None:
    line: Any = Eager()
    message = b"x" * (3 * PIECE)

    async def other() -> None:
        while True:
            line.log.append(b"")
            await asyncio.sleep(0)

    others = asyncio.create_task(other())
    await send(line, message)
    others.cancel()

    pieces = [place for place, piece in enumerate(line.log) if piece]
    assert len(pieces) == 4
    assert all(b"" in line.log[here:there] for here, there in pairwise(pieces))
    assert b"".join(line.log) == b"\0" + len(message).to_bytes(4, "big") + message

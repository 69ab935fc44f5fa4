"""Many clients, and such that mean no good: who makes room for whom, and who is answered all the same."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.http_views import VIEW
from support.short_places import SHORT_PLACE
from support.waiting import eventually

from agent.core.model import Command
from agent.core.publishing.agent_status import AgentStatus
from agent.http import serving
from agent.http.client_limits import ClientLimits

LOOPBACK = "127.0.0.1:0"
ASKING = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = ASKING[:-2]


def view() -> AgentStatus:
    return VIEW


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHORT_PLACE) as directory:
        yield Path(directory) / "agent.sock"


class Client:
    """A connection of a test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, what: bytes) -> None:
        with contextlib.suppress(OSError):
            self._writer.write(what)

    async def heard(self) -> bytes:
        """The head of the next answer; nothing where it is hung up on."""
        async with asyncio.timeout(30):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                head = await self._reader.readuntil(b"\r\n\r\n")
                await self._reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
                return head
            return b""

    async def begun(self) -> bytes:
        """The first byte of what is answered."""
        async with asyncio.timeout(30):
            return await self._reader.readexactly(1)

    def close(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def client(at: str, sent: bytes = b"", source: str = "127.0.0.1") -> AsyncIterator[Client]:
    if at.startswith("/"):
        ends = await asyncio.open_unix_connection(at)
    else:
        host, _, port = at.rpartition(":")
        ends = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    it = Client(*ends)
    try:
        it.send(sent)
        yield it
    finally:
        it.close()


async def probe(at: str, source: str = "127.0.0.1") -> bytes:
    async with client(at, ASKING, source) as it:
        return await it.heard()


OK = b"HTTP/1.1 200"


async def test_a_connection_is_closed_with_the_last_answer_that_it_may_have() -> None:
    async with serving(view, LOOPBACK, ClientLimits(requests=3)) as at, client(at, ASKING * 5) as it:
        answers = [await it.heard() for _ in range(4)]

    assert [answer.startswith(OK) for answer in answers] == [True, True, True, False]
    assert [b"connection: close" in answer.lower() for answer in answers] == [False, False, True, False]


async def test_between_two_answers_the_loop_goes_round(path: Path) -> None:
    order: list[str] = []

    def seen() -> AgentStatus:
        order.append("answer")
        return VIEW

    async def others() -> None:
        while True:
            order.append("others")
            await asyncio.sleep(0)

    async with serving(seen, path) as at:
        task = asyncio.create_task(others())
        async with client(at, ASKING.replace(b"healthz", b"readyz") * 20) as it:
            for _ in range(20):
                assert (await it.heard()).startswith(OK)
        task.cancel()

    answers = [place for place, what in enumerate(order) if what == "answer"]
    assert len(answers) == 20
    assert all(later - earlier > 1 for earlier, later in itertools.pairwise(answers))


async def test_the_slowest_request_makes_room_for_the_next_of_its_address() -> None:
    async with (
        serving(view, LOOPBACK, ClientLimits(per_peer=2)) as at,
        client(at, HALF, "127.0.0.2") as other,
        client(at, ASKING) as slow,
    ):
        assert (await slow.heard()).startswith(OK)
        slow.send(HALF)
        async with client(at, ASKING) as later:
            assert (await later.heard()).startswith(OK)

            assert (await probe(at)).startswith(OK)

            assert await slow.heard() == b""
            later.send(ASKING)
            assert (await later.heard()).startswith(OK)
        other.send(b"\r\n")
        assert (await other.heard()).startswith(OK)


async def test_where_all_places_are_taken_the_slowest_request_of_all_makes_room() -> None:
    async with (
        serving(view, LOOPBACK, ClientLimits(connections=2)) as at,
        client(at, ASKING, "127.0.0.2") as slow,
    ):
        assert (await slow.heard()).startswith(OK)
        async with client(at, ASKING, "127.0.0.3") as later:
            assert (await later.heard()).startswith(OK)

            assert (await probe(at)).startswith(OK)

            assert await slow.heard() == b""
            later.send(ASKING)
            assert (await later.heard()).startswith(OK)


async def test_bytes_that_trickle_do_not_make_a_request_younger() -> None:
    async with (
        serving(view, LOOPBACK, ClientLimits(connections=2)) as at,
        client(at, ASKING) as trickling,
        client(at, ASKING) as later,
    ):
        assert (await trickling.heard()).startswith(OK)
        assert (await later.heard()).startswith(OK)
        for byte in HALF:
            trickling.send(bytes([byte]))
            await asyncio.sleep(0)

        assert (await probe(at)).startswith(OK)

        assert await trickling.heard() == b""
        later.send(ASKING)
        assert (await later.heard()).startswith(OK)


async def test_who_takes_its_answer_slowly_makes_room_too(path: Path) -> None:
    """What is shown does not fit into the buffers of a socket of this kind."""
    large = AgentStatus(node="n" * 4_000_000, version="1")
    async with (
        serving(lambda: large, path, ClientLimits(connections=1, request=600)) as at,
        client(at, ASKING.replace(b"healthz", b"inspect")) as taking,
    ):
        assert await taking.begun()

        assert (await probe(at)).startswith(OK)


async def test_a_command_that_is_being_done_makes_room_for_nobody(path: Path) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def apply(command: Command) -> str:
        begun.set()
        await done.wait()
        return "done"

    body = b'{"device":"GPU-0"}'
    posted = b"POST /health/cordon HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with serving(view, path, ClientLimits(connections=1), apply) as at, client(at, posted) as command:
        await begun.wait()
        waiting = asyncio.create_task(probe(at))
        async with client(at):  # who comes waits in the queue of the listener by now
            done.set()

            assert (await command.heard()).startswith(OK)
            assert (await waiting).startswith(OK)


async def test_clients_that_are_answered_again_and_again_make_room_for_one_that_was_not() -> None:
    async with serving(view, LOOPBACK, ClientLimits(connections=4, requests=1_000_000)) as at:

        async def pipeline() -> None:
            while True:
                async with client(at, ASKING * 1000) as it:
                    while await it.heard():
                        it.send(ASKING)

        crowd = [asyncio.create_task(pipeline()) for _ in range(8)]
        for _ in range(5):
            assert (await probe(at)).startswith(OK)
        for one in crowd:
            one.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)


async def test_probes_are_answered_among_slow_and_pipelining_clients_of_the_same_address(path: Path) -> None:
    async with serving(view, LOOPBACK) as at, serving(view, path) as admin:
        answered: set[int] = set()

        async def pipeline(number: int) -> None:
            while True:
                with contextlib.suppress(OSError):
                    async with client(at, ASKING * 100) as it:
                        while await it.heard():
                            answered.add(number)

        async def trickle() -> None:
            while True:
                with contextlib.suppress(OSError):
                    async with client(at, HALF) as it:
                        await it.heard()

        crowd = [asyncio.create_task(pipeline(number)) for number in range(20)]
        crowd += [asyncio.create_task(trickle()) for _ in range(64)]
        await eventually(lambda: len(answered) > 1)

        assert (await probe(at)).startswith(OK)
        assert (await probe(at, "127.0.0.2")).startswith(OK)
        assert (await probe(admin)).startswith(OK)
        for one in crowd:
            one.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)


async def test_over_the_network_a_view_is_looked_at_once_however_it_is_asked_for() -> None:
    looks: list[str] = []

    def look() -> AgentStatus:
        looks.append("")
        return VIEW

    async with serving(look, LOOPBACK) as at, client(at) as it:
        for number in range(60):
            it.send(ASKING.replace(b"healthz", b"metrics?%d" % number))
        for _ in range(60):
            assert (await it.heard()).startswith(OK)

    assert len(looks) < 30  # once a second, however long that takes


async def test_over_the_admin_socket_what_is_so_now_is_shown(path: Path) -> None:
    views = iter([VIEW, AgentStatus(node="node-1", version="1", config_awaited=True)])
    async with serving(lambda: next(views), path) as at, client(at) as it:
        it.send(ASKING.replace(b"healthz", b"readyz") * 2)

        assert (await it.heard()).startswith(OK)
        assert (await it.heard()).startswith(b"HTTP/1.1 503")

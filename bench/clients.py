"""Clients that mean no good, in a process of their own: `python -m bench.clients [HOST:PORT]`.

20 pipeline requests as fast as they are taken, 64 send one a byte at a time; whoever is hung up on comes
again. Without an address they are as many and as busy at a server of their own, in the same process: what is
measured beside them is as slow as the machine is then, and no slower. Prints a line once all have come.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PIPELINING, SLOW = 20, 64
#: What the 20 ask for, in turn: the cheapest view mostly, and the dearest that strangers may see.
ASKED = ("/healthz", "/healthz", "/healthz", "/metrics")
BATCH = 50
#: Seconds between two bytes.
SLOWNESS = 0.1


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


class Crowd:
    """All of them."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._came: set[int] = set()
        self.all_came = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, path in zip(range(PIPELINING), itertools.cycle(ASKED), strict=False):
                group.create_task(self._again(number, request(path) * BATCH, 0.0))
            for number in range(PIPELINING, PIPELINING + SLOW):
                group.create_task(self._again(number, b"x", SLOWNESS))

    async def _again(self, number: int, piece: bytes, pause: float) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                self._has_come(number)
                reading = asyncio.create_task(_read(reader))
                try:
                    writer.write(b"" if not pause else request("/healthz")[:-2] + b"X: ")
                    while not reading.done():
                        writer.write(piece)
                        await writer.drain()
                        await asyncio.sleep(pause)
                finally:
                    reading.cancel()
                    writer.transport.abort()
            await asyncio.sleep(0)

    def _has_come(self, number: int) -> None:
        self._came.add(number)
        if len(self._came) == PIPELINING + SLOW:
            self.all_came.set()


async def _read(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while received := await reader.read(1 << 16):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n" * received.count(b"\r\n\r\n"))
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[str, int]]:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


async def _main(address: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        host, _, port = address.rpartition(":")
        where = (host, int(port)) if address else await stack.enter_async_context(_server())
        crowd = Crowd(*where)
        coming = asyncio.create_task(crowd.run())
        await crowd.all_came.wait()
        print("here", flush=True)  # noqa: T201
        await asyncio.to_thread(sys.stdin.read)
        coming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await coming


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1] if sys.argv[1:] else ""))

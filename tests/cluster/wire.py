"""A server on loopback that says, byte by byte, what a test wants to be said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ssl import SSLContext
from typing import Any

from agent.testing.closed_servers import settled


@dataclass(frozen=True, slots=True)
class Asked:
    """A request; the names of headers are in small letters."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    #: The name in the certificate that the client showed.
    shown: str = ""


#: Answers a request by writing to the connection; what it leaves open is closed after it.
Answer = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Wire:
    url: str
    asked: list[Asked] = field(default_factory=list)


@asynccontextmanager
async def wire(answer: Answer, tls: SSLContext | None = None) -> AsyncIterator[Wire]:
    """Serve one request on each connection; at the end those that were left without an answer are cut."""
    heard, serving = Wire(""), set[asyncio.Task[Any]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            asked = replace(await _read(reader), shown=_shown(writer))
            heard.asked.append(asked)
            await answer(asked, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went first, or the test is over
        finally:
            writer.close()
            serving.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    heard.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        try:
            yield heard
        finally:
            for listener in server.sockets:
                await settled(listener)
            for task in serving:
                task.cancel()


def says(status: int, body: Any = None, **headers: str) -> Answer:
    """Answer with this status and body, as JSON unless it is bytes already."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def answer(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(status, **{"Content-Length": str(len(content)), **headers}) + content)
        await writer.drain()

    return answer


def sends(*parts: bytes, end: bool = True) -> Answer:
    """Answer with a stream of these parts; without an end it is cut off."""

    async def answer(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, **{"Transfer-Encoding": "chunked"}))
        for part in [*parts, b""] if end else parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        await writer.drain()

    return answer


async def nothing(_: Asked, writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


def head(status: int, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Word", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


def line(kind: str, **metadata: Any) -> bytes:
    """A line of a watch, of an object with this metadata."""
    return json.dumps({"type": kind, "object": {"metadata": metadata}}).encode() + b"\n"


def _shown(writer: asyncio.StreamWriter) -> str:
    certificate = writer.get_extra_info("peercert") or {}
    return "".join(value for ((_, value),) in certificate.get("subject", ()))


async def _read(reader: asyncio.StreamReader) -> Asked:
    first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    method, target, _ = first.split()
    headers = {name.lower(): value for name, _, value in (it.partition(": ") for it in rest if it)}
    return Asked(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))

"""A client of a plugin's socket that speaks HTTP/2 by hand."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event, TrailersReceived

_CONNECT = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).connect(sys.argv[2])"


class Wire:
    """A client that speaks HTTP/2 by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.http.initiate_connection()
        self.events: list[Event] = []
        #: What the server closed the connection with.
        self.goodbye: ErrorCodes | int | None = None

    @classmethod
    @asynccontextmanager
    async def to(cls, path: Path, *, by_another_process: bool = False) -> AsyncIterator[Wire]:
        """Connect; the kernel names the process that did, whoever uses the connection."""
        with socket.socket(socket.AF_UNIX) as client:
            await asyncio.to_thread(_connect_elsewhere if by_another_process else _connect, client, path)
            wire = cls(*await asyncio.open_unix_connection(sock=client))
            try:
                yield wire
            finally:
                wire.writer.close()
                with suppress(ConnectionError):
                    await wire.writer.wait_closed()

    def begin(self, method: str) -> int:
        stream = self.http.get_next_available_stream_id()
        self.http.send_headers(
            stream,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", method),
                (":authority", "localhost"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            ],
        )
        return stream

    def ask(self, method: str, body: bytes) -> int:
        """Call, and go on."""
        stream = self.begin_with(method, body)
        self.http.end_stream(stream)
        self.flush()
        return stream

    def begin_with(self, method: str, body: bytes) -> int:
        """Begin a request, and do not end it."""
        stream = self.begin(method)
        for at in range(0, len(body), self.http.max_outbound_frame_size):
            self.http.send_data(stream, body[at : at + self.http.max_outbound_frame_size])
        self.flush()
        return stream

    def flush(self) -> None:
        self.writer.write(self.http.data_to_send())

    async def status(self) -> dict[str, str]:
        """The trailers of the first call that ends."""
        while True:
            try:
                raw = await self.reader.read(65_536)
            except ConnectionResetError:  # closed with what we sent unread
                raw = b""
            if not raw:
                raise EOFError
            self.events += self.http.receive_data(raw)
            for event in self.events:
                if isinstance(event, ConnectionTerminated):
                    self.goodbye = event.error_code
                headers = dict(getattr(event, "headers", None) or ())
                if isinstance(event, TrailersReceived) or "grpc-status" in headers:
                    return headers

    async def call(self, method: str, body: bytes) -> dict[str, str]:
        self.ask(method, body)
        return await self.status()


def _connect(client: socket.socket, path: Path) -> None:
    client.connect(str(path))


def _connect_elsewhere(client: socket.socket, path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", _CONNECT, str(client.fileno()), str(path)],
        pass_fds=[client.fileno()],
        check=True,
    )

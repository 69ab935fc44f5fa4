"""HTTP/2 as grpc-go speaks it to a plugin: its headers, its empty SETTINGS, its receive limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from grpclib.client import Channel
from grpclib.client import Handler as ClientHandler
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.protocol import Connection, EventsProcessor, H2Protocol, Stream
from grpclib.utils import Wrapper
from h2.connection import H2Connection

USER_AGENT = "grpc-go/1.79.3"  # of Kubernetes 1.36
#: The client preface, then SETTINGS that keep every default.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
DEFAULT_WINDOW = 65_535

Headers = list[tuple[str, str]]


class LimitedCodec(CodecBase):
    """Encodes messages of betterproto2, or `bytes` as they are. Refuses messages over the limit."""

    __content_subtype__ = "proto"

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        if len(data) > self._limit:
            text = f"grpc: received message larger than max ({len(data)} vs. {self._limit})"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
        return data if message_type is bytes else message_type.parse(data)


class GoChannel(Channel):
    """A connection to one plugin's socket; `close` is final."""

    def __init__(self, socket: Path, receive_limit: int) -> None:
        windows = Configuration(
            http2_connection_window_size=DEFAULT_WINDOW, http2_stream_window_size=DEFAULT_WINDOW
        )
        super().__init__(path=str(socket), codec=LimitedCodec(receive_limit), config=windows)
        self._authority = "localhost"
        self._closed = False

    async def __connect__(self) -> H2Protocol:
        if self._closed:
            raise GRPCError(Status.CANCELLED, "grpc: the client connection is closing")
        return await super().__connect__()

    def _protocol_factory(self) -> H2Protocol:
        return GoProtocol(ClientHandler(), self._config, self._h2_config)

    async def _create_connection(self) -> H2Protocol:
        protocol = cast("GoProtocol", await super()._create_connection())
        try:
            await protocol.settled
        except BaseException:
            protocol.processor.close()
            raise
        return protocol

    def drop(self) -> None:
        """Lose the connection, as a broken peer would."""
        if self._protocol is not None:
            self._protocol.processor.close("Connection lost")

    def cut(self) -> None:
        """Lose the connection during the plugin's next message. No part of that message arrives."""
        if self._protocol is not None:
            cast("GoProtocol", self._protocol).cut = True

    def close(self) -> None:
        self._closed = True
        super().close()


class GoProtocol(H2Protocol):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Done once the plugin's SETTINGS arrived: grpc-go calls no connection ready before.
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cut = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        h2 = H2Connection(config=self.h2_config)
        h2.initiate_connection()
        h2.clear_outbound_data_buffer()
        writer = cast("asyncio.Transport", transport)
        writer.write(PREFACE)
        self.connection = _GoConnection(h2, writer, config=self.config)
        self.processor = EventsProcessor(self.handler, self.connection)

    def data_received(self, data: bytes) -> None:
        if self.cut:
            self.processor.close("Connection lost")
            return
        super().data_received(data)
        if not self.settled.done():
            self.settled.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if not self.settled.done():
            self.settled.set_exception(ConnectionResetError("connection reset by peer"))


class _GoConnection(Connection):
    def create_stream(self, *, stream_id: int | None = None, wrapper: Wrapper | None = None) -> Stream:
        return _GoStream(self, self._connection, self._transport, stream_id=stream_id, wrapper=wrapper)


class _GoStream(Stream):
    async def send_request(
        self, headers: Headers, end_stream: bool = False, *, _processor: EventsProcessor
    ) -> Callable[[], None]:
        own_headers = [(name, USER_AGENT if name == "user-agent" else value) for name, value in headers]
        return await super().send_request(own_headers, end_stream, _processor=_processor)

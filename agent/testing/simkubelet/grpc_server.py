"""A gRPC server on a unix socket that closes its connections with itself, as grpc-go's does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import betterproto2
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

from agent.testing.closed_servers import abandon, settled

from .grpc_transport import LimitedCodec

Request = TypeVar("Request", bound=betterproto2.Message)
RECEIVE_LIMIT = 4 << 20  # grpc-go default, of a server as of a client


def unary(
    request: type[Request], reply: type[betterproto2.Message], answer: Callable[[Request], Awaitable[Any]]
) -> Handler:
    """Make a handler for one method. An exception's text becomes the status message, as with a Go error."""

    async def serve(stream: Stream[Request, Any]) -> None:
        message = await stream.recv_message()
        assert message is not None
        try:
            result = await answer(message)
        except GRPCError:
            raise
        except Exception as exc:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                # The caller has gone: grpclib prints the traceback of a call that ends with another error.
                raise asyncio.CancelledError from exc
            raise GRPCError(Status.UNKNOWN, str(exc)) from exc
        await stream.send_message(result)

    return Handler(serve, Cardinality.UNARY_UNARY, request, reply)


#: Seconds that a server which ends leaves to clients that read slowly.
PATIENCE = 1.0


class UnixServer(Server):
    def __init__(self, methods: Mapping[str, Handler]) -> None:
        super().__init__([_Methods(dict(methods))], codec=LimitedCodec(RECEIVE_LIMIT))
        self._protocols: list[_Protocol] = []

    def _protocol_factory(self) -> _Protocol:
        self._protocols = [one for one in self._protocols if not _gone(one)]
        handler = super()._protocol_factory().handler
        self._protocols.append(_Protocol(handler, self._config, self._h2_config))
        return self._protocols[-1]

    async def listen(self, path: Path) -> None:
        # Bound by hand: asyncio would unlink a socket in the way, and 3.13 removes it again at the end.
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
        except OSError:
            listener.close()
            raise
        try:
            await self.start(sock=listener)
        except BaseException:
            abandon(listener, path)
            raise
        self._listener = listener

    async def shutdown(self) -> None:
        """Cancel every call and close every connection; the socket file stays."""
        await settled(self._listener)
        self.close()
        for protocol in self._protocols:
            if hasattr(protocol, "processor"):
                protocol.end("Server closed")
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(PATIENCE):
                await self.wait_closed()
        except TimeoutError:  # since Python 3.12 asyncio waits for what a client does not read
            for protocol in self._protocols:
                protocol.abort()
            await self.wait_closed()


class _Protocol(H2Protocol):
    _of_socket: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._of_socket = transport
        super().connection_made(transport)

    def abort(self) -> None:
        """Drop what the client has not read, and close its connection."""
        if isinstance(self._of_socket, asyncio.WriteTransport):
            self._of_socket.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.end("Connection lost")

    def end(self, reason: str) -> None:
        self.processor.close(reason)
        # A call that the client took back may wait to send its end; grpclib would let the call wait for ever.
        self.connection.write_ready.set()


def _gone(protocol: H2Protocol) -> bool:
    return hasattr(protocol, "connection") and protocol.connection.is_closing()


class _Methods:
    def __init__(self, methods: dict[str, Handler]) -> None:
        self._methods = methods

    def __mapping__(self) -> dict[str, Handler]:
        return self._methods

"""What goes wrong between a kubelet and an agent, with a kubelet of any kind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from grpclib.client import Channel, UnaryStreamMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream
from h2.exceptions import StreamClosedError

from .plugin import SERVICE, ClosingServer, Raw, call, message_of, texts

LISTER = "/v1.PodResourcesLister/"
CALLS = ("List", "Get", "GetAllocatableResources")


class FaultyPodResources:
    """Stands before a kubelet's PodResources socket and answers from there, or badly.

    `served` is to be given to the agent in place of the kubelet's own socket; keep its path short. A
    kubelet that is down itself shows as UNAVAILABLE.
    """

    def __init__(self, kubelet: Path, served: Path) -> None:
        self.served = served
        self.counts: Counter[str] = Counter()  # calls that arrived, the failed ones too
        self.delay = 0.0  # seconds before each answer
        self._kubelet = kubelet
        self._limited = False
        self._open = asyncio.Event()
        self._open.set()
        self._server: ClosingServer | None = None

    @property
    def calls(self) -> int:
        return self.counts.total()

    async def __aenter__(self) -> Self:
        await self.come_back()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.go_away()

    async def go_away(self) -> None:
        """Remove the socket and cut every connection."""
        server, self._server = self._server, None
        if server is not None:
            await server.shutdown()
            self.served.unlink(missing_ok=True)

    async def come_back(self) -> None:
        if self._server is None:
            self._server = ClosingServer([self])
            await self._server.start(path=str(self.served))

    def stall(self) -> None:
        """Answer nothing until `flow`; what was asked before is answered then."""
        self._open.clear()

    def flow(self) -> None:
        self._open.set()

    def limit(self, limited: bool = True) -> None:
        """Refuse every call as the kubelet does that is asked too often."""
        self._limited = limited

    async def heal(self) -> None:
        """Undo every fault."""
        self.delay = 0.0
        self.flow()
        self.limit(False)
        await self.come_back()

    def __mapping__(self) -> dict[str, Handler]:
        return {
            LISTER + name: Handler(self._handler(LISTER + name), Cardinality.UNARY_UNARY, bytes, bytes)
            for name in CALLS
        }

    def _handler(self, path: str) -> Callable[[Stream[bytes, bytes]], Awaitable[None]]:
        async def forward(stream: Stream[bytes, bytes]) -> None:
            request = await message_of(stream)
            self.counts[path.removeprefix(LISTER)] += 1
            if self._limited:
                raise GRPCError(Status.RESOURCE_EXHAUSTED, "rejected by rate limit")
            await self._open.wait()
            await asyncio.sleep(self.delay)
            try:
                answer = await call(self._kubelet, path, request)
            except OSError as error:
                raise GRPCError(Status.UNAVAILABLE, str(error)) from error
            await stream.send_message(answer)

        return forward


@asynccontextmanager
async def second_stream(plugin: Path) -> AsyncIterator[AsyncIterator[Mapping[str, str]]]:
    """Open ListAndWatch at a plugin's socket, beside the kubelet's: device ID to health, list by list."""
    watch = SERVICE + "ListAndWatch"
    async with (
        Channel(path=str(plugin), codec=Raw()) as channel,
        UnaryStreamMethod[bytes, bytes](channel, watch, bytes, bytes).open() as stream,
    ):
        await stream.send_message(b"", end=True)
        try:
            yield (_devices(message) async for message in stream)
        finally:
            with suppress(StreamClosedError):  # it was refused
                await stream.cancel()


def _devices(message: bytes) -> Mapping[str, str]:
    return {texts(one, 1)[0].decode(): texts(one, 2)[0].decode() for one in texts(message, 1)}

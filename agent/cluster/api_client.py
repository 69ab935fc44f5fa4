"""Calls the API server: plain JSON over kubernetes-asyncio's ApiClient, with all bounds set."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from agent.cluster import kubernetes_library
from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, TooLong, refusal
from agent.cluster.api_protocol import Object, Patch, WatchMessage
from agent.cluster.credentials import ApiAccess, of_kubeconfig
from agent.cluster.kubernetes_configuration import configured
from agent.cluster.renewed_certificates import ClientPool, Connections, Marks, marks
from agent.cluster.server_restart import ServerRestart
from agent.cluster.watch_pace import WatchPace
from agent.core.errors import ConfigError
from agent.host.version import version
from agent.vendor_api.text import shorten

JSON, PLAIN = "application/json", "identity"
#: Longer answers are decoded item by item. Decoding 64 KiB takes some milliseconds at worst.
TURN = 64 * 1024
SELECTORS = "fieldSelector", "labelSelector"
PATCHES: Mapping[Patch, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}


class CallTimeouts(Struct, frozen=True):
    """Timeouts in seconds, and bounds in bytes."""

    #: Of a call in all, and of its connection.
    call: float = 10.0
    connect: float = 5.0
    #: Without a line of a watch; the server sends a bookmark each minute.
    silence: float = 120.0
    #: Bytes of an answer: 250 pods of 32 KiB. Pods have 10 to 30 kB; an object in etcd has 1.5 MiB at most.
    #: Decoded JSON of many small objects takes 29 times its bytes: 8 MiB with copies take 256 MiB at most.
    body: int = 8 << 20
    #: Bytes of a watch's line, of a list's item and of an object, each decoded in one step. An object in etcd
    #: has 1.5 MiB at most, and some more as JSON. 4 MiB of small objects block the loop for half a second.
    line: int = 4 << 20
    #: Of each watch, bytes in a second, and bytes at once: 110 pods of 15 KiB that each changed nine times
    #: during an outage.
    rate: float = 2 << 20
    burst: int = 16 << 20


class _Page(msgspec.Struct):
    """A list with its items still encoded."""

    items: msgspec.Raw


class _Event(msgspec.Struct):
    type: str
    object: dict[str, Any]


async def open_api(
    access: ApiAccess,
    limits: CallTimeouts | None = None,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Client:
    """Load the library in a thread and prepare the client; no connection is opened yet.

    Proxies are the kubeconfig's `proxy-url`, else HTTPS_PROXY and NO_PROXY, as in all Kubernetes clients.

    Raises:
        ApiAway: The library, the kubeconfig or a certificate cannot be used now; a later try may succeed.
    """
    try:
        library = await asyncio.to_thread(kubernetes_library.load)
    except ImportError as error:
        raise ApiAway(f"kubernetes-asyncio cannot be loaded: {error}") from None
    connections = Connections(await _pool(access, library), partial(_pool, access, library))
    return Client(connections, library.errors, limits or CallTimeouts(), sleep)


async def _pool(access: ApiAccess, library: kubernetes_library.Library) -> ClientPool:
    """Make a pool from the files as they are now; they may have changed since the access was found."""
    access, before = await asyncio.to_thread(_read, access)
    async with configured(access, library) as (configuration, token):
        try:
            client = library.api_client(configuration)
        except OSError as error:  # includes ssl.SSLError
            raise ApiAway(f"{access}: its CA or client certificate cannot be used: {error}") from None
    client.user_agent = f"xpu-agent/{version()}"
    return ClientPool(access.server, client, token, access.files, before)


def _read(access: ApiAccess) -> tuple[ApiAccess, Marks | None]:
    """Read the kubeconfig. Files are marked before they are read, so that a later change is noticed."""
    if access.kubeconfig is None:
        return access, marks(access.files)
    kubeconfig = marks((access.kubeconfig,))
    try:
        access = of_kubeconfig(access.kubeconfig)
    except ConfigError as error:
        raise ApiAway(str(error)) from None
    certificates = marks(access.certificates)
    return access, None if kubeconfig is None or certificates is None else (*kubeconfig, *certificates)


class Client:
    """The `Api` of a real server."""

    def __init__(
        self,
        connections: Connections,
        errors: tuple[type[Exception], ...],
        limits: CallTimeouts,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """`errors` are the exceptions of kubernetes-asyncio for a failed connection."""
        self._connections = connections
        self._errors: tuple[type[Exception], ...] = (*errors, OSError, ValueError)
        self._limits = limits
        self._restart = ServerRestart()
        self._sleep = sleep
        #: By path and selectors: a watch that is opened again gets no new burst.
        self._flows = defaultdict[tuple[str, ...], WatchPace](partial(WatchPace, limits.rate, limits.burst))

    @property
    def server(self) -> str:
        return self._connections.server

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        return await self._call("GET", path, query=query)

    async def post(self, path: str, body: Object) -> Object:
        return await self._call("POST", path, body)

    async def put(self, path: str, body: Object) -> Object:
        return await self._call("PUT", path, body)

    async def patch(self, path: str, body: Any, kind: Patch = "merge") -> Object:
        return await self._call("PATCH", path, body, PATCHES[kind])

    async def delete(self, path: str, body: Object | None = None) -> None:
        await self._call("DELETE", path, body)

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        flow = self._flows[path, *(query.get(selector, "") for selector in SELECTORS)]
        async with self._connections.use() as pool:
            with self._failures(pool):
                async with asyncio.timeout(self._limits.call):
                    patience = (self._limits.connect, self._limits.silence)
                    query = {**query, "watch": "true"}
                    response = await self._answer(pool, "GET", path, query, None, JSON, patience)
            try:
                if not 200 <= response.status < 300:
                    with self._failures(pool):
                        async with asyncio.timeout(self._limits.call):
                            await self._end(pool, response)
                async with aclosing(self._events(pool, response, flow)) as events:
                    yield events
            finally:
                _hang_up(response)

    async def close(self) -> None:
        await self._connections.close()
        await asyncio.sleep(0)  # a cancelled handshake releases its socket one turn later

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> Object:
        limit = self._limits.call
        async with self._connections.use() as pool:
            with self._failures(pool):
                async with asyncio.timeout(limit):
                    response = await self._answer(pool, method, path, query or {}, body, content, limit)
                    try:
                        return await self._end(pool, response)
                    finally:
                        _hang_up(response)

    async def _answer(self, pool: ClientPool, *request: Any) -> Any:
        """Send a request and return the response once its headers have arrived."""
        response = await _send(pool.client, *request)
        self._restart.answered()
        encoding = response.headers.get("Content-Encoding", PLAIN)
        if encoding != PLAIN:
            _hang_up(response)
            what = f"its answer is compressed ({shorten(encoding)}), though a plain one was requested"
            raise ApiAway(f"{pool.server}: {what}")
        return response

    async def _end(self, pool: ClientPool, response: Any) -> Object:
        """Read the rest of a response: the object, or the error that the status means."""
        body = await self._body(pool, response)
        try:
            answer = await self._decoded(pool, body)
        except (msgspec.DecodeError, RecursionError):
            answer = body[:1000].decode(errors="replace")
        if not 200 <= response.status < 300:
            error = _refused(pool, response.status, answer, response.headers.get("Retry-After"))
            if response.status == 403 and self._restart.is_fresh:
                raise ApiAway(f"{pool.server}: has only just come back, and refuses: {error}")
            raise error
        if not isinstance(answer, dict):
            raise ApiAway(f"{pool.server}: answered {response.status} with no object; is it an API server?")
        return answer

    async def _decoded(self, pool: ClientPool, body: bytes) -> Any:
        """Decode an answer; a long list item by item, with a turn of the event loop after each.

        Raises:
            ApiAway: An object in the answer is longer than `line` bytes.
        """
        if len(body) <= TURN:
            return msgspec.json.decode(body)
        try:
            raw = msgspec.json.decode(body, type=_Page).items
            left = msgspec.json.decode(raw, type=list[msgspec.Raw])
        except msgspec.ValidationError:
            return self._object(pool, body)
        self._check_size(pool, len(body) - len(memoryview(raw)))
        left.reverse()
        items = []
        while left:
            items.append(self._object(pool, left.pop()))
            await self._sleep(0)
        parts = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        others = {name: msgspec.json.decode(part) for name, part in parts.items() if name != "items"}
        return {**others, "items": items}

    def _object(self, pool: ClientPool, raw: bytes | msgspec.Raw) -> Any:
        self._check_size(pool, len(memoryview(raw)))
        return msgspec.json.decode(raw)

    def _check_size(self, pool: ClientPool, size: int) -> None:
        if size > self._limits.line:
            what = f"an object in its answer has {size} bytes; the agent reads {self._limits.line}"
            raise ApiAway(f"{pool.server}: {what}, and etcd takes 1.5 MiB")

    async def _body(self, pool: ClientPool, response: Any) -> bytes:
        body = bytearray()
        with self._failures(pool):
            async for part in response.content.iter_any():
                body += part
                if len(body) > self._limits.body:
                    raise TooLong(f"{pool.server}: its answer is longer than {self._limits.body} bytes")
        return bytes(body)

    async def _events(
        self, pool: ClientPool, response: Any, flow: WatchPace
    ) -> AsyncGenerator[WatchMessage, None]:
        loop = asyncio.get_running_loop()
        while line := await self._line(pool, response):
            yield _message(pool, line)
            # At least one turn for other tasks: more lines may have arrived already.
            await self._sleep(flow.rest(len(line), loop.time()))

    async def _line(self, pool: ClientPool, response: Any) -> bytes:
        """The next line; empty at the end of the watch."""
        with self._failures(pool):
            line: bytes = await response.content.readline(max_line_length=self._limits.line)
        if line and not line.endswith(b"\n"):
            raise ApiAway(f"{pool.server}: the watch was cut in mid-line")
        return line

    @contextmanager
    def _failures(self, pool: ClientPool) -> Iterator[None]:
        """Turn every failure of the connection into ApiAway, with the server's address."""
        try:
            yield
        except ApiError:
            raise
        except TimeoutError as error:
            self._restart.missed()
            raise ApiAway(f"{pool.server}: {str(error) or 'no answer in time'}") from None
        except self._errors as error:
            self._restart.missed()
            reason = shorten(str(error) or type(error).__name__, 300)
            raise ApiAway(f"{pool.server}: {reason}") from None


def _message(pool: ClientPool, line: bytes) -> WatchMessage:
    try:
        event = msgspec.json.decode(line, type=_Event)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiAway(f"{pool.server}: a line of the watch is no event: {error}") from None
    if event.type == "ERROR":
        code = event.object.get("code")
        raise _refused(pool, code if isinstance(code, int) else 500, event.object)
    return WatchMessage(event.type, event.object)


def _refused(pool: ClientPool, code: int, answer: object, retry_after: str | None = None) -> ApiError:
    error = refusal(code, answer, retry_after)
    if isinstance(error, ApiRefused) and error.status == 401:
        pool.token.refused()
    return error


def _hang_up(response: Any) -> None:
    """Close the response, and its connection at once unless it is free for the next call.

    A TLS connection would wait for the server's close_notify, which may come after the loop has ended.
    """
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


async def _send(
    client: Any, method: str, path: str, query: Mapping[str, str], body: Any, content: str, patience: Any
) -> Any:
    """Send a request; returns an aiohttp.ClientResponse once its headers have arrived.

    The request asks for an uncompressed answer: aiohttp would inflate one byte to a thousand, on the loop.
    """
    return await client.call_api(
        path,
        method,
        query_params=list(query.items()),
        header_params={"Accept": JSON, "Accept-Encoding": PLAIN, "Content-Type": content},
        body=body,
        auth_settings=["BearerToken"],
        _preload_content=False,
        _request_timeout=patience,
    )

"""Speaks with the API server: plain JSON over kubernetes-asyncio's ApiClient, with every bound set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from agent.cluster import lean
from agent.cluster.access import Access, of_kubeconfig
from agent.cluster.api import Object, Patch, Seen
from agent.cluster.configuration import configured
from agent.cluster.errors import ApiAway, ApiError, ApiRefused
from agent.cluster.status import refusal
from agent.cluster.ways import Way, Ways, marks
from agent.core.errors import ConfigError
from agent.core.text import shorten
from agent.version import version

JSON = "application/json"
PATCHES: Mapping[Patch, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds for a call in all, of them for its connection, and of silence in a watch; bytes."""

    call: float = 10.0
    connect: float = 5.0
    #: The server sends a bookmark each minute.
    silence: float = 120.0
    body: int = 32 << 20
    #: An object in etcd has 1.5 MiB at most, and some more as JSON.
    line: int = 4 << 20


class _Event(msgspec.Struct):
    type: str
    object: dict[str, Any]


async def open_api(access: Access, limits: Limits | None = None) -> Client:
    """Load the library, in a thread, and make ready to speak; nobody is connected to yet.

    Proxies: the kubeconfig's `proxy-url`, else HTTPS_PROXY and NO_PROXY, as all Kubernetes clients take them.

    Raises:
        ApiAway: The library, the kubeconfig or a certificate can not be used; it may be mended meanwhile.
    """
    try:
        library = await asyncio.to_thread(lean.load)
    except ImportError as error:
        raise ApiAway(f"kubernetes-asyncio can not be loaded: {error}") from None
    ways = Ways(await _way(access, library), partial(_again, access, library))
    return Client(ways, library.errors, access.server, limits or Limits())


async def _way(access: Access, library: lean.Library) -> Way:
    before = marks(access.files)
    async with configured(access, library) as (configuration, token):
        try:
            client = library.api_client(configuration)
        except OSError as error:  # of ssl too
            raise ApiAway(f"{access}: its CA or client certificate can not be used: {error}") from None
    client.user_agent = f"xpu-agent/{version()}"
    return Way(client, token, access.files, before)


async def _again(access: Access, library: lean.Library) -> Way:
    """The same from the files as they are now."""
    if access.kubeconfig is not None:
        try:
            access = await asyncio.to_thread(of_kubeconfig, access.kubeconfig)
        except ConfigError as error:
            raise ApiAway(str(error)) from None
    return await _way(access, library)


class Client:
    """The `Api` of a server that is somewhere else; see there for what it raises."""

    def __init__(
        self,
        ways: Ways,
        errors: tuple[type[Exception], ...],
        server: str,
        limits: Limits,
    ) -> None:
        """`errors`: what kubernetes-asyncio raises where the wire fails."""
        self._ways = ways
        self._errors: tuple[type[Exception], ...] = (*errors, OSError, ValueError)
        self._server = server
        self._limits = limits

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
    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[AsyncIterator[Seen]]:
        async with AsyncExitStack() as stack:
            with self._failures():
                async with asyncio.timeout(self._limits.call):
                    client = await stack.enter_async_context(self._ways.use())
                    patience = (self._limits.connect, self._limits.silence)
                    query = {**query, "watch": "true"}
                    response = await _send(client, "GET", path, query, None, JSON, patience)
            try:
                if not 200 <= response.status < 300:
                    with self._failures():
                        async with asyncio.timeout(self._limits.call):
                            await self._end(response)
                async with aclosing(self._events(response)) as events:
                    yield events
            finally:
                _hang_up(response)

    async def close(self) -> None:
        await self._ways.close()
        await asyncio.sleep(0)  # what was cancelled in its handshake lets go of its socket one turn later

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> Object:
        limit = self._limits.call
        with self._failures():
            async with asyncio.timeout(limit), self._ways.use() as client:
                response = await _send(client, method, path, query or {}, body, content, limit)
                try:
                    return await self._end(response)
                finally:
                    _hang_up(response)

    async def _end(self, response: Any) -> Object:
        """The object that came, or the error that it means."""
        body = await self._body(response)
        try:
            answer = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            answer = body[:1000].decode(errors="replace")
        if not 200 <= response.status < 300:
            raise self._refused(response.status, answer, response.headers.get("Retry-After"))
        if not isinstance(answer, dict):
            raise ApiAway(f"{self._server}: answered {response.status} with no object; is it an API server?")
        return answer

    async def _body(self, response: Any) -> bytes:
        body = bytearray()
        with self._failures():
            async for part in response.content.iter_any():
                body += part
                if len(body) > self._limits.body:
                    raise ApiAway(f"{self._server}: its answer is longer than {self._limits.body} bytes")
        return bytes(body)

    async def _events(self, response: Any) -> AsyncGenerator[Seen, None]:
        while line := await self._line(response):
            yield self._seen(line)

    async def _line(self, response: Any) -> bytes:
        """The next line, empty at the end."""
        with self._failures():
            line: bytes = await response.content.readline(max_line_length=self._limits.line)
        if line and not line.endswith(b"\n"):
            raise ApiAway(f"{self._server}: the watch was cut in mid-line")
        return line

    def _seen(self, line: bytes) -> Seen:
        try:
            event = msgspec.json.decode(line, type=_Event)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ApiAway(f"{self._server}: a line of the watch is no event: {error}") from None
        if event.type == "ERROR":
            code = event.object.get("code")
            raise self._refused(code if isinstance(code, int) else 500, event.object)
        return Seen(event.type, event.object)

    def _refused(self, code: int, answer: object, retry_after: str | None = None) -> ApiError:
        error = refusal(code, answer, retry_after)
        if isinstance(error, ApiRefused) and error.status == 401:
            self._ways.token.refused()
        return error

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Everything that the wire can do is ApiAway, with the server's address."""
        try:
            yield
        except ApiError:
            raise
        except TimeoutError as error:
            raise ApiAway(f"{self._server}: {str(error) or 'no answer in time'}") from None
        except self._errors as error:
            said = shorten(str(error) or type(error).__name__, 300)
            raise ApiAway(f"{self._server}: {said}") from None


def _hang_up(response: Any) -> None:
    """Let go of the connection at once, unless it is free for the next call.

    TLS would wait for the server's goodbye, which may come when the loop is over.
    """
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


async def _send(
    client: Any, method: str, path: str, query: Mapping[str, str], body: Any, content: str, patience: Any
) -> Any:
    """An aiohttp.ClientResponse, of which only the head has come."""
    return await client.call_api(
        path,
        method,
        query_params=list(query.items()),
        header_params={"Accept": JSON, "Content-Type": content},
        body=body,
        auth_settings=["BearerToken"],
        _preload_content=False,
        _request_timeout=patience,
    )

"""A client of API servers that hides nothing: what went in, what came out."""

from __future__ import annotations

import io
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


@dataclass(frozen=True, slots=True)
class Reply:
    """`body` is JSON, or text where the server answered with text."""

    code: int
    body: Any
    headers: Mapping[str, str]

    @property
    def words(self) -> str:
        """The message of a Status."""
        return str(self.body["message"])


class Client:
    def __init__(self, url: str, token: str | None, tls: ssl.SSLContext | None = None) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._session = aiohttp.ClientSession(
            url, headers=headers, connector=aiohttp.TCPConnector(ssl=tls or False)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        media: str = "application/json",
    ) -> Reply:
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        headers = {} if data is None else {"Content-Type": media}
        async with self._session.request(method, path, params=query, data=data, headers=headers) as reply:
            text = await reply.text()
            found = json.loads(text) if reply.content_type == "application/json" else text
            return Reply(reply.status, found, dict(reply.headers))

    async def get(self, path: str, **query: str) -> Reply:
        return await self.ask("GET", path, query=query)

    async def post(self, path: str, body: Any) -> Reply:
        return await self.ask("POST", path, body)

    async def put(self, path: str, body: Any) -> Reply:
        return await self.ask("PUT", path, body)

    async def patch(self, path: str, body: Any, media: str = MERGE) -> Reply:
        return await self.ask("PATCH", path, body, media=media)

    async def delete(self, path: str, body: Any = None) -> Reply:
        return await self.ask("DELETE", path, body)

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[Stream]:
        async with self._session.get(path, params={"watch": "true", **query}) as reply:
            yield Stream(reply)


class Stream:
    """The events of a watch, one after another."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self.code = reply.status
        self._reply = reply

    async def next(self) -> tuple[str, Any]:
        """The next event's type and object.

        Raises:
            EOFError: The server ended the stream in order.
        """
        line = await self._reply.content.readline()
        if not line:
            raise EOFError
        event = json.loads(line)
        return event["type"], event["object"]

    async def body(self) -> Any:
        return await self._reply.json()


def node(name: str = "n", **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}}


def lease(name: str = "l", **metadata: Any) -> dict[str, Any]:
    about = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": about}

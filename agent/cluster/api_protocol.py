"""The API server as a protocol for the other modules of this room: JSON in, JSON out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from msgspec import Struct

#: A Kubernetes object as decoded JSON.
Object = Mapping[str, Any]
Patch = Literal["merge", "strategic", "json"]


class WatchMessage(Struct, frozen=True):
    """One message of a watch. `kind` is ADDED, MODIFIED, DELETED or BOOKMARK; an ERROR is raised instead."""

    kind: str
    object: Object


class Api(Protocol):
    """The verbs of the API server. Each raises ApiAway or ApiRefused, and ends within its timeout."""

    @property
    def server(self) -> str:
        """The server's URL, which changes when the kubeconfig is rewritten."""

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """Read one object, or a list of objects."""

    async def post(self, path: str, body: Object) -> Object:
        """Create an object."""

    async def put(self, path: str, body: Object) -> Object:
        """Replace an object, if its resourceVersion is still the current one."""

    async def patch(self, path: str, body: Any, kind: Patch = "merge") -> Object:
        """Change a part of an object."""

    async def delete(self, path: str, body: Object | None = None) -> None:
        """Delete an object; NotFound if there is none."""

    def watch(
        self, path: str, query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        """Follow a list from a resourceVersion on, until the server ends the watch."""

    async def close(self) -> None: ...

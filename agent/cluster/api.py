"""The API server as the rest of this room needs it: plain JSON in, plain JSON out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

#: A Kubernetes object, as JSON has it.
Object = Mapping[str, Any]
Patch = Literal["merge", "strategic", "json"]


@dataclass(frozen=True, slots=True)
class WatchMessage:
    """One message of a watch. `kind`: ADDED, MODIFIED, DELETED or BOOKMARK; an ERROR is raised instead."""

    kind: str
    object: Object


class Api(Protocol):
    """Every call raises ApiAway or ApiRefused, and ends within its timeout (seconds)."""

    @property
    def server(self) -> str:
        """Its URL, which a kubeconfig that is rewritten may change."""

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """Read an object, or a list of them."""

    async def post(self, path: str, body: Object) -> Object:
        """Create an object."""

    async def put(self, path: str, body: Object) -> Object:
        """Replace an object; its resourceVersion guards it."""

    async def patch(self, path: str, body: Any, kind: Patch = "merge") -> Object:
        """Change a part of an object."""

    async def delete(self, path: str, body: Object | None = None) -> None:
        """Delete an object; one that is not there is NotFound."""

    def watch(
        self, path: str, query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        """Follow a list from a resourceVersion on; ends when the server ends it."""

    async def close(self) -> None: ...

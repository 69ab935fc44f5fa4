"""An API server of a few objects, behind the Protocol and without a wire."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from agent.cluster.api_errors import ApiError, Conflict, NotFound
from agent.cluster.api_protocol import Api, Object, Patch, WatchMessage


class Unasked(Api):
    """A double's calls that the code under test must not make."""

    server = "http://fake"

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        raise AssertionError(f"GET {path} was not expected")

    async def post(self, path: str, body: Object) -> Object:
        raise AssertionError(f"POST {path} was not expected")

    async def put(self, path: str, body: Object) -> Object:
        raise AssertionError(f"PUT {path} was not expected")

    async def patch(self, path: str, body: Any, kind: Patch = "merge") -> Object:
        raise AssertionError(f"PATCH {path} was not expected")

    async def delete(self, path: str, body: Object | None = None) -> None:
        raise AssertionError(f"DELETE {path} was not expected")

    def watch(
        self, path: str, query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        raise AssertionError(f"a watch of {path} was not expected")

    async def close(self) -> None: ...


class FakeApi(Unasked):
    """Objects by their path. `fails` are raised by the next calls, one each; None lets one pass."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.fails: list[ApiError | None] = []
        #: What each verb is refused with, always.
        self.refuses: dict[str, ApiError] = {}
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self._version = 0

    def put_object(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Have it there, as if somebody else had written it."""
        self._version += 1
        kept: dict[str, Any] = copy.deepcopy(dict(body))
        kept["metadata"] = {**kept.get("metadata", {}), "resourceVersion": str(self._version)}
        self.objects[path] = kept
        return copy.deepcopy(kept)

    def has_been_called(self, times: int) -> bool:
        return len(self.calls) >= times

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.calls]

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        self._called("get", path)
        return copy.deepcopy(self._there(path))

    async def post(self, path: str, body: Object) -> Object:
        self._called("post", path, body)
        at = f"{path}/{body['metadata']['name']}"
        if at in self.objects:
            raise Conflict(409, "AlreadyExists", at)
        return self.put_object(at, body)

    async def put(self, path: str, body: Object) -> Object:
        self._called("put", path, body)
        self._check(self._there(path), body)
        return self.put_object(path, body)

    async def patch(self, path: str, body: Any, kind: Patch = "merge") -> Object:
        assert kind == "merge"
        self._called("patch", path, body)
        at = path.removesuffix("/status")  # a part of its object, with a path of its own to write to
        self._check(self._there(at), body)
        return self.put_object(at, merged(self._there(at), body))

    async def delete(self, path: str, body: Object | None = None) -> None:
        self._called("delete", path)
        self._there(path)
        del self.objects[path]

    def _called(self, verb: str, path: str, body: Any = None) -> None:
        self.calls.append((verb, path))
        self.bodies.append(copy.deepcopy(body))
        failure = self.fails.pop(0) if self.fails else self.refuses.get(verb)
        if failure is not None:
            raise failure

    def _there(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise NotFound(404, "NotFound", path)
        return self.objects[path]

    def _check(self, there: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        version = body.get("metadata", {}).get("resourceVersion")
        if version and version != there["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "the object has been modified")


def merged(there: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(there) if isinstance(there, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result

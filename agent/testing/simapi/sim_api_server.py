"""SimApiServer: the simulated API server of tests and the demo."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from . import managed_fields, object_validation, refusals
from .api_resources import WELL_KNOWN, Catalog, Json, Place, Resource
from .listener import HOST, Listener
from .object_store import now
from .serving import Serving
from .verbs import Request
from .watch import End, Mark

USER = "system:serviceaccount:xpu-agent:xpu-agent"


class SimApiServer:
    """kube-apiserver 1.36 as a client sees it, in memory, over plain HTTP on loopback.

    `resources` are served; `serve` adds others, as a CRD does. `user` is the user of the token.
    `bookmark_every`: seconds between bookmarks. Not simulated: TLS, admission, schemas, defaults,
    server-side apply (415), garbage collection, deleting collections, whether a namespace exists.
    """

    def __init__(
        self,
        resources: Iterable[Resource] = WELL_KNOWN,
        *,
        user: str = USER,
        bookmark_every: float = 60.0,
        seed: int = 0,
    ) -> None:
        self._serving = Serving(Catalog(resources), user, secrets.token_urlsafe(24), seed)
        self._bookmark_every = bookmark_every
        self._bookmarks: asyncio.TimerHandle | None = None
        self._listener: Listener | None = None

    async def __aenter__(self) -> Self:
        self._listener = Listener()
        await self.come_back()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.go_away()
        self._port.close()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port.number}"

    @property
    def user(self) -> str:
        """The user of the token, as refusals name it."""
        return self._serving.user

    @property
    def token(self) -> str:
        """The one bearer token that the server accepts."""
        return self._serving.token

    def renew_token(self) -> str:
        """Accept only a new token from now on. The old one has expired (401)."""
        self._serving.token = secrets.token_urlsafe(24)
        return self.token

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig (0600) with which any client finds this server."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "sim",
            "clusters": [{"name": "sim", "cluster": {"server": self.url}}],
            "users": [{"name": "sim", "user": {"token": self.token}}],
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim"}}],
        }
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(config, file)
        return path

    @property
    def requests(self) -> Sequence[Request]:
        """Every request that was answered so far, in order."""
        return tuple(self._serving.requests)

    @property
    def watchers(self) -> int:
        """How many watches run."""
        return len(self._serving.watches)

    @property
    def objects(self) -> Sequence[Json]:
        """Copies of all objects, as GET shows them."""
        return tuple(copy.deepcopy(it) for it in self._serving.store.objects.values())

    def find(self, kind: str, name: str, namespace: str = "") -> Json | None:
        """A copy of one object; None where there is none."""
        place = self._place(kind, name, namespace)
        store = self._serving.store
        return None if place is None else copy.deepcopy(store.get(place.resource, namespace, name))

    def put_object(self, document: Mapping[str, Any], manager: str = "") -> Json:
        """Create or replace the object as it is, status and all, whatever its resourceVersion says.

        A new object keeps its uid. This works in an outage too; clients see the change after the outage.
        `manager`: the name for managedFields; without one the document's managedFields stay as they are.

        Raises:
            LookupError: Nothing of its apiVersion and kind is served.
            Refused: The object is not valid.
        """
        resource, store = self._serving.catalog.of(document), self._serving.store
        new = copy.deepcopy(dict(document))
        metadata = new["metadata"]
        metadata.pop("resourceVersion", None)
        namespace = metadata.setdefault("namespace", "default") if resource.namespaced else ""
        object_validation.check(resource, new)
        place = Place(resource, namespace, metadata["name"])
        old = store.objects.get((resource, namespace, place.name))
        if manager and resource.managed:
            new = managed_fields.marked(old, new, manager, now())
        if old is None:
            store.create(resource, new, str(metadata.get("uid", "")))
        kept = store.replace(place, lambda old: new)
        if resource.status and "status" in new:
            status = Place(resource, namespace, place.name, "status")
            kept = store.replace(status, lambda old: {**old, "status": new["status"]})
        return copy.deepcopy(kept)

    def delete_object(self, kind: str, name: str, namespace: str = "") -> None:
        """Delete the object at once, unless it has finalizers.

        Raises:
            LookupError: The object does not exist.
        """
        place = self._place(kind, name, namespace)
        if place is None:
            raise LookupError(f"no {kind} '{name}' in the namespace '{namespace}'")
        self._serving.store.delete(place, grace=0)

    def serve(self, resource: Resource) -> None:
        """Serve one more resource, as with a CRD that is installed."""
        self._serving.catalog.add(resource)

    def unserve(self, group: str, name: str) -> None:
        """Remove a resource with its objects, as with a CRD that is removed; 404 from then on.

        Raises:
            LookupError: The resource is not served.
        """
        self._serving.catalog.drop(group, name)
        for resource, namespace, one in list(self._serving.store.objects):
            if (resource.group, resource.name) == (group, name):
                self._serving.store.delete(Place(resource, namespace, one), grace=0)

    async def wait(self, condition: Callable[[Self], Any]) -> None:
        """Return once the condition holds. It is evaluated at every request, change and watch."""
        while not condition(self):
            await self._serving.next_note()

    async def go_away(self) -> None:
        """Close the port and cut every connection, also in mid-stream; objects stay. Twice is once."""
        if self._bookmarks is not None:
            self._bookmarks.cancel()
        await self._port.cut()

    async def come_back(self) -> None:
        """Listen on the same port again, with the same objects and the same history."""
        if not self._port.is_open:
            await self._port.open(self._serving.answer)
            self._remind()

    def end_watches(self) -> None:
        """End every watch in order, as their timeouts do."""
        self._serving.watches.tell(End())

    def send_bookmarks(self) -> None:
        """Send a bookmark to every watch that asked for them, before its time."""
        self._serving.watches.tell(Mark(self._serving.store.version))

    def forget_history(self, *, answer: Literal["event", "status"] = "event", running: bool = False) -> None:
        """Compact: from no resourceVersion that was given out so far can one watch or list any more.

        The real server begins the stream and says 410 in it, as an ERROR: `event`. With `status` the watch
        is answered with HTTP's 410. `running`: the watches that run get their ERROR too.
        """
        self._serving.watches.expired_as = answer
        before = self._serving.store.version
        self._serving.store.forget()
        if running:
            self._serving.watches.tell(End(refusals.too_old(before, self._serving.store.version)))

    def be_busy(self, times: int = 1, retry_after: int = 1) -> None:
        """Answer so many requests with 429 and Retry-After (seconds)."""
        self._serving.failing += [refusals.busy(retry_after)] * times

    def be_broken(self, times: int = 1, message: str = "etcdserver: request timed out") -> None:
        """Answer so many requests with 500."""
        self._serving.failing += [refusals.broken(message)] * times

    def hang(self, hang: bool = True) -> None:
        """Take requests in and leave them without an answer until told otherwise."""
        if hang:
            self._serving.answers.clear()
        else:
            self._serving.answers.set()

    def forbid(self, verb: str, path: str) -> None:
        """Refuse the verb (get, list, watch, create, update, patch, delete, or *) with 403.

        `path` is that of a collection, which means its objects too, of an object, or of a subresource.

        Raises:
            LookupError: Nothing is served there.
        """
        self._serving.rights.forbid(verb, self._named(path))

    def permit(self, verb: str, path: str) -> None:
        """Take back what was forbidden in the same words."""
        self._serving.rights.permit(verb, self._named(path))

    def _named(self, path: str) -> Place:
        place = self._serving.catalog.place(path)
        if place is None:
            raise LookupError(f"nothing is served at {path}")
        return place

    def _place(self, kind: str, name: str, namespace: str) -> Place | None:
        for resource, *place in self._serving.store.objects:
            if resource.kind == kind and place == [namespace, name]:
                return Place(resource, namespace, name)
        return None

    @property
    def _port(self) -> Listener:
        if self._listener is None:
            raise RuntimeError("the server is there only inside `async with`")
        return self._listener

    def _remind(self) -> None:
        self.send_bookmarks()
        self._bookmarks = asyncio.get_running_loop().call_later(self._bookmark_every, self._remind)

"""The objects of an API server and every change to them, each with a resourceVersion of its own."""

from __future__ import annotations

import copy
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from . import refusals
from .api_resources import Json, Place, Resource

#: How many changes are remembered. A client that is further behind must list again.
HISTORY = 10_000
#: Fields of metadata that only the server writes.
SYSTEM = ("name", "namespace", "uid", "creationTimestamp", "generation", "deletionTimestamp")
SYSTEM_GRACE = "deletionGracePeriodSeconds"
#: terminationGracePeriodSeconds of a pod that names none.
GRACE = 30

Key = tuple[Resource, str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an object. `old` None: the object was created. `new` None: the object was deleted."""

    version: int
    resource: Resource
    old: Json | None
    new: Json | None


@dataclass(slots=True)
class Store:
    """The objects and their history. Callers must not change the objects that they get, only copies.

    `tell` is called once for each change.
    """

    tell: Callable[[Change], None]
    version: int = 1
    objects: dict[Key, Json] = field(default_factory=dict)
    _log: deque[Change] = field(default_factory=deque)
    _forgotten: int = 1

    def get(self, resource: Resource, namespace: str, name: str) -> Json:
        found = self.objects.get((resource, namespace, name))
        if found is None:
            raise refusals.not_found(resource, name)
        return found

    def create(self, resource: Resource, document: Json, uid: str = "") -> Json:
        """Add an object with name and namespace in its metadata. Without a uid it gets a new one."""
        new = copy.deepcopy(document)
        metadata = new["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        if key in self.objects:
            raise refusals.exists(resource, metadata["name"])
        metadata["uid"] = uid or str(uuid.uuid4())
        metadata["creationTimestamp"] = now()
        for name in ("deletionTimestamp", SYSTEM_GRACE, "generation"):
            metadata.pop(name, None)
        if resource.custom:
            metadata["generation"] = 1
            if resource.status:
                new.pop("status", None)
        return self._commit(key, None, new)

    def replace(self, place: Place, make: Callable[[Json], Json]) -> Json:
        """Replace an object by the result of `make`. Does nothing where the result is equal."""
        resource = place.resource
        key = (resource, place.namespace, place.name)
        old = self.get(*key)
        new = _updated(place, old, copy.deepcopy(make(old)))
        if _same(old, new):
            return old
        metadata = new["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and not _lingers(key, new):
            self._remove(key)
            return new
        return self._commit(key, old, new)

    def delete(self, place: Place, grace: int | None = None) -> tuple[Json, bool]:
        """Delete the object, or only mark it while finalizers or a pod's grace period keep it.

        Returns the object, and whether it is gone.
        """
        key = (place.resource, place.namespace, place.name)
        old = self.get(*key)
        stays = old["metadata"].get("finalizers") or (_lingers(key, old) and grace != 0)
        if not stays:
            return self._remove(key), True
        if old["metadata"].get("deletionTimestamp"):
            return old, False
        seconds = _grace(old, grace) if _lingers(key, old) else 0
        marks = {"deletionTimestamp": now(), SYSTEM_GRACE: seconds}
        new = {**old, "metadata": {**old["metadata"], **marks}}
        return self._commit(key, old, new), False

    def at(self, version: int) -> dict[Key, Json]:
        """All objects as they were at a version.

        Raises:
            LookupError: The version is not remembered any more.
        """
        if version < self._forgotten:
            raise LookupError(f"forgotten: {version}")
        then = dict(self.objects)
        for change in reversed(self._log):
            if change.version <= version:
                break
            some = change.old or change.new
            assert some is not None
            key = (change.resource, some["metadata"].get("namespace", ""), some["metadata"]["name"])
            if change.old is None:
                del then[key]
            else:
                then[key] = change.old
        return then

    def since(self, version: int) -> list[Change]:
        """The changes after a version.

        Raises:
            Refused: 410, the version is not remembered any more.
        """
        if version < self._forgotten:
            raise refusals.too_old(version, self._forgotten)
        return [change for change in self._log if change.version > version]

    def forget(self) -> None:
        """Forget all changes, as a compaction does. After that all versions so far are too old."""
        self.version += 1
        self._log.clear()
        self._forgotten = self.version

    def _commit(self, key: Key, old: Json | None, new: Json) -> Json:
        self._log_change(key[0], old, new)
        new["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = new
        self.tell(self._log[-1])
        return new

    def _remove(self, key: Key) -> Json:
        old = self.objects.pop(key)
        self._log_change(key[0], old, None)
        self.tell(self._log[-1])
        return old

    def _log_change(self, resource: Resource, old: Json | None, new: Json | None) -> None:
        self.version += 1
        self._log.append(Change(self.version, resource, old, new))
        if len(self._log) > HISTORY:
            self._forgotten = self._log.popleft().version


def _updated(place: Place, old: Json, new: Json) -> Json:
    resource = place.resource
    if place.subresource == "status":
        parts = old if resource.custom else {**old, "metadata": new["metadata"]}
        new = copy.deepcopy({**parts, **_part(new, "status")})
    elif resource.status:
        new = {**{key: it for key, it in new.items() if key != "status"}, **_part(old, "status")}
    kept = {key: it for key, it in old["metadata"].items() if key in (*SYSTEM, SYSTEM_GRACE)}
    changed = {key: it for key, it in new["metadata"].items() if key not in (*SYSTEM, SYSTEM_GRACE)}
    metadata: dict[str, Any] = {**changed, **kept}
    if resource.custom and _content(old) != _content(new):
        metadata["generation"] = int(metadata.get("generation", 0)) + 1
    return {**new, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def _part(document: Json, name: Literal["status"]) -> Json:
    return {name: document[name]} if name in document else {}


def _content(document: Json) -> Json:
    return {
        key: value
        for key, value in document.items()
        if key not in ("metadata", "status", "kind", "apiVersion")
    }


def _same(old: Json, new: Json) -> bool:
    return {**old, "metadata": {**old["metadata"], "resourceVersion": ""}} == {
        **new,
        "metadata": {**new["metadata"], "resourceVersion": ""},
    }


def _lingers(key: Key, document: Json) -> bool:
    """A pod that has a node is deleted by its kubelet, once its containers have ended."""
    bound = bool((document.get("spec") or {}).get("nodeName"))
    phase = (document.get("status") or {}).get("phase")
    return key[0].kind == "Pod" and bound and phase not in ("Succeeded", "Failed")


def _grace(pod: Json, asked: int | None) -> int:
    return int(pod["spec"].get("terminationGracePeriodSeconds", GRACE)) if asked is None else max(asked, 1)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

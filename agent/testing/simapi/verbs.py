"""The verbs of the API: their effect on the objects, and their answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import managed_fields, object_validation, pages, patches, refusals
from .api_resources import Json, Place, Resource
from .object_store import Store, now
from .selection import Selection

#: Length and characters of the generated part of a name (k8s.io/apiserver pkg/storage/names/generate.go).
GENERATED = 5
LETTERS = "bcdfghjklmnpqrstvwxz2456789"
LONGEST_BASE = 63 - GENERATED


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came; `body` None where there was none, `media` its content type."""

    verb: str
    path: str
    query: Mapping[str, str]
    body: Any = None
    media: str = ""
    #: The writer's name for managedFields.
    manager: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    body: Json


class Verbs:
    def __init__(self, store: Store, rng: random.Random) -> None:
        self._store = store
        self._rng = rng

    def answer(self, place: Place, request: Request, wanted: Selection) -> Answer:
        """Raises: Refused, RefusedInText."""
        match request.verb:
            case "get":
                return Answer(200, self._store.get(place.resource, place.namespace, place.name))
            case "list":
                return Answer(200, self.listed(wanted, request.query))
            case "create":
                return self._created(place, request)
            case "update":
                return self._updated(place, request)
            case "patch":
                return self._patched(place, request)
            case "delete":
                return self._deleted(place, request)
        raise refusals.no_such_method()

    def listed(self, wanted: Selection, query: Mapping[str, str]) -> Json:
        limit = _number(query, "limit")
        version, start = self._position(query, limit)
        found = {
            f"{namespace}/{name}": document
            for (resource, namespace, name), document in self._then(version, start).items()
            if resource == wanted.resource and wanted.namespace in ("", namespace) and wanted.holds(document)
        }
        # A list at resourceVersion 0 comes from memory and is not split into pages.
        of_memory = query.get("resourceVersion") == "0"
        keys, following, left = pages.page(sorted(found), start, 0 if of_memory else limit)
        resource = wanted.resource
        metadata: Json = {"resourceVersion": str(version)}
        if following:
            metadata["continue"] = pages.Bookmark(version, following).encode()
            if wanted.everything:
                metadata["remainingItemCount"] = left
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": [_item(resource, found[key]) for key in keys],
        }

    def _position(self, query: Mapping[str, str], limit: int) -> tuple[int, str]:
        """The version of the state to list, and the first key of the page."""
        if token := query.get("continue", ""):
            bookmark = pages.Bookmark.decode(token)
            latest = bookmark.version == pages.LATEST
            return (self._store.version if latest else bookmark.version), bookmark.start
        asked, match = _number(query, "resourceVersion"), query.get("resourceVersionMatch", "")
        exact = match == "Exact" or (not match and limit > 0 and asked > 0)
        return (asked if exact else self._store.version), ""

    def _then(self, version: int, start: str) -> Mapping[tuple[Resource, str, str], Json]:
        try:
            return self._store.at(version)
        except LookupError as exc:
            if start:
                go_on = pages.Bookmark(pages.LATEST, start).encode()
                raise refusals.expired(refusals.TOO_OLD_TO_CONTINUE, go_on=go_on) from exc
            text = "The resourceVersion for the provided list is too old."
            raise refusals.expired(text) from exc

    def _created(self, place: Place, request: Request) -> Answer:
        if place.name or (place.resource.namespaced and not place.namespace):
            raise refusals.no_such_method()
        document = _document(place, request.body)
        metadata = document["metadata"]
        if metadata.get("resourceVersion") not in (None, ""):
            raise refusals.version_on_create()
        generated = not metadata.get("name") and bool(metadata.get("generateName"))
        if generated:
            metadata["name"] = self._name(str(metadata["generateName"]))
        object_validation.check(place.resource, document)
        try:
            return Answer(201, self._store.create(place.resource, _marked(place, None, document, request)))
        except refusals.Refused as exc:
            if generated and exc.code == 409:
                raise refusals.exists(place.resource, metadata["name"], generated=True) from exc
            raise

    def _name(self, base: str) -> str:
        return base[:LONGEST_BASE] + "".join(self._rng.choices(LETTERS, k=GENERATED))

    def _updated(self, place: Place, request: Request) -> Answer:
        if not place.name:
            raise refusals.no_such_method()
        document = _document(place, request.body)
        _check_place(place, document)
        exists = (place.resource, place.namespace, place.name) in self._store.objects
        if not exists and place.resource.creates and not place.subresource:
            object_validation.check(place.resource, document)
            document["metadata"].pop("resourceVersion", None)
            return Answer(201, self._store.create(place.resource, _marked(place, None, document, request)))
        return Answer(200, self._replaced(place, request, lambda old: document))

    def _patched(self, place: Place, request: Request) -> Answer:
        if not place.name:
            raise refusals.no_such_method()

        patches.check(place.resource, request.media)

        def make(old: Json) -> Json:
            new = _document(place, patches.patched(request.media, old, request.body))
            _check_uid(place, old, new)
            return new

        return Answer(200, self._replaced(place, request, make))

    def _replaced(self, place: Place, request: Request, make: Callable[[Json], Json]) -> Json:
        def checked(old: Json) -> Json:
            new = make(old)
            _check_place(place, new)
            _check_version(place, old, new)
            object_validation.check(place.resource, new)
            return _marked(place, old, new, request)

        return self._store.replace(place, checked)

    def _deleted(self, place: Place, request: Request) -> Answer:
        if not place.name or place.subresource:
            raise refusals.no_such_method()
        options = request.body if isinstance(request.body, dict) else {}
        found = self._store.get(place.resource, place.namespace, place.name)
        _check_preconditions(place, found, options.get("preconditions") or {})
        grace = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        gone, at_once = self._store.delete(place, None if grace is None else int(grace))
        if place.resource.returns_deleted or not at_once:
            return Answer(200, gone)
        return Answer(200, _success(place, gone))


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name) or "0"
    if text.isdecimal():
        return int(text)
    if name == "resourceVersion":
        raise refusals.no_number(text)
    raise refusals.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')


def _item(resource: Resource, document: Json) -> Json:
    """An item as in a list: items of built-in resources have no apiVersion and kind there."""
    if resource.custom:
        return document
    return {key: it for key, it in document.items() if key not in ("kind", "apiVersion")}


def _document(place: Place, body: Any) -> Json:
    """The body as an object of this resource, with its namespace."""
    resource = place.resource
    if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
        why = "couldn't get version/kind; json parse error"
        raise refusals.bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): {why}"
        )
    version, kind = body.get("apiVersion", resource.api_version), body.get("kind", resource.kind)
    if (version, kind) != (resource.api_version, resource.kind):
        why = f"converting (v1.{kind}) to (core.{resource.kind}): unknown conversion"
        if version != resource.api_version:
            where = f'version "{version}" in scheme "pkg/runtime/scheme.go:111"'
            why = f'no kind "{kind}" is registered for {where}'
        version_text = f'{kind} in version "{str(version).rpartition("/")[2]}"'
        raise refusals.bad_request(f"{version_text} cannot be handled as a {resource.kind}: {why}")
    metadata = dict(body.get("metadata") or {})
    if resource.namespaced:
        if metadata.setdefault("namespace", place.namespace) != place.namespace:
            raise refusals.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
    else:
        metadata.pop("namespace", None)
    return {**body, "apiVersion": version, "kind": kind, "metadata": metadata}


def _marked(place: Place, old: Json | None, new: Json, request: Request) -> Json:
    return managed_fields.marked(old, new, request.manager, now()) if place.resource.managed else new


def _check_place(place: Place, document: Json) -> None:
    name = document["metadata"].get("name", "")
    if name != place.name:
        if not name:
            why = "was undeterminable: name must be provided"
            raise refusals.bad_request(f"the name of the object ({place.name} based on URL) {why}")
        raise refusals.bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({place.name})"
        )


def _check_uid(place: Place, old: Json, new: Json) -> None:
    """Of a patch; of another object's update it is a condition."""
    uid = new["metadata"].get("uid")
    if uid != old["metadata"]["uid"]:
        problem = f"Invalid value: {refusals.quoted(str(uid or ''))}: field is immutable"
        kind, group = place.resource.kind, place.resource.group
        raise refusals.invalid(kind, group, place.name, "metadata.uid", problem, "FieldValueInvalid")


def _check_version(place: Place, old: Json, new: Json) -> None:
    resource, version = place.resource, new["metadata"].get("resourceVersion", "")
    uid = new["metadata"].get("uid")
    if uid and uid != old["metadata"]["uid"]:
        has = old["metadata"]["uid"]
        raise refusals.another_one(resource, place.namespace, place.name, uid, has)
    if not version:
        if resource.custom or not resource.unconditional:
            raise refusals.no_version(resource, place.name)
    elif version != old["metadata"]["resourceVersion"]:
        raise refusals.conflict(resource, place.name)


def _check_preconditions(place: Place, found: Json, wanted: Json) -> None:
    for key, field in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        asked, has = wanted.get(key), found["metadata"][key]
        if asked is not None and asked != has:
            raise refusals.precondition(place.resource, place.name, field, asked, has)


def _success(place: Place, gone: Json) -> Json:
    resource = place.resource
    details = {
        "name": place.name,
        **({"group": resource.group} if resource.group else {}),
        "kind": resource.name,
        "uid": gone["metadata"]["uid"],
    }
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

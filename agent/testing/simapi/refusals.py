"""Refusals of an API server: Status objects with the texts of kube-apiserver 1.36.

Sources: k8s.io/apimachinery pkg/api/errors/errors.go, k8s.io/apiserver pkg/endpoints/handlers,
pkg/registry/generic/registry/store.go, pkg/storage/cacher/watch_cache.go, pkg/storage/etcd3/errors.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from .api_resources import Json, Place, Resource

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
TOO_OLD_TO_CONTINUE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue parameter, or use the continue token in this response to retrieve the "
    "remainder of the results. Continuing with the provided token results in an inconsistent list - objects "
    "that were created, modified, or deleted between the time the first chunk was returned and now may show "
    "up in the list."
)


class Refused(Exception):
    """Raised for an answer that is a Status object, with these headers."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Json | None = None,
        *,
        metadata: Json | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.headers = headers or {}
        self.body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata or {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({} if details is None else {"details": details}),
            "code": code,
        }


class RefusedInText(Exception):
    """Raised for an answer in plain text, from a layer before the API."""

    def __init__(self, code: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.headers = headers or {}


def no_such_group() -> RefusedInText:
    return RefusedInText(404, "404 page not found\n")


def no_such_resource() -> Refused:
    return Refused(404, "NotFound", "the server could not find the requested resource", {})


def no_such_method() -> Refused:
    text = "the server does not allow this method on the requested resource"
    return Refused(405, "MethodNotAllowed", text, {})


def busy(retry_after: int) -> RefusedInText:
    """The answer of priority and fairness (pkg/server/filters/priority-and-fairness.go)."""
    text = "Too many requests, please try again later.\n"
    return RefusedInText(429, text, {"Retry-After": str(retry_after)})


def not_found(resource: Resource, name: str) -> Refused:
    return _about(resource, name, 404, "NotFound", f"{resource.qualified} {quoted(name)} not found")


def exists(resource: Resource, name: str, *, generated: bool = False) -> Refused:
    text = f"{resource.qualified} {quoted(name)} already exists"
    more = ", the server was not able to generate a unique name for the object" if generated else ""
    return _about(resource, name, 409, "AlreadyExists", text + more)


def conflict(resource: Resource, name: str, why: str = MODIFIED) -> Refused:
    text = f"Operation cannot be fulfilled on {resource.qualified} {quoted(name)}: {why}"
    return _about(resource, name, 409, "Conflict", text)


def another_one(resource: Resource, namespace: str, name: str, wanted: str, found: str) -> Refused:
    """The answer to an update with the uid of another object."""
    kept_as = "minions" if resource.name == "nodes" else resource.name
    key = "/".join(filter(None, ("", "registry", kept_as, namespace, name)))
    why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    text = (
        f"StorageError: invalid object, Code: 4, Key: /{key}, ResourceVersion: 0, AdditionalErrorMsg: {why}"
    )
    return conflict(resource, name, text)


def precondition(resource: Resource, name: str, field: str, wanted: str, found: str) -> Refused:
    """The answer to a delete with a wrong precondition. Unlike others it names the kind, not the resource."""
    change = "deleted and then recreated" if field == "UID" else "modified"
    why = f"the {field} in the precondition ({wanted}) does not match the {field} in record ({found})"
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    text = (
        f"Operation cannot be fulfilled on {kind} {quoted(name)}: {why}. The object might have been {change}"
    )
    return Refused(409, "Conflict", text, _details(resource, name, kind=resource.kind))


def invalid(kind: str, group: str, name: str, field: str, problem: str, cause: str) -> Refused:
    """`problem`: the text after the field's name; `cause`: FieldValueInvalid, FieldValueRequired, ..."""
    details: Json = {
        **({"name": name} if name else {}),
        **({"group": group} if group else {}),
        "kind": kind,
        "causes": [{"reason": cause, "message": problem, "field": field}],
    }
    qualified = f"{kind}.{group}" if group else kind
    return Refused(422, "Invalid", f"{qualified} {quoted(name)} is invalid: {field}: {problem}", details)


def no_version(resource: Resource, name: str) -> Refused:
    problem = "Invalid value: 0: must be specified for an update"
    return invalid(
        resource.name, resource.group, name, "metadata.resourceVersion", problem, "FieldValueInvalid"
    )


def version_on_create() -> Refused:
    return Refused(500, "", "resourceVersion should not be set on objects to be created")


def no_number(text: str) -> Refused:
    """The answer to an invalid resourceVersion: the server reports an internal error (500)."""
    why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
    return Refused(500, "", f'resourceVersion: Invalid value: "{text}": {why}')


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def patch_does_not_apply() -> Refused:
    """The answer to a JSON patch that fails; the server does not say why."""
    return Refused(422, "Invalid", "the server rejected our request due to an error in our request", {})


def unknown_format(resource: Resource, accepted: Iterable[str]) -> Refused:
    if not resource.custom:
        return Refused(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    text = "the body of the request was in an unknown format - accepted media types include: "
    return Refused(415, "UnsupportedMediaType", text + ", ".join(accepted))


def too_large(limit: int) -> Refused:
    return Refused(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def expired(message: str, *, go_on: str = "") -> Refused:
    return Refused(410, "Expired", message, metadata={"continue": go_on} if go_on else None)


def too_old(wanted: int, oldest: int) -> Refused:
    return expired(f"too old resource version: {wanted} ({oldest})")


def unauthorized() -> Refused:
    return Refused(401, "Unauthorized", "Unauthorized")


def broken(message: str) -> Refused:
    details = {"causes": [{"message": message}]}
    return Refused(500, "InternalError", f"Internal error occurred: {message}", details)


def forbidden(user: str, verb: str, place: Place) -> Refused:
    resource = place.resource
    what = f"{resource.name}/{place.subresource}" if place.subresource else resource.name
    where = f"in the namespace {quoted(place.namespace)}" if place.namespace else "at the cluster scope"
    may_not = f"User {quoted(user)} cannot {verb} resource {quoted(what)}"
    named = f"{resource.qualified} {quoted(place.name)}" if place.name else resource.qualified
    text = f"{named} is forbidden: {may_not} in API group {quoted(resource.group)} {where}"
    return _about(resource, place.name, 403, "Forbidden", text)


def forbidden_path(user: str, verb: str, path: str) -> Refused:
    return Refused(403, "Forbidden", f"forbidden: User {quoted(user)} cannot {verb} path {quoted(path)}", {})


def quoted(text: str) -> str:
    """Quote as Go's %q does. For the characters of names JSON quotes the same way."""
    return json.dumps(text, ensure_ascii=False)


def _about(resource: Resource, name: str, code: int, reason: str, message: str) -> Refused:
    return Refused(code, reason, message, _details(resource, name))


def _details(resource: Resource, name: str, kind: str = "") -> Json:
    return {
        **({"name": name} if name else {}),
        **({"group": resource.group} if resource.group else {}),
        "kind": kind or resource.name,
    }

"""Validation of objects: the rules that a writer of labels, annotations and events can break.

Sources: k8s.io/apimachinery pkg/api/validate/content and pkg/api/validation; for events k8s.io/kubernetes
pkg/apis/core/validation.
"""

from __future__ import annotations

import re
from typing import Any

from . import refusals
from .api_resources import Json, Resource

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
NAME_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
NAME_LIMIT, DOMAIN_LIMIT = 63, 253
ANNOTATIONS_LIMIT = 256 << 10


def check(resource: Resource, document: Json) -> None:
    """Raises: Refused (422) names the first field that is not valid."""
    metadata = document["metadata"]
    name = metadata.get("name", "")
    _check_name(resource, name)
    for key, value in _strings(resource, metadata, "labels").items():
        _check_key(resource, name, "metadata.labels", key)
        if value and (len(value) > NAME_LIMIT or not NAME.fullmatch(value)):
            rule = VALUE_RULE if len(value) <= NAME_LIMIT else "must be no more than 63 bytes"
            raise _invalid(resource, name, "metadata.labels", value, rule)
    annotations = _strings(resource, metadata, "annotations")
    for key in annotations:
        _check_key(resource, name, "metadata.annotations", key.lower())
    if sum(len(it.encode()) for pair in annotations.items() for it in pair) > ANNOTATIONS_LIMIT:
        problem = f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"
        raise refusals.invalid(
            resource.kind, resource.group, name, "metadata.annotations", problem, "FieldValueTooLong"
        )
    if (resource.group, resource.kind) == ("", "Event"):
        _check_event(resource, document)


def _check_name(resource: Resource, name: str) -> None:
    if not name:
        problem = "Required value: name or generateName is required"
        raise refusals.invalid(
            resource.kind, resource.group, name, "metadata.name", problem, "FieldValueRequired"
        )
    if len(name) > DOMAIN_LIMIT:
        raise _invalid(resource, name, "metadata.name", name, "must be no more than 253 characters")
    if not DOMAIN.fullmatch(name):
        raise _invalid(resource, name, "metadata.name", name, NAME_RULE)


def _strings(resource: Resource, metadata: Json, field: str) -> dict[str, str]:
    found: dict[str, Any] = metadata.get(field) or {}
    for value in found.values():
        if not isinstance(value, str):
            kind, version = resource.kind, refusals.quoted(resource.version)
            why = f"json: cannot unmarshal {_type(value)} into Go struct field"
            text = f"{kind} in version {version} cannot be handled as a {kind}: {why}"
            raise refusals.bad_request(f"{text} ObjectMeta.metadata.{field} of type string")
    return found


def _type(value: Any) -> str:
    names = {bool: "bool", int: "number", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")


def _check_key(resource: Resource, name: str, field: str, key: str) -> None:
    prefix, slash, last = key.rpartition("/")
    if slash and (not DOMAIN.fullmatch(prefix) or len(prefix) > DOMAIN_LIMIT):
        raise _invalid(resource, name, field, key, f"prefix part {NAME_RULE}")
    if len(last) > NAME_LIMIT:
        raise _invalid(resource, name, field, key, "name part must be no more than 63 bytes")
    if not NAME.fullmatch(last):
        raise _invalid(resource, name, field, key, KEY_RULE)


def _check_event(resource: Resource, document: Json) -> None:
    """An Event is in the namespace of its object, or in `default` for a cluster-scoped object."""
    metadata = document["metadata"]
    about = (document.get("involvedObject") or {}).get("namespace", "")
    if metadata.get("namespace", "") != (about or "default"):
        field, rule = "involvedObject.namespace", "does not match event.namespace"
        raise _invalid(resource, metadata["name"], field, about, rule)


def _invalid(resource: Resource, name: str, field: str, found: str, rule: str) -> refusals.Refused:
    problem = f"Invalid value: {refusals.quoted(found)}: {rule}"
    return refusals.invalid(resource.kind, resource.group, name, field, problem, "FieldValueInvalid")

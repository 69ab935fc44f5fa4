"""The objects that a list or a watch shows: labelSelector and fieldSelector."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import refusals
from .api_resources import Json, Resource

KEY = r"[A-Za-z0-9./_-]+"
REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!\s*{KEY})|(?P<set>{KEY})\s+(?P<in>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|(?P<key>{KEY})\s*(?P<is>==|!=|=)\s*(?P<value>[A-Za-z0-9._-]*)|(?P<present>{KEY}))\s*"
)
FIELD = re.compile(r"(?P<field>[A-Za-z0-9./_-]+)(?P<is>==|!=|=)(?P<value>.*)", re.DOTALL)
METADATA_FIELDS = ("metadata.name", "metadata.namespace")

LabelRule = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class FieldRule:
    field: str
    equal: bool
    value: str

    def holds(self, document: Json) -> bool:
        return (_field(document, self.field) == self.value) is self.equal


@dataclass(frozen=True, slots=True)
class Selection:
    """The conditions of both selectors, for one resource and namespace."""

    resource: Resource
    namespace: str
    labels: tuple[LabelRule, ...] = ()
    fields: tuple[FieldRule, ...] = ()

    @property
    def everything(self) -> bool:
        return not self.labels and not self.fields

    @property
    def name(self) -> str:
        """The only name that can match, or empty. Authorization regards it as the name of the request."""
        wanted = (it.value for it in self.fields if it.field == "metadata.name" and it.equal)
        return next(wanted, "")

    def holds(self, document: Json) -> bool:
        labels = document["metadata"].get("labels") or {}
        return all(it(labels) for it in self.labels) and all(it.holds(document) for it in self.fields)


def selection(resource: Resource, namespace: str, query: Mapping[str, str]) -> Selection:
    """Read both selectors.

    Raises:
        Refused: 400, one cannot be read or names a field that this resource cannot be selected by.
    """
    labels = label_rules(query.get("labelSelector", ""))
    return Selection(resource, namespace, labels, field_rules(resource, query.get("fieldSelector", "")))


def label_rules(text: str) -> tuple[LabelRule, ...]:
    """Equality and sets: `a=b,c!=d,e in (f,g),h notin (i),j,!k`."""
    rules: list[LabelRule] = []
    at = 0
    while text.strip() and at <= len(text):
        found = REQUIREMENT.match(text, at)
        if found is None:
            raise refusals.bad_request(
                f"found '{text[at : at + 1]}', expected: !, identifier, or 'end of string'"
            )
        if text[found.end() : found.end() + 1] not in ("", ","):
            word = text[found.end() :].split(",")[0].strip()
            raise refusals.bad_request(f"found '{word}', expected: ',' or 'end of string'")
        rules.append(_label_rule(found))
        at = found.end() + 1
    return tuple(rules)


def _label_rule(found: re.Match[str]) -> LabelRule:
    if key := found["absent"]:
        missing = key.removeprefix("!").strip()
        return lambda labels: missing not in labels
    if key := found["present"]:
        return lambda labels: key in labels
    if key := found["set"]:
        values = {it.strip() for it in found["values"].split(",")}
        wanted = found["in"] == "in"
    else:
        key, values, wanted = found["key"], {found["value"]}, found["is"] != "!="
    return lambda labels: (labels.get(key) in values) is wanted


def field_rules(resource: Resource, text: str) -> tuple[FieldRule, ...]:
    rules = []
    for term in filter(None, text.split(",")):
        found = FIELD.fullmatch(term)
        if found is None:
            raise refusals.bad_request(
                f"invalid selector: {refusals.quoted(text)}; can't understand '{term}'"
            )
        if found["field"] not in (*METADATA_FIELDS, *resource.fields):
            raise refusals.bad_request(_unknown_field(resource, found["field"]))
        rules.append(FieldRule(found["field"], found["is"] != "!=", found["value"]))
    return tuple(rules)


def _unknown_field(resource: Resource, field: str) -> str:
    if resource.fields or resource.custom:
        return f"field label not supported: {field}"
    return f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def _field(document: Json, path: str) -> str:
    value: Any = document
    for word in path.split("."):
        value = value.get(word) if isinstance(value, dict) else None
    return str(value).lower() if isinstance(value, bool) else str(value or "")

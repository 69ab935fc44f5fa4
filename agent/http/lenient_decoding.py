"""Documents that an agent of another release answered, decoded as far as they fit the form of this one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec


class DocumentPart(msgspec.Struct, frozen=True, rename="camel"):
    """A JSON object of a document. The order of its attributes is the order of its keys."""


def json_object(body: bytes) -> Mapping[str, Any]:
    """The JSON object that an agent answered.

    Halves of surrogate pairs are kept, because names of files on the node may have them.

    Raises:
        msgspec.MsgspecError: The body is no JSON object.
    """
    try:
        values = json.loads(body.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as exc:
        raise msgspec.DecodeError(str(exc)) from exc
    found: Mapping[str, Any] = msgspec.convert(values, dict[str, Any])
    return found


def usable(value: object, form: Any) -> Any:
    """What of the value fits the form: of an object its good keys, of a list of objects these objects.

    Raises:
        msgspec.ValidationError: Nothing of the value fits.
    """
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError:
        part = _part_in(form)
        if part is None:
            raise
        if get_origin(form) is tuple:
            if not isinstance(value, list):
                raise
            return tuple(usable(row, part) for row in value if isinstance(row, Mapping))
        if not isinstance(value, Mapping):
            raise
        return part(**_usable_keys(value, part))


def _usable_keys(value: Mapping[str, Any], part: type[DocumentPart]) -> dict[str, Any]:
    found = {}
    for attribute in msgspec.structs.fields(part):
        if attribute.encode_name in value:
            with suppress(msgspec.ValidationError):
                found[attribute.name] = usable(value[attribute.encode_name], attribute.type)
    return found


def _part_in(form: Any) -> type[DocumentPart] | None:
    """The kind of object that the form is, lists, or allows beside None."""
    kinds = get_args(form) if get_origin(form) in (tuple, UnionType) else (form,)
    return next((it for it in kinds if isinstance(it, type) and issubclass(it, DocumentPart)), None)

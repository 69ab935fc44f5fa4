"""GCUShare's annotation `assigned-containers`: what each container of a pod was given.

JSON: container name to a record, without empty values. The annotation's key has no domain.
Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/structs/structs.go (ee04a65).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agent.vendor_api.text import shorten

RECORDS = "assigned-containers"
MAX_RECORDS = 500
#: Name of a profile: its number of the card's slices, and its GB.
PROFILE_NAME = re.compile(r"(?P<slices>[1-9][0-9]{0,2})g\.(?P<gigabytes>[1-9][0-9]{0,3})gb", re.ASCII)
_ID = re.compile(r"0|[1-9][0-9]{0,5}")
_UUID = re.compile(r"[0-9A-Za-z-]{1,64}")
_DONE = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class PodRecord:
    """The promise to a container, and whether it is kept. Profile and instance are of hardware slices."""

    allocated: bool = False
    request: int | None = None
    profile_id: str = ""
    profile_name: str = ""
    instance_id: str = ""
    instance_uuid: str = ""


#: JSON's name of each field, its pattern, and the pattern in words.
_TEXTS = {
    "profileID": ("profile_id", _ID, "a number such as '1'"),
    "profileName": ("profile_name", PROFILE_NAME, "a profile such as '3g.20gb'"),
    "instanceID": ("instance_id", _ID, "a number such as '2'"),
    "instanceUUID": ("instance_uuid", _UUID, "the uuid of a slice"),
}


def slices(profile: str) -> int:
    """The number of the card's slices in a profile's name; 0 for another text."""
    found = PROFILE_NAME.fullmatch(profile)
    return int(found["slices"]) if found else 0


def read(text: str) -> dict[str, PodRecord]:
    """The records of a pod, by container.

    Raises:
        ValueError: The text is not what GCUShare writes.
    """
    return {name: _record(name, it) for name, it in _containers(text).items()}


def read_old(text: str) -> dict[str, bool]:
    """Whether each container has its devices, by container: texts of the second generation, or records.

    Raises:
        ValueError: The text is neither.
    """
    found: dict[str, bool] = {}
    for name, value in _containers(text).items():
        of_old = _DONE.get(value) if isinstance(value, str) else None
        found[name] = _record(name, value).allocated if of_old is None else of_old
    return found


def _containers(text: str) -> Mapping[str, Any]:
    try:
        document: Any = json.loads(text, object_pairs_hook=_distinct)
    except RecursionError as exc:
        raise ValueError(f"{RECORDS} is too deep to be read") from exc
    except ValueError as exc:
        raise ValueError(f"{RECORDS} is no JSON: {exc}") from exc
    if not isinstance(document, dict) or len(document) > MAX_RECORDS:
        raise ValueError(f"{RECORDS} is no JSON object of up to {MAX_RECORDS} containers")
    return document


def write(records: Mapping[str, PodRecord]) -> str:
    """The annotation's text, as its readers parse it: compact, and without empty values."""
    names = {field: key for key, (field, _, _) in _TEXTS.items()}
    document = {}
    for container, record in sorted(records.items()):
        values = {field: value for field, value in asdict(record).items() if value not in (None, "")}
        document[container] = {names.get(field, field): value for field, value in values.items()}
    return _compact(document)


def write_old(done: Mapping[str, bool]) -> str:
    """The annotation's text of the second generation: the containers that have their devices."""
    return _compact({container: "true" for container, it in sorted(done.items()) if it})


def _compact(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


def _record(name: str, document: Any) -> PodRecord:
    where = f"{RECORDS}, container {shorten(name, 63)}"
    if not isinstance(document, dict):
        raise ValueError(f"{where}: no JSON object")
    allocated, request = document.get("allocated", False), document.get("request")
    if type(allocated) is not bool:
        raise ValueError(f"{where}: allocated is {shorten(repr(allocated), 40)}, awaited is true or false")
    if request is not None and (type(request) is not int or not 0 <= request < 1_000_000):
        raise ValueError(f"{where}: request is {shorten(repr(request), 40)}, awaited is a number of slices")
    texts: dict[str, str] = {}
    for key, (field, pattern, awaited) in _TEXTS.items():
        value = document.get(key, "")
        if not isinstance(value, str) or (value and not pattern.fullmatch(value)):
            raise ValueError(f"{where}: {key} is {shorten(repr(value), 60)}, awaited is {awaited}")
        texts[field] = value
    return PodRecord(allocated, request, **texts)


def _distinct(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without a repeated key: two readers may take different ones of two values."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{shorten(key, 40)!r} stands there twice")
        found[key] = value
    return found

"""Applies patches to objects: JSON merge patch, strategic merge patch, JSON patch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from . import refusals
from .api_resources import Json, Resource

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"

#: Lists that a strategic merge patch merges, with their key. An empty key: the list has plain values, which
#: are united. Every other list is replaced (patchStrategy and patchMergeKey in k8s.io/api core/v1/types.go).
MERGE_KEYS = {
    ("metadata", "ownerReferences"): "uid",
    ("metadata", "finalizers"): "",
    ("status", "conditions"): "type",
    ("status", "addresses"): "type",
    ("status", "allocatedResourcesStatus"): "name",
    ("spec", "podCIDRs"): "",
    ("spec", "containers"): "name",
    ("spec", "initContainers"): "name",
    ("spec", "ephemeralContainers"): "name",
    ("spec", "volumes"): "name",
    ("spec", "imagePullSecrets"): "name",
    ("spec", "containers", "env"): "name",
    ("spec", "containers", "volumeMounts"): "mountPath",
    ("spec", "containers", "volumeDevices"): "devicePath",
    ("spec", "containers", "ports"): "containerPort",
    ("secrets",): "name",
    ("imagePullSecrets",): "name",
}
Path = tuple[str, ...]


def accepted(resource: Resource) -> tuple[str, ...]:
    """The media types of a PATCH that the real server accepts. Server-side apply is not simulated."""
    return (JSON_PATCH, MERGE, *(() if resource.custom else (STRATEGIC,)), APPLY)


def check(resource: Resource, media: str) -> None:
    """Raises: Refused, 415: patches of this media type are not accepted."""
    if media == APPLY or media not in accepted(resource):
        raise refusals.unknown_format(resource, accepted(resource))


def patched(media: str, document: Json, patch: Any) -> Json:
    """The object after the patch.

    Raises:
        Refused: 400 or 422, the patch does not apply.
    """
    if media == JSON_PATCH:
        after = json_patched(document, patch)
    elif isinstance(patch, dict):
        after = merged(document, patch) if media == MERGE else strategically_merged(document, patch)
    else:
        after = None
    if not isinstance(after, dict):
        raise refusals.bad_request("Invalid JSON Patch")
    return after


def merged(value: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    after = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if part is None:
            after.pop(key, None)
        else:
            after[key] = merged(after.get(key), part)
    return after


def strategically_merged(value: Any, patch: Any, path: Path = ()) -> Any:
    """As `merged`, but lists with a merge key are merged, and `$patch: delete` and `replace` are applied."""
    if isinstance(patch, list) and path in MERGE_KEYS:
        return _merged_list(value if isinstance(value, list) else [], patch, path)
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: part for key, part in patch.items() if key != "$patch"}
    after = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            after[name] = [it for it in after.get(name) or [] if it not in part]
        elif key.startswith("$"):
            continue
        elif part is None or (isinstance(part, dict) and part.get("$patch") == "delete"):
            after.pop(key, None)
        else:
            after[key] = strategically_merged(after.get(key), part, (*path, key))
    return after


def _merged_list(value: list[Any], patch: list[Any], path: Path) -> list[Any]:
    key = MERGE_KEYS[path]
    if not key:
        return [*value, *(it for it in patch if it not in value)]
    if {"$patch": "replace"} in patch:
        return [it for it in patch if it != {"$patch": "replace"}]
    after = list(value)
    for part in patch:
        if not isinstance(part, dict) or key not in part:
            raise refusals.bad_request(f"map: {part} does not contain declared merge key: {key}")
        at = next((n for n, it in enumerate(after) if it.get(key) == part[key]), None)
        if part.get("$patch") == "delete":
            after = [it for it in after if it.get(key) != part[key]]
        elif at is None:
            after.append(strategically_merged({}, part, path))
        else:
            after[at] = strategically_merged(after[at], part, path)
    return after


def json_patched(document: Json, operations: Any) -> Any:
    """RFC 6902; the operations apply all or none."""
    if not isinstance(operations, list):
        raise refusals.bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    after: Any = {"": copy.deepcopy(document)}
    try:
        for operation in operations:
            _apply(after, operation["op"], _words(operation["path"]), operation)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as exc:
        raise refusals.patch_does_not_apply() from exc
    return after[""]


def _apply(root: Any, op: str, words: Sequence[str], operation: Json) -> None:
    if op == "test":
        if _at(root, words) != operation["value"]:
            raise ValueError("the test failed")
    elif op == "remove":
        _remove(root, words)
    elif op == "replace":
        _at(root, words)
        _remove(root, words)
        _add(root, words, operation["value"])
    elif op == "add":
        _add(root, words, operation["value"])
    elif op in ("copy", "move"):
        value = copy.deepcopy(_at(root, _words(operation["from"])))
        if op == "move":
            _remove(root, _words(operation["from"]))
        _add(root, words, value)
    else:
        raise ValueError(f"unexpected kind: {op}")


def _words(pointer: str) -> list[str]:
    # The whole document is the value of an empty key, so that it has a parent, too.
    if pointer and not pointer.startswith("/"):
        raise ValueError("a pointer starts with /")
    return [word.replace("~1", "/").replace("~0", "~") for word in pointer.split("/")]


def _at(value: Any, words: Sequence[str]) -> Any:
    for word in words:
        value = value[int(word)] if isinstance(value, list) else value[word]
    return value


def _remove(root: Any, words: Sequence[str]) -> None:
    parent = _at(root, words[:-1])
    del parent[int(words[-1]) if isinstance(parent, list) else words[-1]]


def _add(root: Any, words: Sequence[str], value: Any) -> None:
    parent, last = _at(root, words[:-1]), words[-1]
    if isinstance(parent, list):
        at = len(parent) if last == "-" else int(last)
        if not 0 <= at <= len(parent):
            raise IndexError(last)
        parent.insert(at, value)
    else:
        parent[last] = value

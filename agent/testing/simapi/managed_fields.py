"""managedFields of an object that was created or put: which manager wrote which of its fields.

Follows k8s.io/apimachinery pkg/util/managedfields for updates of objects without a schema: a list is one
value, a map is a field of its own where the whole map is new, and an entry keeps its time while its fields
stay the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from .api_resources import Json

Path = tuple[str, ...]

#: Fields that have no manager.
_TOP = frozenset({"apiVersion", "kind"})
_METADATA = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    }
)
_OPERATION = "Update"


def manager(user_agent: str) -> str:
    """The manager's name where the request does not name one."""
    return user_agent.partition("/")[0]


def marked(old: Json | None, new: Json, by: str, now: str) -> Json:
    """The new object, with `by` as the only manager of the fields that it changed."""
    before, after = dict(_fields(old or {})), dict(_fields(new))
    changed = {path for path, it in after.items() if path not in before or before[path] != it}
    touched = changed | (before.keys() - after.keys())
    entries, found = [], False
    for entry in (old or {}).get("metadata", {}).get("managedFields", ()):
        had = set(_paths(entry["fieldsV1"]))
        if (entry["manager"], entry["operation"]) == (by, _OPERATION):
            found, has = True, (had | changed) & after.keys()
        else:
            has = had - touched
        stamped = entry["time"] if has == had or entry["manager"] != by else now
        if has:
            entries.append({**entry, "time": stamped, "fieldsV1": _tree(has)})
    if changed and not found:
        own = {"manager": by, "operation": _OPERATION, "apiVersion": new["apiVersion"], "time": now}
        entries.append({**own, "fieldsType": "FieldsV1", "fieldsV1": _tree(changed)})
    return {**new, "metadata": {**new["metadata"], "managedFields": copy.deepcopy(entries)}}


def _fields(document: Json) -> Iterator[tuple[Path, Any]]:
    for key, value in document.items():
        if key == "metadata":
            kept = {name: one for name, one in value.items() if name not in _METADATA}
            yield from ((("metadata", *path), one) for path, one in _below(kept))
        elif key not in _TOP:
            yield from _at((key,), value)


def _below(tree: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    for key, value in tree.items():
        yield from _at((key,), value)


def _at(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if not isinstance(value, dict):
        yield path, value
        return
    yield path, None  # its own place, whatever is in it
    yield from (((*path, *rest), it) for rest, it in _below(value))


def _tree(paths: set[Path]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        node = tree
        for name in path:
            node = node.setdefault(f"f:{name}", {})
    for path in paths:
        node = tree
        for name in path:
            node = node[f"f:{name}"]
        if node:
            node["."] = {}
    return tree


def _paths(tree: Json) -> Iterator[Path]:
    for key, below in tree.items():
        if key == ".":
            continue
        path = (key.removeprefix("f:"),)
        if not below or "." in below:
            yield path
        yield from ((*path, *rest) for rest in _paths(below))

"""A CDI spec file of made hardware: one device an allocation, by whose name a container finds its slices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: The lowest version of CDI with device names that begin with a digit.
VERSION = "0.5.0"


def content(kind: str, devices: Sequence[Mapping[str, Any]]) -> str:
    """The file's text; empty, which is no file, without devices: runtimes take no spec without any."""
    if not devices:
        return ""
    return json.dumps({"cdiVersion": VERSION, "kind": kind, "devices": devices}, indent=2) + "\n"


def nodes(paths: Iterable[str]) -> list[dict[str, str]]:
    """The device nodes of a container's edits, to be read and written."""
    return [{"path": path, "permissions": "rw"} for path in paths]

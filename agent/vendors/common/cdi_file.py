"""A CDI spec file for made hardware: one CDI device for each allocation, named after the allocation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: The lowest CDI version that allows device names with a digit at the start.
VERSION = "0.5.0"


def content(kind: str, devices: Sequence[Mapping[str, Any]]) -> str:
    """The text of the file. Empty, which means no file, without devices: runtimes refuse an empty spec."""
    if not devices:
        return ""
    return json.dumps({"cdiVersion": VERSION, "kind": kind, "devices": devices}, indent=2) + "\n"


def nodes(paths: Iterable[str]) -> list[dict[str, str]]:
    """The device nodes for `containerEdits`, which a container may read and write."""
    return [{"path": path, "permissions": "rw"} for path in paths]

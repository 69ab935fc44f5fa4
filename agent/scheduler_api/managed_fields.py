"""Which client wrote which fields of an object, from its managedFields.

With an update, changed fields become the writer's alone; unchanged fields stay with their managers.
Source: k8s.io/apimachinery pkg/util/managedfields; entries seen on kube-apiserver 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.scheduler_api.document_parts import part_of, rows_of, text

UPDATE = "Update"
#: The agent's name as a manager, which the API server takes from the User-Agent.
OURS = "xpu-agent"


@dataclass(frozen=True, slots=True)
class ManagedFields:
    """The fields of one manager by one operation; `since` is when they last changed, in Unix seconds."""

    manager: str
    operation: str
    since: float | None
    fields: Mapping[str, Any]

    def owns(self, *path: str) -> bool:
        """Whether the manager has the field at the path, or a field below it."""
        here = self.fields
        for name in path:
            if not isinstance(here.get(f"f:{name}"), Mapping):
                return False
            here = here[f"f:{name}"]
        return True


def entries(of: Mapping[str, Any] | None) -> tuple[ManagedFields, ...]:
    """All entries of the object; invalid ones are skipped."""
    return tuple(
        ManagedFields(text(row, "manager"), text(row, "operation"), _time(row), part_of(row, "fieldsV1"))
        for row in rows_of(part_of(of, "metadata"), "managedFields")
    )


def _time(row: Mapping[str, Any]) -> float | None:
    try:
        return datetime.fromisoformat(text(row, "time")).timestamp()
    except (ValueError, OverflowError):
        return None

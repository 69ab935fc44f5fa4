"""Reads managedFields: which program wrote which fields of an API object.

An update makes the fields that it changes the writer's alone; all other fields keep their owner.
Source: k8s.io/apimachinery pkg/util/managedfields; entries seen on kube-apiserver 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.scheduler_api.document_parts import part_of, rows_of, text

UPDATE = "Update"
#: The agent's name in managedFields, which the API server takes from the User-Agent.
AGENT_MANAGER = "xpu-agent"


@dataclass(frozen=True, slots=True)
class ManagedFields:
    """The fields of one manager by one operation. `since`: Unix seconds of the last change, if known."""

    manager: str
    operation: str
    since: float | None
    fields: Mapping[str, Any]

    def owns(self, *path: str) -> bool:
        """Whether the manager owns the field at the path, or a part of it."""
        here = self.fields
        for name in path:
            if not isinstance(here.get(f"f:{name}"), Mapping):
                return False
            here = here[f"f:{name}"]
        return True


def entries(document: Mapping[str, Any] | None) -> tuple[ManagedFields, ...]:
    """All entries of the object. Entries of a wrong form are left out."""
    return tuple(
        ManagedFields(text(row, "manager"), text(row, "operation"), _time(row), part_of(row, "fieldsV1"))
        for row in rows_of(part_of(document, "metadata"), "managedFields")
    )


def _time(row: Mapping[str, Any]) -> float | None:
    try:
        return datetime.fromisoformat(text(row, "time")).timestamp()
    except (ValueError, OverflowError):
        return None

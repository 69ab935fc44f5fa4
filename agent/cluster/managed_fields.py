"""Who brought which fields of an object, as the API server keeps it in managedFields.

An update makes what it changed the writer's, and nobody else's any more; what it left as it was stays theirs.
Source: k8s.io/apimachinery pkg/util/managedfields; entries seen on kube-apiserver 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.cluster.api import Object
from agent.cluster.object_fields import text
from agent.scheduler_api.document_parts import part_of, rows_of

UPDATE = "Update"
#: As the API server names us, by our User-Agent.
OURS = "xpu-agent"


@dataclass(frozen=True, slots=True)
class ManagedFields:
    """What one manager has by one operation. `since`: Unix seconds at which that changed last, if said."""

    manager: str
    operation: str
    since: float | None
    fields: Mapping[str, Any]

    def owns(self, *path: str) -> bool:
        """Whether the field at the path, or something in it, is the manager's."""
        here = self.fields
        for name in path:
            if not isinstance(here.get(f"f:{name}"), Mapping):
                return False
            here = here[f"f:{name}"]
        return True


def entries(it: Object | None) -> tuple[ManagedFields, ...]:
    """All that the object has; nonsense is passed over."""
    return tuple(
        ManagedFields(text(row, "manager"), text(row, "operation"), _time(row), part_of(row, "fieldsV1"))
        for row in rows_of(part_of(it, "metadata"), "managedFields")
    )


def _time(row: Mapping[str, Any]) -> float | None:
    try:
        return datetime.fromisoformat(text(row, "time")).timestamp()
    except (ValueError, OverflowError):
        return None

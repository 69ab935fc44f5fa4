"""Devices with managedFields."""

from __future__ import annotations

from typing import Any


def entry(manager: str, fields: dict[str, Any], time: str = "2026-01-01T00:00:10Z", **more: Any) -> Any:
    return {"manager": manager, "operation": "Update", "time": time, "fieldsV1": fields, **more}


def device(*entries: Any, cards: int = 0) -> dict[str, Any]:
    spec = {"devices": [{"type": "gpu"}] * cards} if cards else {}
    return {"metadata": {"managedFields": list(entries)}, "spec": spec}


LIST: dict[str, Any] = {"f:spec": {".": {}, "f:devices": {}}}

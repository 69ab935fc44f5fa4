"""Signs that a koordlet on this node reports accelerators: in its pod, and in the Device's managedFields.

Sources: koordinator-sh/charts v1.8.0, templates/koordlet.yaml (label, arguments), and koordinator
pkg/koordlet/config/config.go (its name at the API server), pkg/features/koordlet_features.go (its gates).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.scheduler_api.document_parts import part_of, text
from agent.scheduler_api.managed_fields import UPDATE, ManagedFields, entries
from agent.schedulers.koordinator.program_arguments import arguments, gates

NAME = "koordlet"
LABEL = "koord-app=koordlet"
#: The feature gates by which koordlet reports accelerators. The first decides where a pod sets both.
GATE, ALL_GATES = "Accelerators", "AllAlpha"


def reporting(pod: Mapping[str, Any]) -> str | None:
    """The sign that the pod's koordlet reports accelerators; None for any other pod."""
    return reporting_sign(pod) or None


def reporting_sign(pod: Mapping[str, Any]) -> str | None:
    """The sign that the pod's koordlet reports; empty for a koordlet that does not, None for another pod.

    Any user may put koordlet's label on a pod, so only a privileged container counts.
    """
    metadata, spec, status = part_of(pod, "metadata"), part_of(pod, "spec"), part_of(pod, "status")
    if text(status, "phase") in ("Succeeded", "Failed"):
        return None
    name = f"{text(metadata, 'namespace')}/{text(metadata, 'name')}"
    containers = spec.get("containers")
    for container in containers if isinstance(containers, list) else ():
        is_container = isinstance(container, dict)
        trusted = is_container and part_of(container, "securityContext").get("privileged") is True
        if trusted and (words := arguments(container, NAME)):
            gate = _gate(words)
            return f"koordlet {name} runs here with {gate}=true" if gate else ""
    return None


def _gate(words: Sequence[str]) -> str:
    """The gate that switches reporting on; empty where none does."""
    values = gates(words)
    if GATE in values:
        return GATE if values[GATE] else ""
    return ALL_GATES if values.get(ALL_GATES) else ""


def wrote_devices(device: Mapping[str, Any] | None) -> bool:
    """Whether koordlet was the last writer of the list of devices, or removed the list."""
    if not (updates := _updates(device)):
        return False
    if any(it.owns("spec", "devices") for it in entries(device)):
        return any(it.owns("spec", "devices") for it in updates)
    return not part_of(device, "spec").get("devices")  # a removed field has no owner


def last_writes(device: Mapping[str, Any] | None) -> object:
    """A value that differs after each of koordlet's writes of the list; None where the list is another's.

    The value has the times of koordlet's writes and the list. The times alone do not do: after a write that
    removes all cards koordlet owns the status alone, and its next write gets no new time.
    """
    if not wrote_devices(device):
        return None
    return [it.since for it in _updates(device)], part_of(device, "spec").get("devices")


def _updates(device: Mapping[str, Any] | None) -> tuple[ManagedFields, ...]:
    return tuple(it for it in entries(device) if (it.manager, it.operation) == (NAME, UPDATE))

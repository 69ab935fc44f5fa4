"""How the API server shows that a koordlet on this node reports accelerators: by its pod, and by its hand.

Sources: koordinator-sh/charts v1.8.0, templates/koordlet.yaml (label, arguments), and koordinator
pkg/koordlet/config/config.go (its name at the API server), pkg/features/koordlet_features.go (its gates).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.scheduler_api.document_parts import part_of, text
from agent.scheduler_api.managed_fields import OURS, UPDATE, ManagedFields, entries
from agent.schedulers.koordinator.gpu_partitions import ANNOTATION
from agent.schedulers.koordinator.program_arguments import arguments, gates

NAME = "koordlet"
LABEL = "koord-app=koordlet"
#: The gates that have it report accelerators; the first decides where both are said.
GATE, ALL_GATES = "Accelerators", "AllAlpha"


def query(node_name: str) -> Mapping[str, str]:
    """Of a list or watch of pods: koordlet's on this node."""
    return {"fieldSelector": f"spec.nodeName={node_name}", "labelSelector": LABEL}


def reporting(pod: Mapping[str, Any]) -> str | None:
    """How the pod shows that it reports accelerators; None of one that does not, or that is no koordlet."""
    return shown(pod) or None


def shown(pod: Mapping[str, Any]) -> str | None:
    """The same; empty of a koordlet that does not report, and None of what is none.

    Anybody may label a pod so, and must not silence us: only who may run privileged is believed.
    """
    metadata, spec, status = part_of(pod, "metadata"), part_of(pod, "spec"), part_of(pod, "status")
    if text(status, "phase") in ("Succeeded", "Failed"):
        return None
    name = f"{text(metadata, 'namespace')}/{text(metadata, 'name')}"
    containers = spec.get("containers")
    for it in containers if isinstance(containers, list) else ():
        trusted = isinstance(it, dict) and part_of(it, "securityContext").get("privileged") is True
        if trusted and (words := arguments(it, NAME)):
            gate = _gate(words)
            return f"koordlet {name} runs here with {gate}=true" if gate else ""
    return None


def _gate(words: Sequence[str]) -> str:
    """The gate that switches it on; empty where none does."""
    said = gates(words)
    if GATE in said:
        return GATE if said[GATE] else ""
    return ALL_GATES if said.get(ALL_GATES) else ""


def keeps(device: Mapping[str, Any] | None) -> bool:
    """Whether the list of devices is koordlet's: it wrote the one that is there, or took all away."""
    if not (its := _its(device)):
        return False
    if any(it.owns("spec", "devices") for it in entries(device)):
        return any(it.owns("spec", "devices") for it in its)
    return not part_of(device, "spec").get("devices")  # what was taken away is nobody's


def grouped_by_hand(device: Mapping[str, Any] | None) -> bool:
    """Whether an operator wrote the groups of linked cards: neither we nor a koordlet, which has ours."""
    path = ("metadata", "annotations", ANNOTATION)
    return any(it.owns(*path) and it.manager not in (OURS, NAME) for it in entries(device))


def written(device: Mapping[str, Any] | None) -> object:
    """What changes with each write of koordlet's to the list of devices; None where that is not its own.

    A write that takes all cards away leaves it the status alone, and the next one not even a new time: the
    list counts as well.
    """
    if not keeps(device):
        return None
    return [it.since for it in _its(device)], part_of(device, "spec").get("devices")


def _its(device: Mapping[str, Any] | None) -> tuple[ManagedFields, ...]:
    return tuple(it for it in entries(device) if (it.manager, it.operation) == (NAME, UPDATE))

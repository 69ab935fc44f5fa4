"""Checks for resources that count memory in another unit than the config wants."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well

CHECK = "memory-units"

KEPT = FindingKind(
    CHECK,
    "unit-kept",
    Severity.WARNS,
    "memory is counted in another unit than the config says",
    "A device ID does not name the memory that the ID stands for. While pods hold IDs of the old unit, "
    "new pods get IDs of the old unit too. The agent also keeps the old unit if the list in the new "
    "unit is too long for the kubelet.",
    "let the named pods end (kubectl drain moves the pods to other nodes), or set the old unit in the "
    "config again; if the list is too long set the unit that the finding names",
)


def units(around: Surroundings) -> Iterator[Finding]:
    """The units that the running agent kept."""
    if not around.serves:
        yield not_made(CHECK, "no agent that serves this node could be asked")
        return
    counting = [it for it in around.resources.values() if it.unit]
    kept = [it.unit_kept for it in counting if it.unit_kept]
    yield from (KEPT.found(it) for it in kept)
    if not kept:
        yield well(CHECK, f"{len(counting)} resources count memory, in the units of the config")

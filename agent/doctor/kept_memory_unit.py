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
    "A device ID does not say how much memory it stands for. So while pods hold IDs of the old unit, new "
    "pods get IDs of the old unit too. A unit that makes too long a list for the kubelet is not used either.",
    "let the named pods end (kubectl drain moves them away), or write the old unit in the config again; "
    "where the list is too long write the named unit",
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

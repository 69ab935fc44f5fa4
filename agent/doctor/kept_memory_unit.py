"""Resources that count memory in another unit than the config wants."""

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
    "A device ID does not say how much memory it stands for: while pods hold some of one size, none of "
    "another is given out, and what new pods ask for counts in the old unit. A unit that makes too long a "
    "list for the kubelet is not taken in, either.",
    "let the pods that are named end (kubectl drain moves them away), or take the old unit back in the "
    "config; where the list is too long write the unit that is named",
)


def units(around: Surroundings) -> Iterator[Finding]:
    """What the running agent says of it."""
    if not around.serves:
        yield not_made(CHECK, "no agent that serves this node could be asked")
        return
    counting = [it for it in around.resources.values() if it.unit]
    kept = [it.unit_kept for it in counting if it.unit_kept]
    yield from (KEPT.found(it) for it in kept)
    if not kept:
        yield well(CHECK, f"{len(counting)} resources count memory, in the units of the config")

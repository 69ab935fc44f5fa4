"""Claims that pods swap: the kubelet may give equal pods the cards of each other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.core.allocation.container_allocations import container_of
from agent.core.model import Allocation
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.scheduler_api.claims import Claim


def swap_claims(
    allocations: Iterable[Allocation],
    granted: Iterable[CheckpointAnswer],
    promise: Callable[[Allocation, CheckpointAnswer], Claim | None],
) -> dict[str, Claim | None]:
    """Allocation to its new claim, for the claim swaps that the kubelet's answers ask for.

    An allocation gets the claim of the container that the kubelet gave it to. An allocation that loses its
    claim, and that the kubelet has given to no container yet, gets the claim that is left over. `promise`
    finds a claim that no allocation has. None: nothing was promised.
    """
    known = {it.id: it for it in allocations}
    claimed = [(it.resource, it.claim, it.id) for it in known.values() if it.claim is not None]
    with_claim = {(resource, container_of(claim)): name for resource, claim, name in claimed}
    takers: dict[str, str] = {}
    after: dict[str, Claim | None] = {}
    for answer in granted:
        if (allocation := known.get(answer.allocation)) is None:
            continue
        giver = with_claim.get((allocation.resource, (answer.uid, answer.container)))
        after[allocation.id] = promise(allocation, answer) if giver is None else known[giver].claim
        if giver is not None:
            takers[giver] = allocation.id
    for name in takers.keys() - after.keys():
        after[name] = known[_end_of_chain(name, takers)].claim
    return {name: claim for name, claim in after.items() if claim != known[name].claim}


def _end_of_chain(name: str, takers: Mapping[str, str]) -> str:
    """The allocation at the end of a chain in which each claim went to the next allocation.

    `takers`: allocation to the allocation that gets its claim. The claim of the last one is left over.
    """
    for _ in takers:  # with two allocations of one claim the chain may be a circle
        if name not in takers:
            break
        name = takers[name]
    return name

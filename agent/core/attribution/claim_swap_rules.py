"""Claims that pods swap: the kubelet may give equal pods the cards of each other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.model import Allocation
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.scheduler_api.claims import Claim


def swap_claims(
    in_use: AllocationsInUse,
    granted: Iterable[CheckpointAnswer],
    promise: Callable[[Allocation, CheckpointAnswer], Claim | None],
) -> dict[str, Claim | None]:
    """Allocation to its new claim, for the claim swaps that the kubelet's answers ask for.

    An allocation gets the claim of the container that the kubelet gave it to. An allocation that loses its
    claim, and that the kubelet has given to no container yet, gets the claim that is left over. `promise`
    finds a claim that no allocation has. None: nothing was promised.
    """
    claims: dict[str, Claim | None] = {}
    takers: dict[str, str] = {}
    after: dict[str, Claim | None] = {}
    for answer in granted:
        if (allocation := in_use.get(answer.allocation)) is None:
            continue
        claims[allocation.id] = allocation.claim
        givers = in_use.with_claim(allocation.resource, (answer.uid, answer.container))
        after[allocation.id] = givers[-1].claim if givers else promise(allocation, answer)
        if givers:
            claims[givers[-1].id] = givers[-1].claim
            takers[givers[-1].id] = allocation.id
    for name in takers.keys() - after.keys():
        after[name] = claims[_end_of_chain(name, takers)]
    return {name: claim for name, claim in after.items() if claim != claims[name]}


def _end_of_chain(name: str, takers: Mapping[str, str]) -> str:
    """The allocation at the end of a chain in which each claim went to the next allocation.

    `takers`: allocation to the allocation that gets its claim. The claim of the last one is left over.
    """
    for _ in takers:  # with two allocations of one claim the chain may be a circle
        if name not in takers:
            break
        name = takers[name]
    return name

"""The topology manager: NUMA hints of devices, and how each policy merges them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

Policy = Literal["none", "best-effort", "restricted", "single-numa-node"]
Mask = frozenset[int]
MAX_NODES = 8  # what the policies other than none accept


class TopologyAffinityError(Exception):
    def __init__(self) -> None:
        super().__init__("Resources cannot be allocated with Topology locality")


@dataclass(frozen=True, slots=True)
class Hint:
    """NUMA nodes that could serve a request; None is indifferent."""

    mask: Mask | None
    preferred: bool


@dataclass(frozen=True, slots=True)
class Demand:
    """A container's request of one resource: the NUMA nodes of every device, and the devices that count."""

    nodes: Mapping[str, tuple[int, ...]]
    available: Collection[str]
    reusable: Collection[str]
    size: int


def masks(nodes: Sequence[int]) -> Iterator[Mask]:
    for size in range(1, len(nodes) + 1):
        yield from map(frozenset, combinations(sorted(nodes), size))


def hints(demand: Demand, machine: Sequence[int], *, only_hosts: bool) -> list[Hint]:
    """Every set of nodes that can serve the demand; those with the fewest nodes are preferred."""
    hosts = {node for nodes in demand.nodes.values() for node in nodes} & set(machine)
    considered = sorted(hosts) if only_hosts and hosts else list(machine)
    smallest = len(considered)
    found: list[Mask] = []
    for mask in masks(considered):
        if sum(_touches(mask, nodes) for nodes in demand.nodes.values()) >= demand.size:
            smallest = min(smallest, len(mask))
        if _serves(mask, demand):
            found.append(mask)
    return [Hint(mask, len(mask) == smallest) for mask in found]


def _serves(mask: Mask, demand: Demand) -> bool:
    reused = [demand.nodes[one] for one in demand.reusable if demand.nodes.get(one)]
    if not all(_touches(mask, nodes) for nodes in reused):
        return False
    fresh = sum(_touches(mask, demand.nodes.get(one, ())) for one in demand.available)
    return len(reused) + fresh >= demand.size


def _touches(mask: Mask, nodes: Collection[int]) -> bool:
    return not mask.isdisjoint(nodes)


def merge(policy: Policy, machine: Mask, per_resource: Sequence[Sequence[Hint] | None]) -> Mask | None:
    """The nodes to align a container with, None for anywhere.

    Raises:
        TopologyAffinityError: The policy does not admit it.
    """
    every = [_filtered(policy, offered) for offered in per_resource] or [[Hint(None, True)]]
    best = _best(machine, every)
    if policy != "best-effort" and not best.preferred:
        raise TopologyAffinityError
    return None if policy == "single-numa-node" and best.mask == machine else best.mask


def _filtered(policy: Policy, offered: Sequence[Hint] | None) -> Sequence[Hint]:
    if offered is None:
        return [Hint(None, True)]
    found = offered or [Hint(None, False)]
    if policy != "single-numa-node":
        return found
    return [one for one in found if one.preferred and (one.mask is None or len(one.mask) == 1)]


def _best(machine: Mask, every: Sequence[Sequence[Hint]]) -> Hint:
    """The first of the best merges; without any merge the whole machine, not preferred."""
    target = max((_narrowest(offered) for offered in every), default=0)
    best: Hint | None = None
    for choice in product(*every):
        merged = _merged(machine, choice)
        if merged.mask and (best is None or _better(merged, best, target)):
            best = merged
    return best or Hint(machine, False)


def _narrowest(offered: Sequence[Hint]) -> int:
    return min((len(one.mask) for one in offered if one.mask is not None), default=0)


def _merged(machine: Mask, choice: Sequence[Hint]) -> Hint:
    named = [one.mask for one in choice if one.mask is not None]
    same = all(mask == named[0] for mask in named)
    return Hint(machine.intersection(*named), same and all(one.preferred for one in choice))


def _better(new: Hint, old: Hint, target: int) -> bool:
    """Preferred beats not; among preferred the narrower; else the one nearer below `target` nodes."""
    assert new.mask is not None
    assert old.mask is not None
    if new.preferred != old.preferred:
        return new.preferred
    narrower = _rank(new.mask) < _rank(old.mask)
    if new.preferred or len(old.mask) > target:
        return narrower
    if len(old.mask) == target:
        return len(new.mask) == target and narrower
    if len(new.mask) > target:
        return False
    return len(new.mask) > len(old.mask) or (len(new.mask) == len(old.mask) and narrower)


def _rank(mask: Mask) -> tuple[int, int]:
    return len(mask), sum(1 << node for node in mask)

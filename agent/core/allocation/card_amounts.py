"""How much of a card allocations take, measured as schedulers promised it or by IDs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite

from msgspec import Struct, field

from agent.core.allocation.known_pods import KnownPods
from agent.core.model import Allocation, AllocationSource, Plan
from agent.scheduler_api.candidate import PodContainer
from agent.scheduler_api.claims import Claim, Part
from agent.scheduler_api.dialects import Dialect, Measure

#: By how much the parts on a card may exceed it, because sums of floats are not exact.
ROUNDING = 1e-6


def total(parts: Iterable[Part]) -> Part:
    """All parts together."""
    known = tuple(parts)
    return Part(sum(it.core for it in known), sum(it.memory for it in known))


def largest(parts: Iterable[Part]) -> Part:
    """The largest cores and the largest memory among the parts."""
    all_parts = (Part(), *parts)
    return Part(max(it.core for it in all_parts), max(it.memory for it in all_parts))


def room_left(part: Part) -> float:
    """The smaller of the cores and the memory that the part leaves of a card; below 0 if it is too large."""
    return 1.0 - max(part.core, part.memory)


def fit(*parts: Part) -> bool:
    """Whether all parts fit on one card."""
    return room_left(total(parts)) >= -ROUNDING


class CardAmounts(Struct, frozen=True):
    """How claims on the present cards are measured."""

    plan: Plan = field(default_factory=dict)
    #: Dialect to its measure. Claims of other dialects are measured by their IDs.
    measures: Mapping[str, Measure] = field(default_factory=dict)
    #: Card to its bytes.
    memory: Mapping[str, int] = field(default_factory=dict)
    #: The pods whose init containers are known.
    pods: KnownPods = field(default_factory=KnownPods)

    def amount_of_claim(self, claim: Claim | None, uuid: str, cards: int) -> Part | None:
        """What a claim on `cards` cards takes of this card; None where its IDs are counted."""
        measure = self.measures.get(claim.dialect) if claim is not None else None
        if claim is None or measure is None:
            return None
        part = part_of_card(measure, claim.parameters, self.memory.get(uuid, 0))
        # What was promised on several cards may lie on fewer. A claim without cards is for each card.
        return part and _multiply(part, max(1, -(-len(claim.devices) // max(1, cards))))

    def amount_of_allocation(self, allocation: Allocation, uuid: str) -> Part | None:
        """What an allocation takes of its card; None where its IDs are counted.

        A container keeps what it was answered with, and may take what it was promised. Without a promise it
        may take what its IDs stand for. The larger amount counts.
        """
        parts = [self.amount_of_claim(allocation.claim, uuid, len({*allocation.cards}))]
        if allocation.handed:
            memory = self.memory.get(uuid, 0)
            parts += [part_of_card(measure, allocation.handed, memory) for measure in self.measures.values()]
        elif allocation.handed is not None and parts[0] is not None:
            parts.append(Part(1.0, 1.0))  # an answer without limits allows the whole card
        measured = [part for part in parts if part is not None]
        # Made hardware is as large as it was made, whatever its IDs stand for.
        if measured and allocation.claim is None and not allocation.partitions:
            measured.append(self.amount_of_ids(allocation.resource, uuid, len(_ids_on(uuid, allocation))))
        return largest(measured) if measured else None

    def is_gone(self, allocation: Allocation, uids: Collection[str]) -> bool:
        """Whether a scheduler measured the allocation for a pod that is not among `uids`."""
        measured = allocation.claim is not None and allocation.claim.dialect in self.measures
        return measured and allocation.container_key is not None and allocation.container_key[0] not in uids

    def is_measured_on(self, uuid: str, in_use: Iterable[Allocation]) -> bool:
        """Whether any of these allocations is measured on the card, and not counted by its IDs."""
        return any(uuid in it.cards and self.amount_of_allocation(it, uuid) is not None for it in in_use)

    def amount_on_card(self, uuid: str, in_use: Iterable[Allocation]) -> Part:
        """What these allocations take of the card: for each pod, the most that it takes at one time."""
        pods: dict[str, list[Allocation]] = {}
        for allocation in in_use:
            if uuid in allocation.cards:
                pod = allocation.container_key[0] if allocation.container_key else allocation.id
                pods.setdefault(pod, []).append(allocation)
        return total(self._amount_of_pod(uuid, of_pod) for of_pod in pods.values())

    def _amount_of_pod(self, uuid: str, allocations: Sequence[Allocation]) -> Part:
        parts = [(it, self.amount_of_allocation(it, uuid)) for it in allocations]
        measured = [(self._container_of(it), part) for it, part in parts if part is not None]
        ending = largest(part for it, part in measured if it.init and not it.restartable)
        sidecars = total(part for it, part in measured if it.init and it.restartable)
        running = total(part for it, part in measured if not it.init or it.restartable)
        counted = total(self._amounts_by_ids(uuid, [it for it, part in parts if part is None]))
        return total((largest((running, total((ending, sidecars)))), counted))

    def _container_of(self, allocation: Allocation) -> PodContainer:
        """The container that has the allocation, as its pod says; no init container where that is unknown."""
        uid, name = allocation.container_key or ("", "")
        pod = self.pods.by_uid.get(uid)
        containers = pod.containers if pod is not None else ()
        return next((it for it in containers if it.name == name), PodContainer(name))

    def _amounts_by_ids(self, uuid: str, allocations: Sequence[Allocation]) -> Iterable[Part]:
        for resource in dict.fromkeys(it.resource for it in allocations):
            of_resource = [it for it in allocations if it.resource == resource]
            made = sum(len(_ids_on(uuid, it)) for it in of_resource if it.partitions)
            # Init containers pass their IDs on, so each ID counts once. Made hardware is never passed on.
            on = [_ids_on(uuid, it) for it in of_resource if not it.partitions]
            count = len(on[0]) if len(on) == 1 else len(set().union(*on))
            yield self.amount_of_ids(resource, uuid, made + count)

    def amount_of_ids(self, resource: str, uuid: str, count: int) -> Part:
        """The part of the card that `count` IDs stand for; the whole card where it lists no such IDs."""
        planned = self.plan.get(resource)
        card = next((it for it in planned.cards if it.uuid == uuid), None) if planned else None
        if planned is None or card is None:
            return Part(1.0, 1.0)
        size = max(1, card.shares)
        return Part(count / size, count / size)


def part_of_card(measure: Measure, parameters: Mapping[str, str], memory: int) -> Part | None:
    """What a claim with these parameters takes of a card with `memory` bytes; None where IDs are counted."""
    try:
        part = measure(parameters, memory)
        return part if part is not None and _is_amount(part.core) and _is_amount(part.memory) else None
    except Exception:  # contributors' code
        return None


def _is_amount(amount: float) -> bool:
    return isfinite(amount) and amount >= 0


def _multiply(part: Part, count: int) -> Part:
    return Part(part.core * count, part.memory * count)


def _ids_on(uuid: str, allocation: Allocation) -> Sequence[str]:
    """The IDs of the allocation that lie on the card; one made-up ID where there was no Allocate."""
    if allocation.source is AllocationSource.ANNOTATION:
        return (allocation.id,)
    if len({*allocation.cards}) == 1:
        return allocation.ids
    cards = allocation.cards
    return [one for n, one in enumerate(allocation.ids) if cards[n % len(cards)] == uuid]


def measures(dialects: Iterable[Dialect]) -> dict[str, Measure]:
    """Dialect to its measure, for dialects that have one."""
    return {it.name: it.measure for it in dialects if it.measure is not None}

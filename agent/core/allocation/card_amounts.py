"""How much of a card its allocations take, in the units in which schedulers promised it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.core.model import Allocation, AllocationSource, Plan
from agent.scheduler_api import Candidate, Claim, Dialect, Measure, Part

#: Parts of a card add up, as floats, to a hair more than it.
HAIR = 1e-6
#: Uid and container.
Place = tuple[str, str]


def total(parts: Iterable[Part]) -> Part:
    its = tuple(parts)
    return Part(sum(it.core for it in its), sum(it.memory for it in its))


def most(parts: Iterable[Part]) -> Part:
    """Of the cores and of the memory as much as the one takes that takes most."""
    its = (Part(), *parts)
    return Part(max(it.core for it in its), max(it.memory for it in its))


def left(part: Part) -> float:
    """What such a part leaves of the card, both of cores and of memory; below 0 where it is too much."""
    return 1.0 - max(part.core, part.memory)


def fit(*parts: Part) -> bool:
    """Whether one card has them all."""
    return left(total(parts)) >= -HAIR


@dataclass(frozen=True, slots=True)
class CardAmounts:
    """How schedulers measure what they promise, of the cards that there are."""

    plan: Plan = field(default_factory=dict)
    #: Dialect to how its claims are measured; those of others in IDs.
    measures: Mapping[str, Measure] = field(default_factory=dict)
    #: Card to its bytes.
    memory: Mapping[str, int] = field(default_factory=dict)
    #: The init containers that end before the next one begins, and the sidecars, which run beside them.
    inits: Collection[Place] = ()
    sidecars: Collection[Place] = ()

    def promised(self, claim: Claim | None, uuid: str, cards: int) -> Part | None:
        """What a claim takes of the card, where it lies on so many; None where its IDs say it."""
        measure = self.measures.get(claim.dialect) if claim is not None else None
        if claim is None or measure is None:
            return None
        part = part_of_card(measure, claim.parameters, self.memory.get(uuid, 0))
        # What was promised of several cards may lie on fewer. A claim that names none says it of each.
        return part and _times(part, max(1, -(-len(claim.devices) // max(1, cards))))

    def measured(self, it: Allocation, uuid: str) -> Part | None:
        """What an allocation takes of its card; None where its IDs say it.

        What its container was answered with cannot be changed, and what it was promised is its right, which
        is what its IDs say where nobody promised it anything: it counts with what is more.
        """
        parts = [self.promised(it.claim, uuid, len({*it.cards}))]
        if it.handed:
            memory = self.memory.get(uuid, 0)
            parts += [part_of_card(measure, it.handed, memory) for measure in self.measures.values()]
        elif it.handed is not None and parts[0] is not None:  # it was given no limits, and has them all
            parts.append(Part(1.0, 1.0))
        said = [part for part in parts if part is not None]
        if said and it.claim is None and not it.partitions:  # hardware is as large as it was made
            said.append(self.of_ids(it.resource, uuid, len(_ids_on(uuid, it))))
        return most(said) if said else None

    def is_gone(self, it: Allocation, uids: Collection[str]) -> bool:
        """Whether its scheduler counts it no more: what it measured was of a pod that is none of these."""
        measured = it.claim is not None and it.claim.dialect in self.measures
        return measured and it.place is not None and it.place[0] not in uids

    def is_measured_on(self, uuid: str, in_use: Iterable[Allocation]) -> bool:
        return any(uuid in it.cards and self.measured(it, uuid) is not None for it in in_use)

    def on(self, uuid: str, in_use: Iterable[Allocation]) -> Part:
        """What all of these take of the card, each pod as much as it takes at one time."""
        pods: dict[str, list[Allocation]] = {}
        for it in in_use:
            if uuid in it.cards:
                pods.setdefault(it.place[0] if it.place else it.id, []).append(it)
        return total(self._of_pod(uuid, its) for its in pods.values())

    def _of_pod(self, uuid: str, its: Sequence[Allocation]) -> Part:
        parts = [(it, self.measured(it, uuid)) for it in its]
        said = [(it.place, part) for it, part in parts if part is not None]
        begins = most(part for place, part in said if place in self.inits)
        beside = total(part for place, part in said if place in self.sidecars)
        runs = total(part for place, part in said if place not in self.inits)
        counted = total(self._by_ids(uuid, [it for it, part in parts if part is None]))
        return total((most((runs, total((begins, beside)))), counted))

    def _by_ids(self, uuid: str, its: Sequence[Allocation]) -> Iterable[Part]:
        for resource in dict.fromkeys(it.resource for it in its):
            mine = [it for it in its if it.resource == resource]
            made = sum(len(_ids_on(uuid, it)) for it in mine if it.partitions)
            # Init containers hand their IDs on: each counts once; of made hardware each has its own.
            on = [_ids_on(uuid, it) for it in mine if not it.partitions]
            count = len(on[0]) if len(on) == 1 else len(set().union(*on))
            yield self.of_ids(resource, uuid, made + count)

    def of_ids(self, resource: str, uuid: str, count: int) -> Part:
        """What so many IDs are of the card; where it has none of the resource it is used whole."""
        planned = self.plan.get(resource)
        card = next((it for it in planned.cards if it.uuid == uuid), None) if planned else None
        if planned is None or card is None:
            return Part(1.0, 1.0)
        size = max(1, card.shares)
        return Part(count / size, count / size)


def part_of_card(measure: Measure, parameters: Mapping[str, str], memory: int) -> Part | None:
    """What a claim with these parameters takes of a card of so many bytes; None where its IDs say it."""
    try:
        return measure(parameters, memory)
    except Exception:  # contributors' code
        return None


def _times(part: Part, count: int) -> Part:
    return Part(part.core * count, part.memory * count)


def _ids_on(uuid: str, it: Allocation) -> Sequence[str]:
    """Those of its IDs that lie on the card; by a scheduler's word alone it has one, of no meaning."""
    if it.source is AllocationSource.ANNOTATION:
        return (it.id,)
    if len({*it.cards}) == 1:
        return it.ids
    return [one for n, one in enumerate(it.ids) if it.cards[n % len(it.cards)] == uuid]


def measures(dialects: Iterable[Dialect]) -> dict[str, Measure]:
    return {it.name: it.measure for it in dialects if it.measure is not None}


def of_init(pods: Iterable[Candidate]) -> tuple[frozenset[Place], frozenset[Place]]:
    """The places of init containers that end, and of those that run beside the others."""
    its = [(pod.uid, it) for pod in pods for it in pod.containers if it.init]
    ends = frozenset((uid, it.name) for uid, it in its if not it.restartable)
    return ends, frozenset((uid, it.name) for uid, it in its if it.restartable)

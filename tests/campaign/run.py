"""The campaign: chapters of faults, each on a node of its own, drawn from one seed."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from scenarios.kubelets import Kind as KubeletKind
from support.short_places import SHORT_PLACE

from . import kubelets
from .bed import CAP, DESCRIPTORS, MEMORY, Bed, Broken, bed
from .faults import KINDS, Fault, Kind
from .faults.fault import Unreached
from .invariants import Violation
from .orphans import left_behind
from .traffic import Hung, Traffic

BOTH = 0.12
#: Faults on one node before the next node begins.
CHAPTER = 60
#: Seconds in which an agent that was killed is to serve again.
SOON = 2.0


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault, or several at once, and what became of it."""

    number: int
    names: tuple[str, ...]
    details: tuple[str, ...]
    node: str
    seconds: float
    reached: tuple[bool, ...]
    violations: tuple[Violation, ...] = ()
    #: Both sides and the agent's last words, where something did not hold.
    evidence: str = ""

    def __str__(self) -> str:
        said = " + ".join(
            f"{name}{f' ({detail})' if detail else ''}{'' if reached else ' [not reached]'}"
            for name, detail, reached in zip(self.names, self.details, self.reached, strict=True)
        )
        outcome = "; ".join(map(str, self.violations)) or "holds"
        return f"{self.number:5d} {self.node} {self.seconds:5.2f} s  {said}: {outcome}"


@dataclass(slots=True)
class Result:
    """What the campaign saw."""

    seed: int
    struck: list[Struck] = field(default_factory=list)
    served_again: list[float] = field(default_factory=list)
    #: Bytes: the first and the largest of each node.
    memory: list[tuple[int, int]] = field(default_factory=list)
    descriptors: int = 0
    starts: int = 0
    seconds: float = 0.0

    @property
    def violations(self) -> list[Violation]:
        return [violation for one in self.struck for violation in one.violations]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run. The same plan draws the same faults."""

    seed: int
    faults: int
    kubelets: Sequence[KubeletKind]
    layouts: Sequence[str]
    kinds: Sequence[Kind] = tuple(KINDS.values())
    #: Whether the kinds come in an order of the seed's, or as they are.
    shuffled: bool = True
    #: How often a second fault comes with the first one.
    both: float = BOTH
    chapter: int = CHAPTER
    #: Whether a new node follows one where something does not hold.
    go_on: bool = False
    #: Seconds after which it does not.
    cap: float = CAP


async def run(plan: Plan, tell: Callable[[Struck], None] = lambda _: None) -> Result:
    """Strike, heal, look, again and again; end at the first violation unless the plan goes on."""
    result, began = Result(plan.seed), time.monotonic()
    nodes = [(kubelet, layout) for kubelet in plan.kubelets for layout in plan.layouts]
    bag = _Bag(plan, Random(f"{plan.seed}/kinds"))
    chapter = 0
    while len(result.struck) < plan.faults:
        kubelet, layout = nodes[chapter % len(nodes)]
        chapter += 1
        end = min(plan.faults, len(result.struck) + plan.chapter)
        await _chapter(plan, result, bag, kubelet, layout, end, tell)
        if result.violations and not plan.go_on:
            break
    result.seconds = time.monotonic() - began
    return result


async def _chapter(
    plan: Plan,
    result: Result,
    bag: _Bag,
    kubelet: KubeletKind,
    layout: str,
    end: int,
    tell: Callable[[Struck], None],
) -> None:
    """Faults on one node; a violation ends it."""
    # Not below the directory of the tests: its long names leave no room for a socket's.
    with tempfile.TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as root:
        async with bed(kubelet, layout, Path(root)) as node:
            while len(result.struck) < end:
                number = len(result.struck) + 1
                struck = await _strike(plan, number, bag, node, f"{kubelet.id}/{layout}")
                result.struck.append(struck)
                tell(struck)
                if struck.violations:
                    break
            _sum_up(result, node)


def _sum_up(result: Result, node: Bed) -> None:
    result.served_again += node.served_again
    result.starts += node.agent.starts
    result.descriptors = max(result.descriptors, node.descriptors)
    if node.memory:
        result.memory.append((node.memory[0], max(node.memory)))


async def _strike(plan: Plan, number: int, bag: _Bag, node: Bed, where: str) -> Struck:
    rng = Random(f"{plan.seed}/{number}")
    kinds = bag.draw(node, rng)
    faults = [kind.make(rng) for kind in kinds]
    traffic = Traffic(node, rng)
    node.alone = len(faults) == 1
    began = time.monotonic()
    reached: list[bool] = []
    found: Sequence[Violation] = ()
    evidence = ""
    try:
        await traffic.some()
        reached += [await _hits(fault, node, traffic) for fault in faults]
        for fault, hit in zip(reversed(faults), reversed(reached), strict=True):
            if hit:
                await fault.mend(node)
        await node.revive()
        await traffic.end()
        await node.settle(plan.cap * node.hardware.patience)
        found = list(_costs(node))
    except Broken as exc:
        found, evidence = exc.violations, _evidence(exc, node)
    except Hung as exc:
        found, evidence = [Violation("hung", str(exc))], node.agent.last_words()
    except Exception as exc:
        found, evidence = [Violation("campaign", repr(exc))], traceback.format_exc()
    reached += [False] * (len(kinds) - len(reached))
    return Struck(
        number,
        tuple(kind.name for kind in kinds),
        tuple(fault.detail for fault in faults),
        where,
        time.monotonic() - began,
        tuple(reached),
        tuple(found),
        evidence,
    )


async def _hits(fault: Fault, node: Bed, traffic: Traffic) -> bool:
    try:
        await fault.strike(node, traffic)
    except Unreached:
        await node.revive()
        return False
    return True


def _costs(node: Bed) -> Iterator[Violation]:
    """What grows without end."""
    memory, descriptors = node.agent.memory(), node.agent.descriptors()
    if memory > MEMORY:
        yield Violation("memory", f"the agent has {memory >> 20} MiB")
    if descriptors > DESCRIPTORS:
        yield Violation("descriptors", f"the agent has {descriptors} files open")
    if left := left_behind([node.agent.pid, kubelets.pid(node.kubelet)]):
        yield Violation("orphans", f"processes of dead agents live: {left}")


def _evidence(exc: Broken, node: Bed) -> str:
    look = exc.look
    kubelet = [f"  {place}: {sorted(ids)}" for place, ids in look.held.items()]
    ours = [f"  {dict(it)}" for it in look.document.get("allocations", ())]
    devices = [f"  {it['uuid']}: {it['health']}" for it in look.document.get("devices", ())]
    return "\n".join(
        [
            f"the kubelet counts {dict(look.counts)}, true is {dict(look.expected)}; it gave:",
            *kubelet,
            f"admitted: {dict(look.admitted)}; what became of pods:",
            *(f"  {it}" for it in node.history),
            f"broken: {sorted(look.broken)}, cordoned: {sorted(look.cordoned)}",
            f"ours; ready: {look.document.get('ready')}, {look.document.get('troubles')}:",
            *ours,
            *devices,
            f"slices: {list(look.slices)}",
            f"log:\n{exc.words}",
        ]
    )


class _Bag:
    """Gives every kind in turn, in an order of the seed's, so that none is missed for long."""

    def __init__(self, plan: Plan, rng: Random) -> None:
        self._plan = plan
        self._rng = rng
        self._left: list[Kind] = []

    def draw(self, node: Bed, rng: Random) -> list[Kind]:
        """One kind that the node can show, and now and then a second one."""
        first = self._next(node)
        if not first.mixes or rng.random() >= self._plan.both:
            return [first]
        others = [kind for kind in self._plan.kinds if kind.mixes and kind is not first and kind.fits(node)]
        return [first, rng.choice(others)] if others else [first]

    def _next(self, node: Bed) -> Kind:
        for _ in range(2):
            for place, kind in enumerate(self._left):
                if kind.fits(node):
                    return self._left.pop(place)
            kinds = list(self._plan.kinds)
            self._left += self._rng.sample(kinds, len(kinds)) if self._plan.shuffled else kinds
        raise ValueError("no fault fits this node")

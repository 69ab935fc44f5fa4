"""Units given out against a model of a kubelet that frees early, picks as it likes, and a ledger that lags.

Each container has one card, and a card never gives out more units than it has.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.devices.topology import Topology
from agent.core.errors import AllocationError, InsufficientMemory
from agent.core.model import Owner
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.allocation.allocator import Allocator
from agent.scheduler_api import Candidate, Cards, Claim, Dialect, PodContainer
from agent.vendor_api.agent import (
    ContainerEdits,
    Device,
    Offers,
    Partition,
    Policy,
    Request,
    ResourceRule,
    Sharing,
    Vendor,
)
from core.values import GPU, node, status

#: uuid to MiB: 4, 6 and 9 units, and one that has none.
SIZES = {"a": 4096, "b": 6144, "c": 10000, "d": 1000}
ROOM = {"a": 4, "b": 6, "c": 9, "d": 0}
CARDS = node(
    *(
        replace(it, device=replace(it.device, memory=SIZES[it.uuid] << 20))
        for it in (status(uuid, n, minor=n) for n, uuid in enumerate(SIZES))
    )
)
CARD = "acme.com/card"


def edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    return ContainerEdits(env={"ACME": ",".join(it.uuid for it in devices)})


def claims(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    said = pod.annotations.get(CARD)
    return [Claim(pod.uid, pod.namespace, pod.name, "main", (said,))] if said else ()


VENDOR = Vendor(
    "acme",
    "",
    GPU,
    edits,
    offers=Offers(insufficient_memory="too little in one card"),
    dialects=(Dialect("acme", claims),),
)


@dataclass(frozen=True)
class Living:
    """A pod that the kubelet admitted."""

    name: str
    ids: tuple[str, ...]
    card: str
    allocation: str


class World:
    """The allocator, and a kubelet that counts IDs."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.ledger = Ledger()
        self.now = 1000.0
        self.allocator = Allocator(
            self.scene, self.ledger, self, lambda: self.now, self.prepare, self.release, evidence=self
        )
        self.living: dict[str, Living] = {}
        self.candidates: tuple[Candidate, ...] = ()
        self.number = 0

    life = "k1"

    def scene(self) -> Scene:
        rules = (
            ResourceRule(GPU, sharing=Sharing("memory", unit="1"), policy=self.policy, placement="auto"),
        )
        ledger = self.ledger
        planned = plan([Offer("acme", rules)], CARDS, usage=ledger.usage())
        return Scene(planned, CARDS, Topology(), {"acme": VENDOR}, candidates=KnownPods.of(self.candidates))

    async def save(self, *, durable: bool) -> None: ...

    async def prepare(self, vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        raise AssertionError("nothing is made")

    async def release(self, vendor: str, allocation: str) -> None:
        raise AssertionError("nothing is made")

    async def checkpoint_answers(self) -> Sequence[CheckpointAnswer] | None:
        return ()

    async def existing_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        return {it for it in owners if it.pod in self.living}

    async def ended_owners(self, owners: Collection[Owner]) -> Collection[Owner]:
        return {it for it in owners if it.pod not in self.living}

    async def pods_with_ids(
        self, resource: str, ids: Collection[str], owners: object
    ) -> Mapping[str, tuple[str, str]]:
        return {one: ("a", it.name) for it in self.living.values() for one in it.ids if one in ids}

    @property
    def free(self) -> list[str]:
        """What the kubelet takes for free."""
        taken = {one for it in self.living.values() for one in it.ids}
        return [one for card in self.scene().plan[GPU].cards for one in card if one not in taken]

    @property
    def used(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for it in self.living.values():
            used[it.card] += len(it.ids)
        return used

    def asks(self, size: int, card: str, picked: Sequence[str]) -> None:
        """A pod asks, promised this card if any; the kubelet takes what is preferred, or `picked`."""
        self.number += 1
        self.now += 1
        name = f"pod-{self.number}"
        said = {CARD: card} if card else {}
        pod = Candidate(name, "a", name, (PodContainer("main", {GPU: size}),), said, created=self.now)
        self.candidates = (pod,)
        free = self.free
        if size > len(free):
            return
        chosen = self.allocator.preferred(GPU, free, [], size)
        assert len(chosen) in (0, size)
        assert len({one.partition("::")[0] for one in chosen}) <= 1
        ids = list(picked) or chosen or free[:size]
        try:
            (answer,) = asyncio.run(self.allocator.allocate(GPU, [ids]))
        except AllocationError as refused:
            self.judge(refused, size)
            return
        its = Living(name, tuple(ids), answer.edits.env["ACME"], answer.edits.annotations[ALLOCATION])
        self.living[name] = its
        self.ledger.confirm(its.allocation, Owner(name, "main", "a", name), self.life)

    def judge(self, refused: AllocationError, size: int) -> None:
        """No request is refused that one card has room for, as far as the ledger can know."""
        if isinstance(refused, InsufficientMemory) and self.exact:
            most = max(ROOM[uuid] - self.used[uuid] for uuid in ROOM)
            assert most < size, str(refused)
            assert (f"the largest free card has {most}" if most else "no card is free") in str(refused)

    @property
    def exact(self) -> bool:
        """Whether the ledger knows who has ended."""
        return {it.id for it in self.ledger.in_use()} == {it.allocation for it in self.living.values()}


class Units(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World("packed")

    @rule(size=st.integers(1, 10), card=st.sampled_from(["", *SIZES]))
    def asks(self, size: int, card: str) -> None:
        self.world.asks(size, card, ())

    @rule(data=st.data(), size=st.integers(1, 8), card=st.sampled_from(["", *SIZES]))
    def asks_without_preference(self, data: st.DataObject, size: int, card: str) -> None:
        free = self.world.free
        if size <= len(free):
            self.world.asks(size, card, data.draw(st.permutations(free))[:size])

    @precondition(lambda self: self.world.living)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        """The kubelet knows it at once, the ledger later."""
        del self.world.living[data.draw(st.sampled_from(sorted(self.world.living)))]

    @rule()
    def is_released(self) -> None:
        its = {it.allocation for it in self.world.living.values()}
        for it in self.world.ledger.in_use():
            if it.id not in its:
                self.world.ledger.release(it.id, "gone", self.world.now)

    @rule()
    def time_passes(self) -> None:
        self.world.now += 100

    @invariant()
    def no_card_gives_out_more_than_it_has(self) -> None:
        used = self.world.used
        assert all(used[uuid] <= ROOM[uuid] for uuid in ROOM), used
        assert set(used) <= set(ROOM)  # one card each


TestUnits = Units.TestCase
TestUnits.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(("policy", "first"), [("packed", "a"), ("aligned", "a"), ("distributed", "c")])
def test_a_request_goes_where_it_fits_best_or_where_pods_are_spread_where_most_is_free(
    policy: Policy, first: str
) -> None:
    world = World(policy)

    world.asks(3, "", ())

    assert world.living["pod-1"].card == first


def test_the_vendor_words_the_shortage() -> None:
    world = World("packed")

    with pytest.raises(InsufficientMemory, match="too little in one card: 10 units of 1 GiB asked for"):
        asyncio.run(world.allocator.allocate(GPU, [world.free[:10]]))

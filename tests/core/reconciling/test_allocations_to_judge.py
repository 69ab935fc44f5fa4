"""A quick pass judges few allocations, and decides what it would decide if it judged all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.ledger import Ledger
from agent.core.attribution.answered_claims import claims_after_swaps
from agent.core.attribution.scheduler_promises import Promises
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.core.reconciling.allocations_to_judge import MAX_IDS, NONE_AGREED, allocations_to_judge
from agent.core.reconciling.reconcile_changes import Change, Confirm, Release, SetForgotten
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer, Evidence
from agent.core.reconciling.reconcile_rules import TAKEN_WITHIN, reconcile
from agent.scheduler_api import Claim
from core.values import allocation

GRACE = 60.0
RESOURCES = ("example.com/gpu", "example.com/share")
UIDS = ("", *(f"u{n}" for n in range(8)))
NAMES = ("", *(f"pod-{n}" for n in range(5)))
CONTAINERS = ("main", "main", "side")
IDS = tuple(f"card-{n // 4}::{n % 4}" for n in range(24))
LIVES = ("", "k1", "k1", "k1", "k2")
SOURCES = (*[AllocationSource.ALLOCATE] * 4, *AllocationSource)
T = TypeVar("T")
Containers = Mapping[str, Mapping[str, frozenset[str]]]


class Draw:
    """Small numbers of one step of a history, each used once; they end in zeros."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = iter(numbers)

    def __call__(self, *values: object) -> int:
        return next(self._numbers, 0) % len(values)

    def of(self, values: tuple[T, ...]) -> T:
        return values[next(self._numbers, 0) % len(values)]

    def ids(self) -> tuple[str, ...]:
        first, count = self(*IDS), self.of((1, 1, 1, 1, 2, 0))
        return IDS[first : first + count]


class World:
    """A ledger and evidence in which anything may change between two passes, also what no kubelet does."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.count = 0
        self.now = 1000.0
        self.granted: list[CheckpointAnswer] = []
        self.pods: dict[tuple[str, str], Containers] = {}
        self.evidence = Evidence(life="k1", settled=True)
        self.no_checkpoint = self.no_pods = False
        self.agreed = NONE_AGREED
        self.changes: list[Change] = []
        self.known_pods: dict[str, object] = {}
        self.busy: set[str] = set()
        self.fresh: set[str] = set()
        self.abandoned: set[str] = set()
        self.events: tuple[Callable[[Draw], object], ...] = (
            self.admit,
            self.admit,
            self.admit,
            self.apply,
            self.apply,
            self.end_pod,
            self.answer,
            self.write_answer_again,
            self.drop_answer,
            self.write_in_another_order,
            self.list_pod,
            self.list_again,
            self.drop_pod,
            self.list_in_another_order,
            self.change_allocation,
            self.change_owner,
            self.change_claim,
            self.release,
            self.revive,
            self.lose_source,
            self.change_evidence,
            self.begin_life,
            self.mark,
            self.learn_pod,
        )

    def any(self, draw: Draw) -> Allocation | None:
        return draw.of(tuple(self.ledger.in_use()) or (None,))

    # What happens on a node

    def admit(self, draw: Draw) -> None:
        """A pod is admitted, as far as the agent has heard."""
        how, pod = draw.of((7, 7, 7, 6, 5, 4, 3, 2, 1, 0)), self.count + draw.of((0, 0, 0, 0, 0, 1, 2))
        uid, name, container = UIDS[1 + pod % 8], NAMES[1 + pod % 5], draw.of(CONTAINERS)
        ids = (IDS[self.count % len(IDS)],) if draw(*range(6)) < 5 else draw.ids() or IDS[:1]
        self.count += 1
        owner = Owner(uid, container, "default", name) if how > 3 else None
        made = allocation(
            f"a{self.count}",
            ids,
            since=self.now,
            resource=draw.of(RESOURCES),
            life=self.evidence.life,
            source=draw.of((*[AllocationSource.ALLOCATE] * 6, AllocationSource.KUBELET)),
            owner=owner,
        )
        self.ledger.record(made)
        if how > 1:
            self.granted.append(CheckpointAnswer(made.id, uid, container, made.resource, made.ids))
        if how > 2:
            self.list_ids(("default", name), container, made.resource, made.ids)

    def hold(self, name: str, ids: str, uid: str = "", pod: str = "", **fields: Any) -> None:
        """An allocation in use. With `pod`, the kubelet's file and its list have it, too."""
        owner = Owner(uid, "main", "default" if pod else "", pod) if uid else None
        held = allocation(name, ids.split(), since=self.now, resource=RESOURCES[0], life="k1", owner=owner)
        self.ledger.record(replace(held, **fields))
        if pod:
            self.granted.append(CheckpointAnswer(name, uid, "main", RESOURCES[0], held.ids))
            self.list_ids(("default", pod), "main", RESOURCES[0], held.ids)

    def end_pod(self, draw: Draw) -> None:
        if it := self.any(draw):
            ways = draw(*range(4))
            if ways != 0:
                self.granted = [answer for answer in self.granted if answer.allocation != it.id]
            if ways != 1 and it.owner is not None:
                self.pods.pop((it.owner.namespace, it.owner.pod), None)

    def list_ids(self, pod: tuple[str, str], container: str, resource: str, ids: tuple[str, ...]) -> None:
        known = self.pods.get(pod, {})
        resources = known.get(container, {})
        held = resources.get(resource, frozenset()) | set(ids)
        self.pods[pod] = {**known, container: {**resources, resource: held}}

    def apply(self, draw: Draw) -> None:
        """Changes that a pass has decided on are made, or some of them."""
        all_of_them = draw(*range(4)) > 0
        for change in self.changes:
            known = self.ledger.get(getattr(change, "allocation", ""))
            if known is None or known.state is AllocationState.RELEASED or not (all_of_them or draw(0, 1)):
                continue
            match change:
                case Confirm(name, owner, life):
                    self.ledger.confirm(name, owner, life)
                case Release(name, reason):
                    self.ledger.release(name, reason, self.now)
                case SetForgotten(name, forgotten):
                    self.ledger.set_forgotten(name, forgotten=forgotten)
        self.changes = []

    # What no kubelet need do

    def answer(self, draw: Draw) -> None:
        it = self.any(draw)
        name = it.id if it and draw(*range(4)) else draw.of(("kubelet-1", "kubelet-2"))
        uid, container, resource = draw.of(UIDS), draw.of(CONTAINERS), draw.of(RESOURCES)
        if draw(*range(8)):  # else two answers have the same id
            self.granted = [answer for answer in self.granted if answer.allocation != name]
        self.granted.append(CheckpointAnswer(name, uid, container, resource, draw.ids()))

    def write_answer_again(self, draw: Draw) -> None:
        if self.granted:
            number = draw(*self.granted)
            self.granted[number] = replace(self.granted[number])

    def drop_answer(self, draw: Draw) -> None:
        if self.granted:
            del self.granted[draw(*self.granted)]

    def write_in_another_order(self, draw: Draw) -> None:
        self.granted = [*reversed(self.granted)] if draw(0, 1) else [*self.granted[1:], *self.granted[:1]]

    def list_pod(self, draw: Draw) -> None:
        namespace, name = draw.of(("default", "default", "")), draw.of(NAMES)
        self.list_ids((namespace, name), draw.of(CONTAINERS), draw.of(RESOURCES), draw.ids())

    def list_again(self, draw: Draw) -> None:
        if self.pods:
            name = draw.of(tuple(self.pods))
            self.pods[name] = dict(self.pods[name])

    def drop_pod(self, draw: Draw) -> None:
        if self.pods:
            del self.pods[draw.of(tuple(self.pods))]

    def list_in_another_order(self, draw: Draw) -> None:
        self.pods = dict(reversed(self.pods.items()))

    def change_allocation(self, draw: Draw) -> None:
        if it := self.any(draw):
            changed: tuple[Allocation, ...] = (
                replace(it),
                replace(it, life=draw.of(LIVES)),
                replace(it, forgotten=not it.forgotten),
                replace(it, source=draw.of(SOURCES)),
                replace(it, state=draw.of((AllocationState.DONE, AllocationState.INTENT))),
                replace(it, since=self.now - draw.of((0.0, TAKEN_WITHIN, GRACE))),
            )
            self.ledger.record(draw.of(changed))

    def change_owner(self, draw: Draw) -> None:
        if it := self.any(draw):
            name = draw.of(NAMES)
            owner = Owner(draw.of(UIDS), draw.of(CONTAINERS), "default" if name else "", name)
            self.ledger.record(replace(it, owner=draw.of((owner, owner, owner, None))))

    def change_claim(self, draw: Draw) -> None:
        if it := self.any(draw):
            uid, container = draw.of(UIDS), draw.of(CONTAINERS)
            if it.owner and draw(*range(2)):
                uid, container = it.owner.uid, it.owner.container
            claim = Claim(uid, "default", f"claim-{draw(*range(4))}", container)
            self.ledger.record(replace(it, claim=draw.of((claim, claim, claim, None))))

    def release(self, draw: Draw) -> None:
        if it := self.any(draw):
            self.ledger.release(it.id, "over", self.now)

    def revive(self, draw: Draw) -> None:
        released = tuple(it.id for it in self.ledger.all() if it.state is AllocationState.RELEASED)
        if released:
            self.ledger.revive(draw.of(released))

    def lose_source(self, draw: Draw) -> None:
        self.no_checkpoint, self.no_pods = draw.of((False, True)), draw.of((False, True))

    def change_evidence(self, draw: Draw) -> None:
        running = frozenset(draw.of(UIDS) for _ in range(3)) if draw(0, 1) else None
        proven, settled, steady = (draw.of((True, False)) for _ in range(3))
        self.evidence = replace(self.evidence, proven=proven, settled=settled, steady=steady, running=running)

    def begin_life(self, draw: Draw) -> None:
        self.evidence = replace(self.evidence, life=draw.of(LIVES), settled=False)

    def mark(self, draw: Draw) -> None:
        """Some allocations are answered now, came while the evidence was read, or lost their pods."""
        names = [it.id for it in self.ledger.in_use()]
        for marked in (self.busy, self.fresh, self.abandoned):
            marked.clear()
            marked.update(name for name in names if draw(*range(4)) == 1)

    def learn_pod(self, draw: Draw) -> None:
        uid = draw.of(UIDS)
        self.known_pods = {**self.known_pods, uid: uid} if draw(0, 1) else {}

    # A pass

    def check(self, *, full: bool) -> None:
        in_use = [it for it in self.ledger.in_use() if it.source is not AllocationSource.ANNOTATION]
        evidence = replace(
            self.evidence,
            granted=None if self.no_checkpoint else tuple(self.granted),
            pods=None if self.no_pods else dict(self.pods),
        )
        marks = self.busy, self.fresh, self.abandoned
        self.changes = reconcile(in_use, evidence, self.now, GRACE, *marks)
        if full:
            return
        part = allocations_to_judge(in_use, evidence, self.agreed, self.ledger.holders)
        self.agreed = part.agreed
        assert reconcile(part.allocations, part.evidence, self.now, GRACE, *marks) == self.changes
        promises = self.promises()
        swapped = claims_after_swaps(promises, self.granted, part.left_out)
        assert [*swapped.items()] == [*claims_after_swaps(promises, self.granted).items()]

    def promises(self) -> Promises:
        def claim_of(allocation: Allocation, pod: object, container: str) -> Claim | None:
            return Claim(str(pod), "default", "promised", container) if pod else None

        values = SimpleNamespace(pods=self.known_pods, in_use=self.ledger.in_use(), claim_of=claim_of)
        return cast("Promises", values)


STEPS = st.tuples(
    st.lists(st.tuples(st.integers(0, 23), st.lists(st.integers(0, 23), max_size=9)), max_size=3),
    st.sampled_from([0.0, 0.3, 0.3, 4.0, 61.0]),
    st.booleans(),
    st.sampled_from([False] * 9 + [True]),
)


@given(st.integers(0, 8), st.lists(STEPS, max_size=15))
def test_a_quick_pass_decides_what_it_would_if_it_judged_all(
    pods: int, history: list[tuple[list[tuple[int, list[int]]], float, bool, bool]]
) -> None:
    world = World()
    for _ in range(pods):
        world.admit(Draw([]))
        world.check(full=False)
        world.apply(Draw([1]))
    for events, later, applies, full in history:
        for number, numbers in events:
            world.events[number](Draw(numbers))
        world.now += later
        world.check(full=full)
        if applies:
            world.apply(Draw([1]))
        world.check(full=False)


def agreed_world() -> World:
    """Two pods whose allocations a quick pass need not judge."""
    world = World()
    world.hold("a1", "card-1", "u1", "web")
    world.hold("a2", "card-2", "u2", "job")
    world.check(full=False)
    assert world.agreed.keys() == {"a1", "a2"}
    return world


def test_an_answer_that_a_later_one_has_overtaken_is_seen_though_the_later_one_is_left_out() -> None:
    world = World()
    world.hold("lost", "card-0")
    world.hold("a1", "card-1", "u1", "web")
    world.hold("a2", "card-2", "u2", "job", source=AllocationSource.KUBELET)
    world.check(full=False)

    world.now += TAKEN_WITHIN
    world.check(full=False)

    assert world.changes == [Release("lost", "never used")]


def test_a_pod_that_has_the_name_of_an_agreed_one_is_not_taken_for_that_one() -> None:
    world = World()
    world.hold("lost", "card-0", life="k0", owner=Owner("u1", "side"))
    world.hold("a1", "card-1", "u1", "web")
    world.hold("a2", "card-2", "u2", "web")
    world.hold("a3", "card-3", "u3", "api")
    for _ in range(2):
        world.now += GRACE
        world.check(full=False)

    # The kubelet has not forgotten the first pod of that name: it lists the second one.
    assert world.changes == [Confirm("lost", Owner("u1", "side", "default", "web"), "k0")]


def test_an_id_that_is_given_again_has_its_earlier_allocation_judged() -> None:
    world = agreed_world()

    world.hold("a3", "card-1 card-3", "u3", "api")
    world.check(full=False)

    assert world.changes == [Release("a1", "superseded")]
    assert world.agreed.keys() == {"a2"}


def test_two_answers_with_one_id_have_all_judged() -> None:
    world = agreed_world()

    world.granted.insert(1, replace(world.granted[1], uid="u1"))
    world.check(full=False)

    assert world.changes == [Release("a1", "given again")]


def test_an_allocation_without_ids_has_all_judged() -> None:
    world = agreed_world()

    world.hold("a3", "")
    world.check(full=False)
    world.now += GRACE
    world.check(full=False)

    assert world.changes == []


def test_in_a_new_life_of_the_kubelet_all_are_judged() -> None:
    world = agreed_world()

    world.evidence = replace(world.evidence, life="k2")
    world.check(full=False)

    web, job = Owner("u1", "main", "default", "web"), Owner("u2", "main", "default", "job")
    assert world.changes == [Confirm("a1", web, "k2"), Confirm("a2", job, "k2")]


def test_a_forgotten_allocation_is_judged_until_it_is_known_again() -> None:
    world = World()
    world.hold("a1", "card-1", "u1", "web", forgotten=True)
    world.hold("a2", "card-2", "u2", "job")
    for _ in range(2):
        world.check(full=False)

    assert world.changes == [SetForgotten("a1", forgotten=False)]


def test_two_answers_for_one_container_are_judged_in_whatever_order_they_are_written() -> None:
    world = World()
    world.hold("a1", "card-1", "u1", "web")
    world.hold("a2", "card-2", "u1", "web")
    world.hold("a3", "card-3", "u3", "job")
    world.granted.reverse()
    world.check(full=False)
    assert world.changes == []

    world.granted.reverse()
    world.check(full=False)

    assert world.changes == [Release("a1", "given again")]


def test_a_pod_with_two_names_is_judged_until_it_has_one() -> None:
    world = World()
    world.hold("a1", "card-1", "u1", "web", owner=Owner("u1", "main", "default", "job"))
    world.list_ids(("default", "job"), "main", RESOURCES[0], ("card-1",))
    world.hold("a2", "card-2", owner=Owner("u1", "side", "default", "web"))
    world.granted.append(CheckpointAnswer("a2", "u1", "side", RESOURCES[0], ("card-2",)))
    world.list_ids(("default", "web"), "side", RESOURCES[0], ("card-2",))
    world.hold("a3", "card-3", "u3", "api")
    for _ in range(2):
        world.check(full=False)

    assert Confirm("a1", Owner("u1", "main", "default", "web"), "k1") in world.changes


def test_the_name_of_a_new_pod_is_none_that_another_pod_has() -> None:
    world = World()
    world.hold("a1", "card-1", "u1", "web")
    world.list_ids(("default", "web"), "main", RESOURCES[0], ("card-3",))
    world.hold("a2", "card-2", "u2", "job")
    world.check(full=False)

    world.hold("a3", "card-3", "u3", "new", owner=None)
    world.check(full=False)

    assert world.changes == [Confirm("a3", Owner("u3", "main", "default", "new"), "k1")]


def test_what_pod_resources_alone_shows_is_compared_with_an_answer_of_other_ids() -> None:
    world = World()
    world.hold("a1", "card-1", "u1", "web")
    world.granted[0] = replace(world.granted[0], ids=("card-3",))
    world.hold("a2", "card-2", "u2", "job")
    world.hold(
        "read", "card-3", owner=Owner("", "main", "default", "api"), source=AllocationSource.POD_RESOURCES
    )
    for _ in range(2):
        world.now += GRACE
        world.check(full=False)

    assert world.changes == [Release("read", "the kubelet's checkpoint knows it better")]


def test_the_claim_of_a_container_is_found_at_another_allocation() -> None:
    world = agreed_world()
    claim = Claim("u1", "default", "web", "main")

    world.hold("a3", "card-3", claim=claim)

    world.check(full=False)
    assert claims_after_swaps(world.promises(), world.granted) == {"a1": claim, "a3": None}


def test_the_claim_of_another_container_is_swapped_until_its_own_is_there() -> None:
    world = World()
    claim = Claim("u2", "default", "job", "main")
    world.hold("a1", "card-1", "u1", "web", claim=claim)
    world.hold("a2", "card-2", "u2", "job")
    for _ in range(2):
        world.check(full=False)

    assert claims_after_swaps(world.promises(), world.granted) == {"a1": None, "a2": claim}


def test_nothing_is_kept_for_the_next_pass_where_allocations_have_very_many_ids() -> None:
    world = agreed_world()

    world.hold("a3", " ".join(f"card-3::{n}" for n in range(MAX_IDS - 2)), "u3", "api")
    world.check(full=False)
    assert world.agreed.keys() == {"a1", "a2", "a3"}
    world.hold("a4", "card-4", "u4", "more")
    world.check(full=False)

    assert world.agreed == {}


def test_an_agreed_allocation_without_a_claim_gets_one_as_soon_as_its_pod_is_known() -> None:
    world = agreed_world()
    assert claims_after_swaps(world.promises(), world.granted, world.agreed) == {}

    world.known_pods = {"u1": "u1"}

    claims = claims_after_swaps(world.promises(), world.granted, world.agreed)
    assert [*claims] == ["a1"]

"""Who holds an allocation, which are over, and which slices are anybody's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import strategies

from agent.core.allocation.ledger import Ledger
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner, Plan
from agent.core.reconciling.cards_of_answers import AnswerReader
from agent.core.reconciling.missing_slices import foreign_slices, slice_changes
from agent.core.reconciling.reconcile_changes import (
    AskKubelet,
    Change,
    Confirm,
    Release,
    Remark,
    Remove,
    SetForgotten,
)
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer, Evidence, Pods
from agent.core.reconciling.reconcile_rules import TAKEN_WITHIN, reconcile
from agent.core.reconciling.recovered_allocations import recover_from_answers, recover_from_pods
from agent.vendor_api.agent import ContainerEdits, Partition, ReplacedPlugins, ResourceRule, Sharing, Vendor
from core.values import GPU, allocation, node, status

GRACE = 60.0
NOW = 1000.0
WEB = Owner("uid-web", "main", "default", "web")
#: A life of the kubelet that is believed.
LIFE = "k1"
UNFINISHED = [AllocationState.INTENT, AllocationState.PREPARED]


def pods(**containers: Mapping[str, list[str]]) -> Pods:
    """Pods of the namespace "default", by name: container to the IDs it holds."""
    return {
        ("default", name): {container: {GPU: frozenset(ids)} for container, ids in held.items()}
        for name, held in containers.items()
    }


def answer(name: str, uid: str, container: str, *ids: str) -> CheckpointAnswer:
    return CheckpointAnswer(name, uid, container, GPU, ids)


def seen(granted: list[CheckpointAnswer] | None, shown: Pods | None, **fields: Any) -> Evidence:
    """What a kubelet says that has served for long."""
    return replace(Evidence(None if granted is None else tuple(granted), settled=True), pods=shown, **fields)


def changes(
    allocations: list[Allocation],
    granted: list[CheckpointAnswer] | None,
    shown: Pods | None,
    now: float = NOW,
    **fields: Any,
) -> list[Change]:
    return reconcile(allocations, seen(granted, shown, **fields), now, GRACE)


# Owners


def test_a_pod_that_took_the_ids_meanwhile_lends_its_name_to_nobody() -> None:
    """The kubelet's checkpoint, read first, does not know its answer yet; PodResources, read last, does."""
    rejected = allocation("rejected", ["a"], since=NOW)
    web = allocation("web", ["a"], since=NOW, state=AllocationState.PREPARED)

    found = changes(
        [rejected, web], [CheckpointAnswer("rejected", "uid-1", "main")], pods(web={"main": ["a"]})
    )

    assert found == [Confirm("rejected", Owner("uid-1", "main"))]


def test_the_kubelets_checkpoint_proves_pod_and_container() -> None:
    it = allocation("one", ["a"], since=NOW)

    found = changes([it], [CheckpointAnswer("one", "uid-web", "main")], pods())

    assert found == [Confirm("one", Owner("uid-web", "main"))]


def test_pod_resources_adds_the_name() -> None:
    it = allocation("one", ["a", "b"])

    found = changes(
        [it],
        [CheckpointAnswer("one", "uid-web", "main")],
        pods(other={"main": ["c"]}, web={"main": ["b", "a"]}),
    )

    assert found == [Confirm("one", WEB)]


def test_what_is_known_is_not_said_again() -> None:
    it = allocation("one", ["a"], owner=WEB, life=LIFE)

    assert (
        changes([it], [CheckpointAnswer("one", "uid-web", "main")], pods(web={"main": ["a"]}), life=LIFE)
        == []
    )


def test_an_init_container_that_pod_resources_hides_is_named_after_its_sibling() -> None:
    init, app = allocation("init", ["a", "b"]), allocation("app", ["a"])
    granted = [CheckpointAnswer("init", "uid-web", "setup"), CheckpointAnswer("app", "uid-web", "main")]

    found = changes([init, app], granted, pods(web={"main": ["a"]}))

    assert found == [Confirm("init", Owner("uid-web", "setup", "default", "web")), Confirm("app", WEB)]


def test_owners_are_learned_without_pod_resources_too() -> None:
    it = allocation("one", ["a"])

    assert changes([it], [CheckpointAnswer("one", "uid-web", "main")], None) == [
        Confirm("one", Owner("uid-web", "main"))
    ]


def test_of_two_pods_that_show_the_ids_the_one_that_nobody_bears_is_the_owner() -> None:
    """Kubelets up to 1.33 also list pods that have ended."""
    ended = allocation("ended", ["a"], since=1, owner=Owner("uid-1", "main", "default", "ended"))
    web = allocation("web", ["a"], since=2)

    found = changes(
        [ended, web],
        [CheckpointAnswer("web", "uid-web", "main")],
        pods(ended={"main": ["a"]}, web={"main": ["a"]}),
    )

    assert found == [Confirm("web", WEB), Release("ended", "superseded")]


def test_a_wrong_name_is_mended_and_releases_nothing() -> None:
    web = allocation("web", ["a"], owner=Owner("uid-web", "main", "default", "ended"))

    found = changes([web], [CheckpointAnswer("web", "uid-web", "main")], pods(web={"main": ["a"]}))

    assert found == [Confirm("web", WEB)]


# What a crash left half done


@pytest.mark.parametrize("state", UNFINISHED)
def test_what_was_never_answered_is_rolled_back_after_the_grace_whatever_else_can_be_read(
    state: AllocationState,
) -> None:
    it = allocation("one", ["a"], state=state, since=NOW - GRACE)
    over = [Release("one", "never answered")]

    assert changes([it], [], pods()) == over
    assert changes([it], [], None) == over
    assert changes([it], [], pods(), settled=False) == over
    assert changes([it], [], pods(), now=NOW - 1) == []
    assert changes([it], None, pods()) == []


@pytest.mark.parametrize("state", UNFINISHED)
def test_what_the_kubelet_grants_was_answered_whatever_state_a_crash_left(state: AllocationState) -> None:
    it = allocation("one", ["a"], state=state)

    assert changes([it], [CheckpointAnswer("one", "uid-web", "main")], pods(web={"main": ["a"]})) == [
        Confirm("one", WEB)
    ]


def test_an_intent_ends_no_pod_that_has_its_ids() -> None:
    old = allocation("old", ["a"], since=1, owner=WEB)
    intent = allocation("new", ["a"], since=2, state=AllocationState.INTENT)

    found = changes([old, intent], [CheckpointAnswer("old", "uid-web", "main")], pods(web={"main": ["a"]}))

    assert found == [Release("new", "never answered")]


def test_an_intent_whose_ids_went_on_is_rolled_back_and_gets_no_name() -> None:
    intent = allocation("intent", ["a"], since=1, state=AllocationState.INTENT)
    web = allocation("web", ["a"], since=2, owner=WEB)

    found = changes([intent, web], [CheckpointAnswer("web", "uid-web", "main")], pods(web={"main": ["a"]}))

    assert found == [Release("intent", "never answered")]


@pytest.mark.parametrize("state", list(AllocationState)[:3])
def test_what_is_being_answered_now_is_left_alone(state: AllocationState) -> None:
    it = allocation("one", ["a"], state=state)

    assert reconcile([it], seen([], pods()), NOW, GRACE, busy={"one"}) == []


# What is over


def test_without_a_source_nothing_is_released() -> None:
    gone, unused = allocation("gone", ["a"], owner=WEB), allocation("unused", ["b"])

    assert changes([gone, unused], None, pods()) == []
    assert changes([gone, unused], [], None) == []
    assert changes([gone, unused], None, None) == []


def test_within_grace_nothing_is_released() -> None:
    unused = allocation("unused", ["a"], since=NOW - GRACE + 1)

    assert changes([unused], [], pods()) == []
    assert changes([unused], [], pods(), now=NOW + 1) == [Release("unused", "never used")]


def test_what_this_life_of_the_kubelet_has_shown_needs_no_grace_to_appear() -> None:
    gone = replace(allocation("gone", ["a"], since=NOW - 1, owner=WEB), life=LIFE)
    nameless = replace(gone, owner=Owner("uid-web", "main"))
    older = replace(gone, life="k0")

    def found(it: Allocation) -> list[Change]:
        return changes([it], [], pods(), life=LIFE, proven=True, steady=True)

    assert found(gone) == found(nameless) == [Release("gone", "pod gone")]
    assert not any(isinstance(it, Release) for it in found(older))
    assert changes([gone], [], pods(), life=LIFE, proven=True, steady=False) == []


def test_what_an_agent_before_gave_and_the_kubelet_never_took_needs_no_grace_to_appear() -> None:
    """No answer of that agent is under way any more."""
    it = replace(allocation("one", ["a"], since=NOW - 1, source=AllocationSource.CHECKPOINT), life=LIFE)

    def found(it: Allocation, shown: Pods, proven: bool = True) -> list[Change]:
        return changes([it], [], shown, life=LIFE, proven=proven, steady=True)

    assert found(it, pods()) == [Release("one", "never used")]
    assert found(it, pods(web={"main": ["a"]})) == []
    assert found(it, pods(), proven=False) == []
    assert found(replace(it, source=AllocationSource.ALLOCATE), pods()) == []
    assert found(replace(it, life="k0"), pods()) == []


def test_what_was_released_wrongly_says_nothing_of_when_others_were_answered() -> None:
    """The kubelet began with an older file, which has the first answer alone."""
    first = allocation("first", ["a"], since=1, owner=Owner("uid-1", "main", "default", "one"), life="k0")
    second = allocation("second", ["b"], since=2, owner=WEB, life="k0")
    ledger = Ledger([first, second])
    ledger.release("first", "pod gone", 3.0)
    ledger.revive("first")

    found = reconcile(
        ledger.in_use(),
        seen([answer("first", "uid-1", "main", "a")], pods(web={"main": ["b"]}), life=LIFE, proven=True),
        NOW,
        GRACE,
    )

    assert Confirm("second", WEB, LIFE) not in found


def test_what_was_given_to_a_pod_that_has_ended_by_now_needs_a_moment_alone_to_appear() -> None:
    """The kubelet may have taken it and let go of it before anybody saw its owner."""
    it = replace(allocation("one", ["a"], since=NOW - TAKEN_WITHIN), life=LIFE)

    def found(
        it: Allocation, shown: Pods | None = None, abandoned: str = "one", proven: bool = True
    ) -> list[Change]:
        evidence = seen([], shown or {}, life=LIFE, proven=proven, steady=True)
        return reconcile([it], evidence, NOW, GRACE, abandoned={abandoned})

    assert found(it) == [Release("one", "never used")]
    assert found(it, pods(web={"main": ["a"]})) == []
    assert found(it, abandoned="another") == found(it, proven=False) == []
    assert found(replace(it, since=it.since + 0.1)) == found(replace(it, life="k0")) == []


def test_an_answer_that_the_kubelet_has_passed_needs_a_moment_alone_to_appear() -> None:
    """A file with a later answer of the same life was written from a memory that had received this one."""
    one = replace(allocation("one", ["a"], since=NOW - TAKEN_WITHIN), life=LIFE)
    two = allocation("two", ["b"], since=NOW, owner=Owner("uid-2", "main", "default", "two"), life=LIFE)
    beside = pods(two={"main": ["b"]})

    def found(*its: Allocation, shown: Pods = beside, **fields: Any) -> list[Change]:
        evidence = seen([answer("two", "uid-2", "main", "b")], shown, life=LIFE, steady=True)
        return [
            it for it in reconcile([*its], replace(evidence, **fields), NOW, GRACE) if it.allocation == "one"
        ]

    assert found(one, two) == [Release("one", "never used")]
    assert found(two, one) == []
    assert found(replace(one, since=one.since + 0.1), two) == []
    assert found(one, two, proven=False) == found(one, two, steady=False) == []
    assert found(replace(one, life="k0"), two) == found(one, replace(two, life="k0")) == []
    assert found(one, replace(two, owner=None)) == [Release("one", "never used")]
    assert found(one, replace(two, owner=None, life="k0")) == []
    assert found(one, replace(two, source=AllocationSource.KUBELET)) == []
    forgotten = allocation("old", ["c"], owner=Owner("uid-old", "main"), life=LIFE)
    # A kubelet that lost its record asks for several containers at a time.
    assert found(replace(forgotten, forgotten=True), one, two) == []
    assert found(replace(forgotten, life="k0"), one, two) == []
    assert found(one, two, shown=pods(two={"main": ["b"]}, web={"main": ["a"]})) == []


def test_what_the_kubelets_file_alone_shows_is_asked_about_at_once_and_not_released() -> None:
    """Its pod may have ended as soon as it was admitted: then no list ever showed its name."""
    it = allocation("one", ["a"], since=NOW, owner=Owner("uid-web", "main"), life=LIFE)
    later = allocation("two", ["a"], since=NOW, owner=Owner("uid-2", "main"), life=LIFE)
    granted = [answer("one", "uid-web", "main", "a")]

    def found(*its: Allocation, shown: Pods | None = None, **fields: Any) -> list[Change]:
        return changes([it, *its], granted, pods() if shown is None else shown, **{"life": LIFE, **fields})

    assert found() == [AskKubelet("one", GPU, is_young=True)]
    assert found(later)[0] == AskKubelet("one", GPU, is_young=True)
    assert found(running=frozenset({"uid-web"})) == []
    assert found(shown=pods(web={"main": ["a"]})) == [Confirm("one", WEB, LIFE)]
    assert not [it for it in found(life="k2") if not isinstance(it, Confirm)]
    assert reconcile([it], seen(granted, None, life=LIFE), NOW, GRACE) == []
    assert reconcile([it], seen(granted, pods(), life=LIFE), NOW, GRACE, busy={"one"}) == []


@pytest.mark.parametrize("age", [1, GRACE + 1])
def test_a_pod_whose_name_is_not_known_lives_while_a_pod_is_shown_with_its_ids(age: float) -> None:
    """The kubelet may write its checkpoint twice at once, and the older one last."""
    it = allocation("one", ["a", "b"], since=NOW - age, owner=Owner("uid-web", "main"), life=LIFE)

    def found(*ids: str) -> list[Change]:
        return changes([it], [], pods(web={"main": [*ids]}), life=LIFE, steady=True)

    assert found("a", "b", "c") == []
    assert found("a") == [Release("one", "pod gone")]


def test_a_kubelet_that_has_just_begun_ends_nothing_that_was_answered() -> None:
    """It lists static pods only, for as long as it has not heard from the API server."""
    gone = allocation("gone", ["a"], since=1, owner=WEB)
    older = allocation("older", ["b"], since=1, owner=WEB)
    newer = allocation("newer", ["b"], since=2, owner=Owner("uid-2", "main"))
    granted = [CheckpointAnswer("newer", "uid-2", "main")]

    assert changes([gone, older, newer], granted, pods(), settled=False) == []


def just_begun(
    its_life: str, granted: list[CheckpointAnswer], shown: Pods | None = None, **fields: Any
) -> list[Change]:
    """What a kubelet brings about in its first two minutes, of an allocation with this life noted."""
    it = allocation("one", ["a"], owner=WEB, life=its_life)
    fields = {"life": "k2", "settled": False, **fields}
    return changes([it], granted, shown or pods(), **fields)


def test_a_kubelet_that_has_granted_it_in_this_very_life_is_believed_at_once() -> None:
    assert just_begun("k2", []) == [Release("one", "pod gone")]
    assert just_begun("k2", [answer("one", "uid-web", "main", "a")]) == [AskKubelet("one", GPU)]


@pytest.mark.parametrize(
    ("its_life", "fields"),
    [
        ("k1", {}),
        ("", {}),
        ("", {"life": ""}),
        ("k2", {"steady": False}),
        ("k2", {"shown": pods(web={"main": ["a"]})}),
        ("k2", {"running": frozenset({"uid-web"})}),
    ],
    ids=["of-an-earlier-life", "of-no-life", "no-kubelet", "a-new-life-meanwhile", "shown", "runs"],
)
def test_another_is_not(its_life: str, fields: Mapping[str, Any]) -> None:
    assert just_begun(its_life, [], **fields) == []


#: Seconds that a life must have served; more than a run of the young kubelet has.
SETTLE = 100.0


class YoungKubelet:
    """A kubelet that serves for long in its first life at most, with one pod, as an agent meets it.

    The agent notes when it registered, and with which life: it may hear of a new one late.
    """

    def __init__(self, *, settled: bool = False) -> None:
        self.now = 0.0
        #: The life that the agent registered with, and when.
        self.noted = (1, -SETTLE if settled else 0.0)
        self.life, self.knows_pods, self.alive = 1, True, True
        self.grant = answer("one", "uid-web", "main", "a")
        self.books: list[CheckpointAnswer] = [self.grant]
        #: What it wrote of them; None: the file is lost.
        self.disk: list[CheckpointAnswer] | None = [self.grant]
        self.ledger = allocation("one", ["a"], owner=WEB, life="k1")
        self.released = False

    def do(self, step: str) -> None:
        match step:
            case "the pod ends":
                self.alive = False
            case "it begins anew":
                self.life, self.knows_pods, self.books = self.life + 1, False, [*(self.disk or ())]
            case "its file is lost, and it begins anew":
                self.disk = None
                self.do("it begins anew")
            case "it hears of its pods":
                self.knows_pods = True
            case "it has us registered":
                self.noted = (self.life, self.now) if self.noted[0] != self.life else self.noted
            case "it writes":
                self.disk = [*self.books]
            case "it is looked at":
                self.look()
            case "it loses its file and begins anew while it is looked at":
                self.look("its file is lost, and it begins anew", "it writes")

    def look(self, *meanwhile: str) -> None:
        life = self.life
        self.now += 1.0
        for step in meanwhile:
            self.do(step)
        granted = self.disk
        if self.knows_pods and not self.alive:
            self.books = []
        held = [it for one in self.books for it in one.ids]
        shown = pods(web={"main": held}) if self.knows_pods and self.alive else pods()
        steady = life == self.life
        settled = steady and self.noted[0] == life and self.now - self.noted[1] >= SETTLE
        its: dict[str, Any] = {"life": f"k{life}", "settled": settled, "steady": steady}
        for change in changes([self.ledger], granted, shown, **its) if not self.released else ():
            match change:
                case Confirm():
                    self.ledger = replace(self.ledger, owner=change.owner, life=change.life)
                case AskKubelet():
                    self.do("it writes")
                case Release():
                    assert not self.alive, "a pod that lives has lost its devices"
                    self.released = True


@given(
    st.lists(
        st.sampled_from(
            [
                "the pod ends",
                "it begins anew",
                "its file is lost, and it begins anew",
                "it hears of its pods",
                "it has us registered",
                "it writes",
                "it is looked at",
                "it loses its file and begins anew while it is looked at",
            ]
        ),
        max_size=12,
    ),
    st.booleans(),
)
@example(["its file is lost, and it begins anew", "it writes", "it is looked at"], True)
def test_a_young_kubelet_ends_no_pod_that_lives_whatever_happens_to_it(
    steps: list[str], settled: bool
) -> None:
    kubelet = YoungKubelet(settled=settled)
    for step in steps:
        kubelet.do(step)


@given(st.lists(st.sampled_from(["it begins anew", "it is looked at", "it writes"]), max_size=6))
def test_a_young_kubelet_that_kept_its_memory_ends_a_pod_that_ended(steps: list[str]) -> None:
    kubelet = YoungKubelet()
    for step in [*steps, "it is looked at", "the pod ends", "it hears of its pods", *["it is looked at"] * 3]:
        kubelet.do(step)

    assert kubelet.released


def test_a_pod_that_is_shown_lives_whatever_the_checkpoint_says() -> None:
    it = allocation("one", ["a"], owner=WEB)

    assert changes([it], [], pods(web={"main": ["a"]})) == []


def test_a_pod_whose_cgroup_is_there_lives_whatever_the_kubelet_says() -> None:
    it = allocation("one", ["a"], owner=WEB)

    assert changes([it], [], pods(), running=frozenset({"uid-web"})) == []
    assert changes([it], [], pods(), running=frozenset({"uid-2"})) == [Release("one", "pod gone")]


def test_the_kubelets_checkpoint_is_written_late_so_what_nobody_shows_is_doubted() -> None:
    it = allocation("one", ["a"], owner=WEB)

    assert changes([it], [CheckpointAnswer("one", "uid-web", "main")], pods()) == [AskKubelet("one", GPU)]


def test_what_the_kubelet_neither_grants_nor_shows_is_over() -> None:
    assert changes([allocation("one", ["a"], owner=WEB)], [], pods()) == [Release("one", "pod gone")]


def test_the_answer_to_a_rejected_pod_was_never_used() -> None:
    assert changes([allocation("one", ["a"])], [], pods()) == [Release("one", "never used")]


def test_the_answer_to_a_rejected_pod_is_over_also_while_another_pod_holds_its_ids() -> None:
    rejected = allocation("rejected", ["a"], since=1)
    web = allocation("web", ["a"], since=2, owner=WEB)

    found = changes([rejected, web], [CheckpointAnswer("web", "uid-web", "main")], pods(web={"main": ["a"]}))

    assert found == [Release("rejected", "superseded")]


def test_ids_that_went_to_another_pod_end_the_older_allocation() -> None:
    old = allocation("old", ["a", "b"], since=1, owner=Owner("uid-old", "main"))
    new = allocation("new", ["b", "c"], since=2, owner=WEB)
    granted = [CheckpointAnswer("old", "uid-old", "main"), CheckpointAnswer("new", "uid-web", "main")]

    assert changes([old, new], granted, pods(web={"main": ["b", "c"]})) == [Release("old", "superseded")]


def test_a_pod_of_the_same_name_with_the_same_ids_does_not_keep_its_predecessor() -> None:
    """A StatefulSet's pod comes back under its name, and on a node with one card gets the same IDs."""
    old = allocation("old", ["a"], since=1, owner=Owner("uid-old", "main", "default", "web"))
    new = allocation("new", ["a"], since=2)
    granted = [CheckpointAnswer("old", "uid-old", "main"), CheckpointAnswer("new", "uid-web", "main")]

    found = changes([old, new], granted, pods(web={"main": ["a"]}))

    assert found == [Confirm("new", WEB), Release("old", "superseded")]


def test_a_clock_that_stepped_back_ends_no_living_pod() -> None:
    """The newer answer bears the older time; the order of the ledger tells."""
    old = allocation("old", ["a"], since=500, owner=Owner("uid-old", "main", "default", "old"))
    new = allocation("new", ["a"], since=2, owner=WEB)

    found = changes([old, new], [CheckpointAnswer("new", "uid-web", "main")], pods(web={"main": ["a"]}))

    assert found == [Release("old", "superseded")]


@pytest.mark.parametrize("since", [100, 500])
def test_a_clock_that_was_set_back_keeps_no_predecessor_of_the_same_name(since: float) -> None:
    """What an earlier life answered in a time to come is of the moment at which it is loaded."""
    old = allocation(
        "old", ["a"], since=since, source=AllocationSource.CHECKPOINT, owner=replace(WEB, uid="uid-old")
    )
    new = allocation("new", ["a"], since=100, source=AllocationSource.CHECKPOINT, owner=WEB)

    found = changes([old, new], [CheckpointAnswer("new", "uid-web", "main")], pods(web={"main": ["a"]}))

    assert found == [Release("old", "superseded")]


@pytest.mark.parametrize("source", [AllocationSource.KUBELET, AllocationSource.POD_RESOURCES])
def test_allocations_read_back_at_the_same_moment_have_no_order(source: AllocationSource) -> None:
    one = allocation("one", ["a"], since=NOW - GRACE, source=source, owner=Owner("uid-1", "main"))
    other = replace(one, id="other", owner=Owner("uid-2", "main"))
    granted = [CheckpointAnswer("one", "uid-1", "main"), CheckpointAnswer("other", "uid-2", "main")]

    assert changes([one, other], granted, pods(), running=frozenset({"uid-1", "uid-2"})) == []


OLD = allocation("old", ["a", "b"], since=NOW, owner=Owner("uid-old", "main"), life="k1")
NEXT = allocation("next", ["b", "c"], since=NOW, owner=WEB, life="k2")
ELDER = allocation("elder", ["d"], owner=Owner("uid-elder", "main"))
GIVEN = [CheckpointAnswer("next", "uid-web", "main")]


def given_again(
    *before: Allocation, granted: Sequence[CheckpointAnswer] = GIVEN, **fields: Any
) -> list[Change]:
    """What ends of `before` when the kubelet has just begun and an ID is another pod's, a moment ago."""
    fields = {"shown": pods(web={"main": ["b", "c"]}), "life": "k2", "settled": False, **fields}
    found = changes([*before, NEXT], [*granted], **fields)
    return [it for it in found if not isinstance(it, Confirm | AskKubelet)]


def test_an_id_that_the_kubelet_gave_out_again_in_the_same_life_ends_the_older_allocation_at_once() -> None:
    assert given_again(replace(OLD, life="k2")) == [Release("old", "superseded")]
    assert given_again(replace(OLD, life="k2"), steady=False) == []


def test_an_id_that_was_given_out_again_ends_at_once_the_allocation_of_a_pod_without_a_cgroup() -> None:
    assert given_again(OLD, running=frozenset({"uid-web"})) == [Release("old", "superseded")]
    assert given_again(replace(OLD, owner=None), running=frozenset({"uid-web"})) == []


def test_an_id_that_was_given_out_again_ends_what_a_kubelet_with_its_memory_no_longer_grants() -> None:
    """It still grants one that was answered later in the same life: it knew both."""
    later = replace(ELDER, id="later", life="k1")
    granted = [CheckpointAnswer("later", "uid-elder", "main"), *GIVEN]

    assert given_again(replace(OLD, owner=None), later, granted=granted) == [Release("old", "superseded")]
    assert given_again(replace(OLD, owner=None), replace(later, life="k2"), granted=granted) == []


def test_an_id_that_was_given_out_again_ends_nothing_that_an_older_file_of_the_kubelet_can_not_know() -> None:
    """What it still grants was answered earlier: its file may be a backup of the time between."""
    elder = replace(ELDER, life="k1")
    granted = [CheckpointAnswer("elder", "uid-elder", "main"), *GIVEN]

    assert given_again(elder, OLD, granted=granted) == []
    assert given_again(elder, OLD, granted=granted, running=frozenset({"uid-old", "uid-web"})) == []


@pytest.mark.parametrize(
    ("it", "fields"),
    [
        pytest.param(OLD, {}, id="a kubelet may have lost its memory, and no cgroup is seen"),
        pytest.param(OLD, {"running": frozenset({"uid-old"}), "life": ""}, id="its pod runs"),
        pytest.param(replace(OLD, life="k2"), {"shown": None}, id="no PodResources"),
        pytest.param(OLD, {"running": frozenset(), "granted": []}, id="nobody was granted the ID since"),
        pytest.param(
            replace(OLD, life="k2"),
            {"granted": [CheckpointAnswer("old", "uid-old", "main"), *GIVEN]},
            id="granted",
        ),
        pytest.param(
            replace(OLD, source=AllocationSource.KUBELET, life=""),
            {
                "granted": [CheckpointAnswer("elder", "uid-elder", "main"), *GIVEN],
                "elder": AllocationSource.KUBELET,
            },
            id="what was read back has no order",
        ),
    ],
)
def test_an_older_allocation_whose_id_may_not_have_been_freed_waits(
    it: Allocation, fields: dict[str, Any]
) -> None:
    fields = dict(fields)
    elder = replace(ELDER, source=fields.pop("elder", AllocationSource.ALLOCATE))

    assert [one for one in given_again(elder, it, **fields) if isinstance(one, Release)] == []


def test_a_pod_that_a_kubelet_without_memory_forgot_keeps_its_id_though_that_was_given_out_again() -> None:
    forgot = given_again(OLD, running=frozenset({"uid-old"}), settled=True, now=NOW + GRACE)

    assert forgot == [SetForgotten("old", forgotten=True)]


def test_the_same_ids_under_another_resource_end_nothing() -> None:
    one = allocation("one", ["0"], since=1, owner=WEB)
    other = allocation(
        "other", ["0"], since=2, resource="acme.com/x", owner=Owner("uid-2", "main", "default", "b")
    )

    found = changes(
        [one, other], [CheckpointAnswer("other", "uid-2", "main")], pods(web={"main": ["0"]}, b={})
    )

    assert found == [AskKubelet("other", "acme.com/x")]


def test_init_and_app_container_of_one_pod_share_ids() -> None:
    init, app = allocation("init", ["a", "b"], since=1), allocation("app", ["a"], since=2)
    granted = [CheckpointAnswer("init", "uid-web", "setup"), CheckpointAnswer("app", "uid-web", "main")]

    found = changes([init, app], granted, pods(web={"main": ["a"]}))

    assert found == [Confirm("init", Owner("uid-web", "setup", "default", "web")), Confirm("app", WEB)]


def test_an_init_container_lives_as_long_as_a_sibling_is_shown() -> None:
    setup = Owner("uid-web", "setup", "default", "web")
    init = allocation("init", ["a", "b"], since=1, owner=setup)
    app = allocation("app", ["a"], since=2, owner=WEB)

    assert changes([init, app], [], pods(web={"main": ["a"]})) == []
    assert changes([init, app], [], pods(other={})) == [
        Release("init", "pod gone"),
        Release("app", "pod gone"),
    ]


def test_a_container_that_was_answered_anew_has_lost_what_it_had() -> None:
    """A kubelet that lost its checkpoint asks again when a container starts again, for any free IDs."""
    old = allocation("old", ["b"], since=1, owner=WEB)
    new = allocation("new", ["a"], since=2, owner=WEB)
    granted = [answer("new", "uid-web", "main", "a")]

    found = changes([old, new], granted, pods(web={"main": ["a"]}), running=frozenset({"uid-web"}))

    assert found == [Release("old", "given again")]


def test_an_older_snapshot_of_the_kubelet_takes_nothing_from_a_container_that_was_answered_anew() -> None:
    """It writes without order: what it knew before may land last."""
    old = allocation("old", ["b"], since=1, owner=WEB)
    new = allocation("new", ["a"], since=2, owner=WEB)
    granted = [answer("old", "uid-web", "main", "b")]

    assert changes([old, new], granted, pods(web={"main": ["a"]})) == []


# Two lives of the kubelet


def test_the_life_that_still_grants_an_allocation_is_noted() -> None:
    it = allocation("one", ["a"], owner=WEB, life="k1")
    granted, shown = [CheckpointAnswer("one", "uid-web", "main")], pods(web={"main": ["a"]})

    assert changes([it], granted, shown, life="k2") == [Confirm("one", WEB, "k2")]
    assert changes([it], granted, shown, life="k2", settled=False) == [Confirm("one", WEB, "k2")]


def test_a_life_is_not_noted_on_a_file_that_nobody_has_proven() -> None:
    """The kubelet itself starts from nothing where the checksum is wrong."""
    it = allocation("one", ["a"], owner=WEB, life="k1")

    found = changes(
        [it], [CheckpointAnswer("one", "uid-web", "main")], pods(web={"main": ["a"]}), life="k2", proven=False
    )

    assert found == []


FORGOT = allocation("one", ["a"], owner=WEB, life="k1")
BARE = pods(web={"main": []})


def test_a_pod_that_a_kubelet_without_memory_lists_without_devices_keeps_them() -> None:
    assert changes([FORGOT], [], BARE, life="k2") == [SetForgotten("one", forgotten=True)]
    assert changes([replace(FORGOT, forgotten=True)], [], BARE, life="k2") == []


@pytest.mark.parametrize(
    ("it", "fields"),
    [
        pytest.param(FORGOT, {"life": "k1"}, id="same life: kubelets up to 1.33 list ended pods"),
        pytest.param(replace(FORGOT, life=""), {"life": "k2"}, id="no life is known to have had it"),
        pytest.param(FORGOT, {"life": ""}, id="no life is known to have dropped it"),
        pytest.param(FORGOT, {"life": "k2", "running": frozenset({"uid-2"})}, id="its cgroup is gone"),
        pytest.param(
            replace(FORGOT, owner=Owner("uid-web", "main", "default", "gone")),
            {"life": "k2"},
            id="not listed",
        ),
        pytest.param(replace(FORGOT, owner=Owner("uid-web", "main")), {"life": "k2"}, id="nameless"),
    ],
)
def test_a_pod_that_ended_is_not_taken_for_a_forgotten_one(it: Allocation, fields: Mapping[str, Any]) -> None:
    assert changes([it], [], BARE, **fields) == [Release("one", "pod gone")]


def test_a_kubelet_that_still_knows_what_was_answered_later_knows_all_that_is_left_of_before() -> None:
    """The pod ended while the kubelet was away, and kubelets up to 1.33 list it until it is deleted."""
    found = changes(
        [FORGOT, OTHER],
        [CheckpointAnswer("other", "uid-2", "main")],
        pods(web={"main": []}, next={"main": ["b"]}),
        life="k2",
    )

    assert [it for it in found if not isinstance(it, Confirm)] == [Release("one", "pod gone")]


OTHER = allocation("other", ["b"], owner=Owner("uid-2", "main", "default", "next"), life="k1")


@pytest.mark.parametrize("running", [None, frozenset({"uid-web", "uid-2"})], ids=["no cgroups", "cgroups"])
def test_a_pod_that_an_older_file_of_the_kubelet_can_not_know_keeps_its_devices(
    running: frozenset[str] | None,
) -> None:
    """The file of a backup, or what a disk had kept: it knows who was answered before, and nobody since."""
    granted, shown = (
        [CheckpointAnswer("other", "uid-2", "main")],
        pods(web={"main": []}, next={"main": ["b"]}),
    )

    found = changes([OTHER, FORGOT], granted, shown, life="k2", running=running)

    assert found == [Confirm("other", OTHER.owner or WEB, "k2"), SetForgotten("one", forgotten=True)]


def test_what_was_read_back_does_not_say_how_far_the_file_of_the_kubelet_goes() -> None:
    read = replace(OTHER, source=AllocationSource.KUBELET, since=FORGOT.since)
    granted, shown = (
        [CheckpointAnswer("other", "uid-2", "main")],
        pods(web={"main": []}, next={"main": ["b"]}),
    )

    found = changes([FORGOT, read], granted, shown, life="k2")

    assert found == [Confirm("other", read.owner or WEB, "k2"), SetForgotten("one", forgotten=True)]


def test_what_a_life_has_forgotten_the_next_one_does_not_know_either() -> None:
    later = allocation("later", ["b"], owner=Owner("uid-2", "main", "default", "next"), life="k2")

    found = changes(
        [FORGOT, later],
        [CheckpointAnswer("later", "uid-2", "main")],
        pods(web={"main": []}, next={"main": ["b"]}),
        life="k3",
    )

    assert found == [Confirm("later", later.owner or WEB, "k3"), SetForgotten("one", forgotten=True)]


def test_a_pod_that_runs_is_forgotten_also_where_the_kubelet_does_not_list_it_yet() -> None:
    assert changes([FORGOT], [], pods(), life="k2", running=frozenset({"uid-web"})) == [
        SetForgotten("one", forgotten=True)
    ]


def test_a_pod_that_came_back_under_its_name_keeps_nothing_for_its_predecessor() -> None:
    """A StatefulSet's pod, made anew while the kubelet was away."""
    old = replace(FORGOT, owner=Owner("uid-old", "main", "default", "web"), since=1)
    new = allocation("new", ["b"], since=2, owner=WEB, life="k2")

    found = changes(
        [old, new], [CheckpointAnswer("new", "uid-web", "main")], pods(web={"main": ["b"]}), life="k2"
    )

    assert found == [Release("one", "pod gone")]


def test_a_forgotten_pod_is_not_ended_by_another_that_got_its_ids() -> None:
    new = allocation("new", ["a"], since=2, owner=Owner("uid-2", "main", "default", "next"), life="k2")

    found = changes(
        [FORGOT, new],
        [CheckpointAnswer("new", "uid-2", "main")],
        pods(web={"main": []}, next={"main": ["a"]}),
        life="k2",
    )

    assert found == [SetForgotten("one", forgotten=True)]


def test_a_pod_that_the_kubelet_knows_again_is_forgotten_no_more() -> None:
    it = replace(FORGOT, forgotten=True)
    granted = [CheckpointAnswer("one", "uid-web", "main")]

    assert changes([it], granted, pods(web={"main": ["a"]}), life="k3") == [
        Confirm("one", WEB, "k3"),
        SetForgotten("one", forgotten=False),
    ]
    assert changes([it], [], pods(web={"main": ["a"]}), life="k3") == [SetForgotten("one", forgotten=False)]


# Reading back

RULE = ResourceRule(GPU, sharing=Sharing("replicas", 4))
PLAN = plan([Offer("acme", (RULE,))], node(status("a"), status("b", 1)))


def test_what_only_the_kubelet_knows_is_read_back_with_its_owner() -> None:
    (found,) = recover_from_answers([answer("one", "uid-web", "main", "a::1", "b::0")], PLAN, NOW).allocations

    assert found.allocation == allocation(
        "one", ["a::1", "b::0"], since=NOW, owner=Owner("uid-web", "main"), source=AllocationSource.KUBELET
    )


def test_a_share_is_read_back_on_the_cards_that_its_answer_names() -> None:
    granted = replace(answer("one", "uid-web", "main", "a::1"), cards=("b",), share={"core": "30"})

    (found,) = recover_from_answers([granted], PLAN, NOW).allocations

    it = found.allocation
    assert (it.devices, it.diverged, it.cards) == (("a",), ("b",), ("b",))
    assert (it.claim, it.handed) == (None, {"core": "30"})


ABC = (status("a"), status("b", 1), status("c", 2))
ON_ONE = plan([Offer("acme", (replace(RULE, sharing=replace(RULE.sharing, span_cards=False)),))], node(*ABC))


def telling(told: Callable[[ContainerEdits], Sequence[str] | None], *former: str) -> Vendor:
    """A vendor that reads answers so."""
    return Vendor(
        "acme",
        "acme:Backend",
        GPU,
        lambda devices, request: ContainerEdits(),
        replaces=ReplacedPlugins(resources=former, cards_of_answer=lambda answer, devices: told(answer)),
    )


@pytest.mark.parametrize(
    ("told", "planned", "cards", "doubt"),
    [
        (None, ON_ONE, ("a", "b"), ""),
        (("c",), ON_ONE, ("c",), ""),
        (("b", "a"), ON_ONE, ("a", "b"), ""),
        ((), ON_ONE, ("a", "b"), "its answer names no card that is here"),
        (("b", "c"), ON_ONE, ("a", "b"), "its answer names 2 cards, which are too many for its IDs"),
        (("b", "c"), PLAN, ("b", "c"), ""),
        (("c", "b", "a"), PLAN, ("a", "b"), "its answer names 3 cards, which are too many for its IDs"),
    ],
)
def test_another_plugins_pod_is_counted_on_the_cards_that_its_answer_names_as_far_as_that_can_be(
    told: tuple[str, ...] | None, planned: Plan, cards: tuple[str, ...], doubt: str
) -> None:
    said = ContainerEdits(env={"CARDS": "c"})
    granted = replace(answer("kubelet-one", "uid-web", "main", "a-1", "b-0"), unit=None, edits=said)
    ties = AnswerReader(ABC, {"acme": telling(lambda answer: told if answer == said else ())})

    (found,) = recover_from_answers([granted], planned, NOW, ties).allocations

    assert (found.allocation.cards, found.why_cards_ignored) == (cards, doubt)
    assert found.allocation.devices == ("a", "b")


def test_what_we_answered_ourselves_is_asked_of_no_vendor() -> None:
    granted = replace(answer("one", "uid-web", "main", "a::1"), cards=("b",))

    (found,) = recover_from_answers(
        [granted], PLAN, NOW, AnswerReader(ABC, {"acme": telling(lambda answer: ("c",))})
    ).allocations

    assert found.allocation.cards == ("b",)


@pytest.mark.parametrize(("number", "unit"), [(15, "1"), (16, "unknown")])
def test_units_of_another_plugin_over_unequal_cards_are_each_of_its_own(number: int, unit: str) -> None:
    its = [status("a"), status("b", 1)]
    sized = (
        replace(it, device=replace(it.device, memory=gib << 30)) for it, gib in zip(its, (4, 16), strict=True)
    )
    rule = ResourceRule(GPU, sharing=Sharing("memory", unit="1"), ids="short")
    now = plan([Offer("acme", (rule,))], node(*sized))

    (found,) = recover_from_answers(
        [replace(answer("one", "uid-web", "main", "a-3", f"b-{number}"), unit=None)], now, NOW
    ).allocations

    assert found.allocation.unit == unit


def test_what_only_pod_resources_shows_is_read_back_without_a_uid() -> None:
    shown: Pods = {
        ("default", "web"): {"main": {GPU: frozenset({"b::0", "a::1"}), "amd.com/gpu": frozenset()}}
    }

    (found,) = recover_from_pods(shown, PLAN, lambda place: f"<{place}>", NOW)

    assert found.allocation == allocation(
        f"<default/web/main/{GPU}>",
        ["a::1", "b::0"],
        since=NOW,
        owner=Owner("", "main", "default", "web"),
        source=AllocationSource.POD_RESOURCES,
    )


@pytest.mark.parametrize(
    ("said", "unit"), [("0.001", "0.001"), ("", ""), (None, "1")], ids=["ours", "a replica", "another's"]
)
def test_units_are_read_back_in_what_they_counted_then_also_where_the_card_has_fewer_now(
    said: str | None, unit: str
) -> None:
    a = status("a")
    its = node(replace(a, device=replace(a.device, memory=4 << 30)))
    rule = ResourceRule(GPU, sharing=Sharing("memory", unit="1"), ids="short")
    now = plan([Offer("acme", (rule,))], its)
    stem = next(iter(now[GPU].cards[0])).partition("::")[0]
    ids = (f"{stem}::3999", "a::7")
    granted = replace(answer("one", "uid-web", "main", *ids), unit=said)

    (found,) = recover_from_answers([granted], now, NOW).allocations

    assert (found.allocation.unit, set(found.allocation.devices)) == (unit, {"a"})


@pytest.mark.parametrize(
    ("ids", "of", "unit"),
    [
        (("0-3",), 0, "1"),
        (("a-_-3",), 4, "1"),
        (("0-3",), 40, "0.1"),
        (("0-39", "0-7"), 40, "0.1"),
        (("0-4",), 0, "unknown"),
        (("0-3",), 5, "unknown"),
    ],
)
def test_units_of_another_plugin_count_what_its_list_of_the_card_says(
    ids: tuple[str, ...], of: int, unit: str
) -> None:
    a = status("a")
    its = node(replace(a, device=replace(a.device, minor=0, memory=4 << 30)))
    rule = ResourceRule(GPU, sharing=Sharing("memory", unit="1"), ids="short")
    now = plan([Offer("acme", (rule,))], its)

    (found,) = recover_from_answers(
        [replace(answer("one", "uid-web", "main", *ids), unit=None, ids_of_card=of)], now, NOW
    ).allocations

    assert (found.allocation.unit, found.allocation.devices, found.allocation.ids) == (unit, ("a",), ids)


@pytest.mark.parametrize(("of", "unit"), [(4, ""), (0, ""), (6, "unknown")])
def test_replicas_of_another_plugin_are_ours_where_it_made_as_many_of_the_card(of: int, unit: str) -> None:
    (found,) = recover_from_answers(
        [replace(answer("one", "uid-web", "main", "a-3"), unit=None, ids_of_card=of)], PLAN, NOW
    ).allocations

    assert (found.allocation.unit, found.allocation.devices) == (unit, ("a",))


@pytest.mark.parametrize(("device_id", "of"), [("a-1", 3), ("a-0", 0)])
def test_a_share_of_another_plugin_of_a_card_that_is_whole_here_is_none_of_ours_once_it_is_cut(
    device_id: str, of: int
) -> None:
    wholes = plan([Offer("acme", (ResourceRule(GPU),))], node(status("a")))
    granted = replace(answer("one", "uid-web", "main", device_id), unit=None, ids_of_card=of)

    (found,) = recover_from_answers([granted], wholes, NOW).allocations

    assert (found.allocation.unit, found.allocation.devices) == ("unknown", ("a",))


@pytest.mark.parametrize(
    ("resource", "ids"), [("amd.com/gpu", ("a::1",)), (GPU, ()), (GPU, ("c::0",)), (GPU, ("a::1", "c::0"))]
)
def test_what_is_not_known_in_full_is_not_read_back(resource: str, ids: tuple[str, ...]) -> None:
    assert (
        recover_from_answers([CheckpointAnswer("one", "uid", "main", resource, ids)], PLAN, NOW).allocations
        == []
    )
    assert recover_from_pods({("ns", "web"): {"main": {resource: frozenset(ids)}}}, PLAN, str, NOW) == []


#: No text that begins as the uuid of a card: other plugins name cards by their bare uuids.
NO_CARDS = strategies.hostile_texts.filter(lambda it: not it.startswith(("a", "b")))


@given(strategies.hostile_texts, st.lists(NO_CARDS | st.sampled_from(["a::0", "b::1"])))
def test_hostile_names_are_read_back_as_they_are_or_not_at_all(name: str, ids: list[str]) -> None:
    known = {"a::0", "b::1"}

    found = recover_from_answers([CheckpointAnswer(name, name, name, GPU, tuple(ids))], PLAN, NOW).allocations
    shown = recover_from_pods(
        {(name, name): {name: {GPU: frozenset(ids), name: frozenset(ids)}}}, PLAN, str, NOW
    )

    whole = bool(ids) and known.issuperset(ids)
    assert [it.allocation.owner for it in found] == [Owner(name, name)] * whole
    assert [it.allocation.owner for it in shown] == [Owner("", name, name, name)] * whole


def test_what_pod_resources_showed_gives_way_to_what_the_kubelets_checkpoint_knows() -> None:
    bare = Owner("", "main", "default", "web")
    shown = allocation("shown", ["a", "b"], owner=bare, source=AllocationSource.POD_RESOURCES)
    known = allocation("known", ["b", "a"], owner=WEB, source=AllocationSource.KUBELET)

    found = changes(
        [shown, known], [answer("known", "uid-web", "main", "b", "a")], pods(web={"main": ["a", "b"]})
    )

    assert found == [Release("shown", "the kubelet's checkpoint knows it better")]


def test_what_pod_resources_showed_is_kept_while_nothing_else_knows_it() -> None:
    it = allocation(
        "shown", ["a"], owner=Owner("", "main", "default", "web"), source=AllocationSource.POD_RESOURCES
    )

    assert changes([it], None, pods()) == []
    assert changes([it], [], pods(web={"main": ["a"]})) == []
    assert changes([it], [], pods()) == [Release("shown", "pod gone")]


# Slices


def there(*marks: str | None) -> Mapping[str, tuple[Partition, ...]]:
    """One slice for each mark, named after it."""
    return {"acme": tuple(Partition(f"{it}/0", "a", it) for it in marks)}


LOST = "00000000000001ff"
SLICED = allocation("one", ["a"], owner=WEB, partitions=("one/0",))


def test_a_slice_that_is_gone_is_said_once() -> None:
    evidence = Evidence((), partitions=there())
    text = "one/0 is gone from the hardware; made again when the container starts again"

    assert slice_changes([SLICED], evidence) == [Remark("one", text)]
    assert slice_changes([replace(SLICED, reason=text)], evidence) == []


def test_a_slice_that_a_reboot_took_is_said_to_be() -> None:
    assert slice_changes([replace(SLICED, rebooted=True)], Evidence((), partitions=there())) == [
        Remark("one", "the reboot took one/0; made again before the container starts")
    ]


def test_a_slice_that_is_back_takes_the_remark_back() -> None:
    lost = replace(SLICED, reason="one/0 is gone")

    assert slice_changes([lost], Evidence((), partitions=there("one"))) == [Remark("one", "")]


def test_nothing_is_said_of_the_slices_of_who_is_forgotten_or_busy() -> None:
    evidence = Evidence((), partitions=there())

    assert slice_changes([replace(SLICED, forgotten=True)], evidence) == []
    assert slice_changes([SLICED], evidence, busy={"one"}) == []


def test_a_vendor_that_could_not_be_asked_has_lost_no_slice() -> None:
    assert slice_changes([SLICED], Evidence((), partitions={"other": ()})) == []
    assert slice_changes([SLICED], Evidence((), partitions=None)) == []


def test_slices_of_ours_that_nobody_owns_are_removed_and_foreign_ones_never() -> None:
    found = slice_changes([SLICED], Evidence((), partitions=there("one", LOST, LOST, None)))

    assert found == [Remove("acme", LOST)]


@pytest.mark.parametrize("mark", ["test", "", "00000000000001f", "00000000000001FF", f"{LOST}0"])
def test_a_slice_that_bears_no_id_of_an_allocation_is_foreign_and_never_removed(mark: str) -> None:
    found = there(mark, LOST, None)

    assert slice_changes([], Evidence((), partitions=found)) == [Remove("acme", LOST)]
    assert foreign_slices(found) == {("acme", "a"): 2}


def test_a_slice_of_an_allocation_that_only_the_kubelet_knows_is_kept() -> None:
    assert slice_changes([], Evidence((CheckpointAnswer(LOST, "uid", "main"),), partitions=there(LOST))) == []


def test_without_the_kubelets_checkpoint_no_slice_is_removed() -> None:
    assert slice_changes([], Evidence(None, partitions=there(LOST))) == []


def test_the_slice_of_an_answer_that_is_being_made_is_kept() -> None:
    assert slice_changes([], Evidence((), partitions=there(LOST)), busy={LOST}) == []


@pytest.mark.parametrize("state", UNFINISHED)
def test_the_slice_of_what_a_crash_left_half_done_goes_with_its_allocation(state: AllocationState) -> None:
    """Reconcile rolls that back; until then its slice is owned, and nobody says that one is missing."""
    it = replace(SLICED, state=state)

    assert slice_changes([it], Evidence((), partitions=there("one"))) == []
    assert slice_changes([it], Evidence((), partitions=there())) == []

"""Whose request it is, as far as pods and schedulers tell, and what the kubelet makes of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support import strategies

from agent.core.allocation.container_allocations import containers_with_allocation, starting_allocations
from agent.core.allocation.known_pods import KnownPods
from agent.core.attribution.claim_reading import promised_claim
from agent.core.attribution.claim_swap_rules import swap_claims
from agent.core.attribution.next_request import next_request
from agent.core.attribution.pod_attribution import Attribution, attribute, most_likely_pod
from agent.core.attribution.waiting_pods import WaitingPods
from agent.core.model import Allocation, Owner
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.scheduler_api import Candidate, Cards, Claim, Dialect, PodContainer
from core.values import GPU, allocation, grouped

#: The cards of the node, by minor.
CARDS = {"c0": 0, "c1": 1, "c2": 2}


def pod(
    name: str,
    *containers: tuple[str, int],
    says: str | None = "",
    created: float = 0.0,
    over: bool = False,
) -> Candidate:
    """A pod whose scheduler says on which cards it is to be: "c0,c1", anywhere, or (None) nothing."""
    its = tuple(PodContainer(one, {GPU: count}) for one, count in containers or (("main", 1),))
    annotations = {} if says is None else {"cards": says}
    return Candidate(f"uid-{name}", "default", name, its, annotations, created, over)


def claim(name: str, *devices: str, container: str = "main", **parameters: str) -> Claim:
    return Claim(f"uid-{name}", "default", name, container, devices, parameters)


def spoken(it: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    """One claim for each container, on the cards of the annotation."""
    said = it.annotations.get("cards")
    if said is None:
        return ()
    cards = tuple(said.split(",")) if said else ()
    if not set(cards) <= set(devices):
        raise ValueError(f"no card is called {said}")
    return [Claim(it.uid, it.namespace, it.name, one.name, cards) for one in it.containers]


DIALECT = Dialect("plain", spoken)


def asked(
    *candidates: Candidate,
    count: int = 1,
    cards: Iterable[str] = ("c0",),
    dialects: Sequence[Dialect] = (DIALECT,),
    taken: Iterable[tuple[str, str]] = (),
) -> Attribution:
    return attribute(
        GPU, count, set(cards), WaitingPods(KnownPods.of(candidates), dialects, CARDS, set(taken))
    )


WEB, JOB = pod("web", created=1), pod("job", created=2)
BOTH = pod("both", ("setup", 2), ("main", 1))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(asked(), Attribution(None, "no pod that waits has a claim"), id="nobody waits"),
        pytest.param(asked(WEB), Attribution(claim("web")), id="one pod"),
        pytest.param(
            asked(JOB, WEB),
            Attribution(claim("web"), "one of 2 claims that fit"),
            id="equal pods: the oldest",
        ),
        pytest.param(
            asked(replace(JOB, created=1), WEB),
            Attribution(claim("job"), "one of 2 claims that fit"),
            id="equal pods of one moment: always the same",
        ),
        pytest.param(
            asked(WEB, pod("stranger", says=None)),
            Attribution(claim("web"), "default/stranger asks for as much and has no claim"),
            id="another scheduler's pod",
        ),
        pytest.param(
            asked(pod("stranger", says=None)),
            Attribution(None, "default/stranger asks for as much and has no claim"),
            id="another scheduler's pod alone",
        ),
        pytest.param(
            asked(replace(WEB, over=True), JOB), Attribution(claim("job")), id="a pod that is over or deleted"
        ),
        pytest.param(
            asked(WEB, count=2), Attribution(None, "no pod that waits has a claim"), id="another count"
        ),
        pytest.param(
            asked(pod("web", says="c1"), pod("job", says="c0", created=9)),
            Attribution(claim("job", "c0")),
            id="the claim on this card",
        ),
        pytest.param(
            asked(pod("web", says="c1"), pod("job", says="c0,c1")),
            Attribution(None, "claims are on other cards: default/job on c0, c1, default/web on c1"),
            id="claims on other cards",
        ),
        pytest.param(
            asked(pod("web", ("main", 2), says="c1,c0"), count=2, cards=("c0", "c1")),
            Attribution(claim("web", "c1", "c0")),
            id="cards in any order",
        ),
        pytest.param(
            asked(pod("web", says="c7")),
            Attribution(None, "default/web: plain: no card is called c7"),
            id="a malformed annotation",
        ),
        pytest.param(
            asked(pod("web", says="c7"), JOB),
            Attribution(claim("job"), "default/web asks for as much and has no claim"),
            id="a malformed annotation beside a good one",
        ),
        pytest.param(
            asked(WEB, JOB, taken=[("uid-web", "main")]),
            Attribution(claim("job")),
            id="a container that has its allocation",
        ),
        pytest.param(
            asked(BOTH, count=2),
            Attribution(claim("both", container="setup")),
            id="the init container, by its count",
        ),
        pytest.param(asked(BOTH), Attribution(claim("both")), id="the app container, by its count"),
        pytest.param(
            asked(pod("both", ("setup", 1), ("main", 1)), taken=[("uid-both", "setup")]),
            Attribution(claim("both")),
            id="the app container, after the init container",
        ),
    ],
)
def test_a_request_is_that_of_the_pod_that_asks_for_just_this(
    found: Attribution, expected: Attribution
) -> None:
    assert (found.claim, found.why_uncertain) == (expected.claim, expected.why_uncertain)


def test_who_the_kubelet_heard_of_first_asks_first_and_else_the_oldest() -> None:
    """koord-scheduler binds several at once: 98 of 288 pods of its bursts came in another order."""
    web, job = replace(WEB, appeared=12), replace(JOB, appeared=9)

    assert asked(web, job).claim == claim("job")
    assert asked(replace(web, appeared=9), job).claim == claim("web")


def swapped(
    asks: Candidate, *others: Candidate, cards: Iterable[str], has: Mapping[str, str]
) -> Claim | None:
    """The claim behind a request for these cards of a pod; the others have theirs, `has`: card to whose."""
    holders = {card: f"uid-{name}" for card, name in has.items()}
    taken = {(it.uid, it.containers[0].name) for it in others}
    waiting = WaitingPods(
        KnownPods.of((asks, *others)), (DIALECT,), dict.fromkeys(("c0", "c1", "c2", "c3")), taken, holders
    )
    wanted = set(cards)
    return attribute(GPU, len(wanted), wanted, waiting).claim


def test_who_comes_late_gets_what_is_left_of_as_many_cards_as_it_was_promised() -> None:
    web, job = pod("web", ("main", 2), says="c0,c1"), pod("job", ("main", 2), says="c2,c3")
    one, other = pod("one", says="c0"), pod("other", says="c1")

    assert swapped(one, other, cards=["c1"], has={"c0": "other"}) == claim("one", "c1")
    its = {"c0": "job", "c1": "job"}
    assert swapped(web, job, cards=["c2", "c3"], has=its) == claim("web", "c2", "c3")
    assert swapped(web, job, cards=["c0", "c2"], has=its) is None


def test_who_comes_late_gets_what_is_left_though_three_have_each_others() -> None:
    late, both = pod("late", ("main", 2), says="c0,c1"), pod("both", ("main", 2), says="c2,c3")
    third = pod("third", says="c4")
    holders = {"c0": "uid-both", "c1": "uid-both", "c2": "uid-third"}
    taken = {("uid-both", "main"), ("uid-third", "main")}
    cards = dict.fromkeys(("c0", "c1", "c2", "c3", "c4"))
    waiting = WaitingPods(KnownPods.of((late, both, third)), (DIALECT,), cards, taken, holders)

    assert attribute(GPU, 2, {"c3", "c4"}, waiting).claim == claim("late", "c4", "c3")


def pair_of_containers(*first: str, failed: str = "") -> WaitingPods:
    """A pod with containers one and two, which were promised c0 and c1; `first`: the cards that one has."""

    def each(it: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
        return [claim("pair", f"c{n}", container=c.name) for n, c in enumerate(it.containers)]

    key = ("uid-pair", "one")
    return WaitingPods(
        KnownPods.of((pod("pair", ("one", 1), ("two", 1)),)),
        (Dialect("each", each),),
        CARDS,
        {key} if first else (),
        failed={failed},
        cards_of_container=lambda it: frozenset(first) if it == key else frozenset(),
    )


def test_a_container_that_got_the_card_of_an_equal_one_of_its_pod_left_its_own_to_it() -> None:
    waiting = pair_of_containers("c1")

    assert attribute(GPU, 1, {"c0"}, waiting).claim == claim("pair", "c0", container="two")
    assert next_request(GPU, 1, (), CARDS, waiting).cards == ("c0",)


def test_no_container_takes_a_second_share_of_a_card_because_its_own_card_has_failed() -> None:
    """The scheduler counted one share there. The pod is refused, as its card is gone."""
    waiting = pair_of_containers("c1", failed="c0")

    assert attribute(GPU, 1, {"c1"}, waiting).claim is None
    assert next_request(GPU, 1, (), ("c1", "c2"), waiting).cards == ()


def test_a_container_that_comes_late_gets_none_that_another_of_its_pod_has() -> None:
    pair = pod("pair", ("one", 1), ("two", 1), says="c0,c1"), pod("job", ("main", 2), says="c2,c3")

    def each(it: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
        (one, *_) = spoken(it, resource, devices)
        its = zip(it.containers, it.annotations["cards"].split(","), strict=False)
        return (
            [one]
            if it.name == "job"
            else [replace(one, container=c.name, devices=(card,)) for c, card in its]
        )

    waiting = WaitingPods(
        KnownPods.of(pair),
        (Dialect("each", each),),
        dict.fromkeys(("c0", "c1", "c2", "c3")),
        {("uid-pair", "one"), ("uid-job", "main")},
        {"c0": "uid-job", "c1": "uid-job", "c2": "uid-pair"},
    )
    assert attribute(GPU, 1, {"c3"}, waiting).claim == claim("pair", "c3", container="two")
    assert attribute(GPU, 1, {"c2"}, waiting).claim is None


def silent(it: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    return ()


def urgent(it: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    return [Claim(it.uid, it.namespace, it.name, "main", (), {"priority": "high"})]


def test_the_first_dialect_that_claims_counts() -> None:
    silence, urgency = Dialect("silent", silent), Dialect("urgent", urgent)

    assert asked(WEB, dialects=[silence, urgency, DIALECT]).claim == claim("web", priority="high")
    assert asked(WEB, dialects=[silence]).claim is None


def test_a_dialect_claims_for_the_pod_that_it_is_asked_of_alone() -> None:
    thief = Dialect("thief", lambda it, resource, devices: [claim("job")])

    assert asked(WEB, dialects=[thief]).claim is None


def late(it: Candidate, resource: str, devices: Cards) -> Iterator[Claim]:
    yield claim("web")
    raise OSError("after the first")


def unwritable(it: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    """Half a character, as JSON may escape it: the checkpoint cannot hold it."""
    return [claim("web", memory="\udc80")]


def shapeless(it: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    return [Claim("uid-web", "default", "web", cast("str", None))]


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        (lambda *_: 1 / 0, "division by zero"),
        (lambda *_: [].pop(), "pop from empty list"),
        (lambda *_: exec("raise KeyError"), "KeyError()"),
        (lambda *_: ["no claim"], "'str' object has no attribute 'uid'"),
        (shapeless, "'NoneType' object has no attribute 'encode'"),
        (late, "after the first"),
        (unwritable, "'utf-8' codec can't encode character"),
    ],
)
def test_a_dialect_that_fails_in_any_way_fails_no_allocate(
    claims: Callable[..., Sequence[Claim]], told: str
) -> None:
    found = asked(WEB, dialects=[Dialect("broken", claims)])

    assert found.claim is None
    assert found.why_uncertain.startswith(f"default/web: broken: {told}")


def test_a_claim_of_a_dialect_stands_for_the_one_before_it_that_broke() -> None:
    broken = Dialect("broken", lambda *_: 1 / 0)  # type: ignore[arg-type]

    assert asked(WEB, dialects=[broken, DIALECT]).claim == claim("web")


containers = st.sampled_from(["setup", "main", "side"])
candidates = st.builds(
    pod,
    st.sampled_from(["a", "b", "c", "d"]),
    st.tuples(containers, st.integers(1, 2)),
    says=st.sampled_from(["", "c0", "c1", "c0,c1", None, "c7"]),
    created=st.integers(0, 2),
    over=st.booleans(),
)


@given(
    st.lists(candidates, max_size=5, unique_by=lambda it: it.uid),
    st.integers(1, 2),
    st.sets(st.sampled_from([*CARDS]), min_size=1, max_size=2),
    st.sets(st.tuples(st.sampled_from(["uid-a", "uid-b"]), containers)),
)
def test_what_is_attributed_is_a_waiting_candidates_own_claim_if_there_is_one(
    pods: list[Candidate], count: int, cards: set[str], taken: set[tuple[str, str]]
) -> None:
    found = asked(*pods, count=count, cards=cards, taken=taken).claim

    fitting = [
        it
        for one in pods
        if not one.over and one.annotations.get("cards") != "c7" and one.containers[0].limits[GPU] == count
        for it in spoken(one, GPU, CARDS)
        if set(it.devices) in (set(), cards) and (it.uid, it.container) not in taken
    ]
    assert found in fitting or (found is None and not fitting)


@given(strategies.hostile_texts, strategies.hostile_texts)
def test_hostile_words_are_told_bounded_and_printable(name: str, says: str) -> None:
    def quoting(it: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
        raise ValueError(it.annotations["cards"])

    found = asked(pod("web", says=says), dialects=[Dialect("quoting", quoting)])

    assert found.claim is None
    assert found.why_uncertain.isprintable()
    assert len(found.why_uncertain) < 250


# What the kubelet did


def held(name: str, of: Claim | None, resource: str = GPU) -> Allocation:
    return allocation(name, [name], claim=of, resource=resource)


def given_to(name: str, owner: str, container: str = "main") -> CheckpointAnswer:
    return CheckpointAnswer(name, f"uid-{owner}", container)


def unpromised(it: Allocation, grant: CheckpointAnswer) -> None:
    """No pod says anything."""


A, B, C = claim("a"), claim("b"), claim("c")


@pytest.mark.parametrize(
    ("bore", "granted", "expected"),
    [
        pytest.param({"1": A, "2": B}, {"1": "a", "2": "b"}, {}, id="as it was thought"),
        pytest.param({"1": A, "2": B}, {"1": "b", "2": "a"}, {"1": B, "2": A}, id="a pair"),
        pytest.param({"1": A, "2": B}, {"1": "b"}, {"1": B, "2": A}, id="a pair of which one is in flight"),
        pytest.param(
            {"1": A, "2": B, "3": C},
            {"1": "b", "2": "c", "3": "a"},
            {"1": B, "2": C, "3": A},
            id="a chain of three",
        ),
        pytest.param(
            {"1": A, "2": B, "3": C},
            {"1": "b", "2": "c"},
            {"1": B, "2": C, "3": A},
            id="a chain whose end is in flight",
        ),
        pytest.param(
            {"1": A}, {"1": "stranger"}, {"1": None}, id="a container that nobody promised anything"
        ),
        pytest.param(
            {"1": A, "2": B},
            {"1": "stranger", "2": "a"},
            {"1": None, "2": A},
            id="a stranger's claim goes to its container",
        ),
        pytest.param(
            {"1": A, "2": None}, {"1": "b", "2": "a"}, {"1": None, "2": A}, id="one that was not attributed"
        ),
        pytest.param({"1": None, "2": A}, {"1": "a"}, {"1": A, "2": None}, id="nothing to give in return"),
        pytest.param({"1": A}, {"other": "b"}, {}, id="an allocation that we do not know"),
        pytest.param({"1": A, "2": B}, {}, {}, id="nothing is granted yet"),
    ],
)
def test_claims_follow_what_the_kubelet_did_in_whatever_order_it_tells(
    bore: Mapping[str, Claim | None], granted: Mapping[str, str], expected: Mapping[str, Claim | None]
) -> None:
    its = [held(name, of) for name, of in bore.items()]
    grants = [given_to(name, owner) for name, owner in granted.items()]

    assert swap_claims(grouped(its), grants, unpromised) == expected
    assert swap_claims(grouped(its), grants[::-1], unpromised) == expected


def test_claims_stay_with_their_resource() -> None:
    its = [held("1", A), held("2", B, "acme.com/other")]

    assert swap_claims(grouped(its), [given_to("1", "b")], unpromised) == {"1": None}


def test_two_that_bear_one_claim_end_nothing() -> None:
    its = [held("1", A), held("2", A), held("3", B)]

    assert swap_claims(grouped(its), [given_to("1", "a"), given_to("3", "a")], unpromised)["3"] == A


def test_a_claim_that_nobody_bears_is_asked_of_the_pod() -> None:
    def promise(it: Allocation, grant: CheckpointAnswer) -> Claim:
        return claim(grant.uid.removeprefix("uid-"), on=it.id)

    its = [held("1", A), held("2", None), held("3", C)]
    found = swap_claims(grouped(its), [given_to("1", "b"), given_to("2", "d"), given_to("3", "c")], promise)

    assert found == {"1": claim("b", on="1"), "2": claim("d", on="2")}


def test_what_a_pod_says_of_its_container_is_promised_unless_it_is_over() -> None:
    def promise(it: Candidate, container: str) -> Claim | None:
        return promised_claim(GPU, it, container, [DIALECT], CARDS)

    assert promise(BOTH, "setup") == claim("both", container="setup")
    assert promise(BOTH, "none") is None
    assert promise(replace(BOTH, over=True), "setup") is None
    assert promise(pod("web", says="c7"), "main") is None
    assert promise(pod("web", says=None), "main") is None


names = st.integers(0, 5)


@given(
    st.dictionaries(names, st.none() | names, max_size=6).filter(
        lambda it: len(claimed := [one for one in it.values() if one is not None]) == len(set(claimed))
    ),
    st.dictionaries(names, names, max_size=6).filter(lambda it: len(set(it.values())) == len(it)),
)
def test_a_swap_gives_everybody_its_own_loses_nothing_that_fits_and_is_over_at_once(
    bore: Mapping[int, int | None], granted: Mapping[int, int]
) -> None:
    its = [held(str(it), None if of is None else claim(str(of))) for it, of in bore.items()]
    grants = [given_to(str(it), str(owner)) for it, owner in granted.items()]

    change = swap_claims(grouped(its), grants, unpromised)

    after = [replace(it, claim=change.get(it.id, it.claim)) for it in its]
    assert swap_claims(grouped(after), grants, unpromised) == {}
    borne = {of for of in bore.values() if of is not None}
    for it in after:
        if int(it.id) in granted:
            owner = granted[int(it.id)]
            assert it.claim == (claim(str(owner)) if owner in borne else None)
    left = sorted(it.claim.pod for it in after if it.claim is not None)
    assert len(set(left)) == len(left)
    assert set(left) <= {str(it) for it in borne}
    if set(granted) == set(bore) and set(granted.values()) == borne == set(granted):
        assert left == sorted(map(str, borne))


def test_containers_are_known_by_their_owner_or_else_by_their_claim() -> None:
    its = [
        allocation("1", ["1"], owner=Owner("uid-a", "main"), claim=B),
        allocation("2", ["2"], claim=C),
        allocation("3", ["3"]),
        allocation("4", ["4"], resource="acme.com/other", claim=claim("d")),
    ]

    found = containers_with_allocation(grouped(its), GPU, KnownPods())
    places = [(f"uid-{name}", "main") for name in "abcd"]
    assert [it for it in places if it in found] == [("uid-a", "main"), ("uid-c", "main")]


@pytest.mark.parametrize(
    ("waits", "taken"),
    [
        (pod("web", created=1.0), {("uid-web", "main")}),
        (pod("web", created=9.0), set()),
        (replace(pod("web", created=1.0), namespace="other"), set()),
        (pod("job", created=1.0), set()),
    ],
    ids=["it", "a newer one of its name", "one of another namespace", "another"],
)
def test_whom_pod_resources_alone_shows_is_the_pod_of_its_name(
    waits: Candidate, taken: set[tuple[str, str]]
) -> None:
    its = [allocation("1", ["1"], since=5.0, owner=Owner("", "main", "default", "web"))]

    found = containers_with_allocation(grouped(its), GPU, KnownPods.of([waits]))
    assert {it for it in [(waits.uid, "main"), (waits.uid, "other")] if it in found} == taken


@pytest.mark.parametrize(
    ("pods", "cards", "expected"),
    [
        ((), ["c0"], ""),
        ((pod("web", says="c0", created=1), pod("job", says="c1", created=2)), ["c2"], "uid-web"),
        ((pod("web", says="c0", created=1), pod("job", says="c1", created=2)), ["c1"], "uid-job"),
        ((pod("mute", says=None, created=1), pod("job", says="c1", created=2)), ["c2"], "uid-mute"),
        ((pod("web", says="c0", created=1), pod("mute", says=None, created=2)), ["c2"], "uid-web"),
        ((pod("over", says="c2", created=1, over=True), pod("job", says="c1", created=2)), ["c2"], "uid-job"),
        ((replace(pod("runs", says="c2", created=1), pending=False), pod("job", created=2)), [], "uid-job"),
        ((pod("two", ("main", 2), says="c2"), pod("job", says="c1", created=2)), ["c2"], "uid-job"),
    ],
    ids=[
        "nobody",
        "who was bound first",
        "whose cards they are",
        "one without a promise that is older",
        "one with a promise that is older",
        "not one that is over",
        "not one that runs",
        "not one that asks for more",
    ],
)
def test_who_is_refused_is_who_most_likely_asked(
    pods: Sequence[Candidate], cards: Sequence[str], expected: str
) -> None:
    waiting = WaitingPods(KnownPods.of(pods), (DIALECT,), CARDS)

    assert most_likely_pod(attribute(GPU, 1, cards, waiting), GPU, 1, waiting) == expected


def test_who_is_refused_is_who_has_a_lock_of_the_node() -> None:
    web, job = pod("web", says="c0", created=1), pod("job", says="c1", created=2)
    waiting = WaitingPods(KnownPods.of((web, job)), (DIALECT,), CARDS, locked={("default", "job")})

    assert most_likely_pod(attribute(GPU, 1, ["c2"], waiting), GPU, 1, waiting) == job.uid


@pytest.mark.parametrize(
    ("web", "job", "first"),
    [(7, 8, "web"), (8, 7, "job"), (0, 8, "job"), (7, 0, "job")],
    ids=["bound before", "bound after", "found there", "who has the lock was found there"],
)
def test_of_two_pods_that_were_bound_at_once_who_came_first_asks_first_whom_the_lock_names_or_not(
    web: int, job: int, first: str
) -> None:
    """koord-scheduler binds two at once, and its lock names the last one."""
    pods = (
        replace(pod("web", says="c0", created=1), appeared=web),
        replace(pod("job", says="c1", created=2), appeared=job),
    )
    waiting = WaitingPods(KnownPods.of(pods), (DIALECT,), CARDS, locked={("default", "job")})

    assert next_request(GPU, 1, set(), {"c0", "c1"}, waiting).claim == claim(
        first, {"web": "c0", "job": "c1"}[first]
    )


@pytest.mark.parametrize("locked", [(), ("web",), ("job",), ("late",)], ids=str)
def test_who_waited_as_the_kubelet_began_asks_by_age_and_before_all_others(locked: tuple[str, ...]) -> None:
    """Whichever was bound first, and whichever of them a scheduler's lock names."""
    pods = (
        replace(pod("web", says="c0", created=1), appeared=8),
        replace(pod("job", says="c1", created=2), appeared=7),
        replace(pod("late", says="c2", created=0), appeared=9),
    )
    names = {("default", name) for name in locked}
    waiting = WaitingPods(
        KnownPods.of(pods), (DIALECT,), CARDS, locked=names, pods_at_kubelet_start={pods[0].uid, pods[1].uid}
    )
    order: list[str] = []
    for _ in pods:
        asks = next_request(GPU, 1, set(), {"c0", "c1", "c2"}, waiting).claim
        assert asks is not None
        order.append(asks.pod)
        waiting = structs.replace(waiting, taken={(f"uid-{name}", asks.container) for name in order})

    assert order == ["web", "job", "late"]


def test_who_was_refused_most_likely_comes_last() -> None:
    web, job = pod("web", says="c0", created=1), pod("job", says="c0", created=2)
    waiting = WaitingPods(KnownPods.of((web, job)), (DIALECT,), CARDS, refused={web.uid})

    assert attribute(GPU, 1, {"c0"}, waiting).claim == claim("job", "c0")
    assert attribute(GPU, 1, {"c0"}, structs.replace(waiting, candidates=KnownPods.of([web]))).claim == claim(
        "web", "c0"
    )


def test_who_was_refused_most_likely_is_no_pod_of_which_no_scheduler_spoke() -> None:
    mute, job = pod("mute", says=None, created=1), pod("job", says="c1", created=2)
    waiting = WaitingPods(KnownPods.of((mute, job)), (DIALECT,), CARDS)

    assert attribute(GPU, 1, {"c0"}, waiting).unclaimed
    assert not attribute(GPU, 1, {"c0"}, structs.replace(waiting, refused={mute.uid})).unclaimed


# Who starts


INIT, APP, OTHER = allocation("init", ["x", "y"]), allocation("app", ["y", "x"]), allocation("other", ["x"])


@pytest.mark.parametrize(
    ("granted", "expected"),
    [
        pytest.param(
            [CheckpointAnswer("init", "u", "i"), CheckpointAnswer("app", "u", "a")],
            ["init", "app"],
            id="init and app",
        ),
        pytest.param(
            [CheckpointAnswer("init", "u", "i", GPU, ("x", "y"))], ["init"], id="one of them is over"
        ),
        pytest.param(None, ["app"], id="the kubelet's checkpoint cannot be read: the newest"),
        pytest.param([], ["app"], id="it is an older one, that says nothing of these IDs: the newest"),
        pytest.param(
            [CheckpointAnswer("u", "u", "a", GPU, ("x",))], ["app"], id="it says something of other IDs only"
        ),
        pytest.param(
            [CheckpointAnswer("u", "u", "a", GPU, ("y", "x"))], [], id="these IDs are granted to one unknown"
        ),
        pytest.param(
            [CheckpointAnswer("u", "u", "a", "acme.com/x", ("y", "x"))], ["app"], id="of another resource"
        ),
    ],
)
def test_a_container_starts_with_the_allocations_of_just_its_ids(
    granted: Sequence[CheckpointAnswer] | None, expected: Sequence[str]
) -> None:
    its = [OTHER, INIT, APP, replace(APP, id="far", resource="acme.com/other")]

    assert [it.id for it in starting_allocations(its, granted, GPU, ["x", "y"])] == expected
    assert starting_allocations(its, granted, GPU, ["z"]) == []

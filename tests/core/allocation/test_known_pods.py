"""Each index of the known pods is what a look at all pods finds, whatever happened before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.known_pods import KnownPods
from agent.scheduler_api import Candidate

UIDS = [f"uid-{n}" for n in range(4)]
NAMES = ["web", "job"]

PODS = st.builds(
    Candidate,
    uid=st.sampled_from(UIDS),
    namespace=st.sampled_from(["default", "other"]),
    name=st.sampled_from(NAMES),
    created=st.sampled_from([1.0, 2.0]),
    over=st.booleans(),
    message=st.sampled_from(["", "refused"]),
    ended=st.booleans(),
    pending=st.booleans(),
)
CHANGES = st.lists(st.tuples(st.sets(st.sampled_from(UIDS)), st.lists(PODS, max_size=3)), max_size=8)


def assert_as_a_look_finds(known: KnownPods, pods: Sequence[Candidate]) -> None:
    """Each index has what a look at all pods finds, oldest first."""
    assert [*known] == [*pods]
    assert len(known) == len(pods)
    assert known.by_uid == {pod.uid: pod for pod in pods}
    assert known.alive == {pod.uid for pod in pods if not pod.ended}
    assert [*known.waiting] == [pod for pod in pods if pod.waits]
    assert [*known.with_message] == [pod for pod in pods if pod.message]
    places = {(pod.namespace, pod.name) for pod in pods}
    assert {place: [*found] for place, found in known.by_name.items()} == {
        place: [pod for pod in pods if (pod.namespace, pod.name) == place] for place in places
    }
    assert known.uids_with(("ended",), None, lambda pod: pod.ended) == {pod.uid for pod in pods if pod.ended}


@given(changes=CHANGES)
def test_each_index_is_what_a_look_at_all_pods_finds(
    changes: Sequence[tuple[Collection[str], Sequence[Candidate]]],
) -> None:
    known, pods = KnownPods(), dict[str, Candidate]()
    for gone, come in changes:
        before, was = known, sorted(pods.values(), key=lambda it: (it.created, it.uid))
        pods = {uid: pod for uid, pod in pods.items() if uid not in gone}
        pods |= {pod.uid: pod for pod in come}
        oldest_first = sorted(pods.values(), key=lambda it: (it.created, it.uid))

        known = known.after(gone, come)

        assert_as_a_look_finds(known, oldest_first)
        assert_as_a_look_finds(before, was)
        assert_as_a_look_finds(KnownPods.of(oldest_first), oldest_first)
        assert_as_a_look_finds(before.updated(oldest_first), oldest_first)


def test_each_pod_is_tested_once_until_it_changes() -> None:
    web, job, new = (Candidate(f"uid-{name}", "default", name) for name in ("web", "job", "new"))
    tested: list[str] = []

    def test_with(known: KnownPods, depends_on: str) -> tuple[Collection[str], Collection[str]]:
        """The pods with a message of the kubelet, and the pods that were tested for it now."""
        tested.clear()

        def has_message(pod: Candidate) -> bool:
            tested.append(pod.uid)
            return bool(pod.message)

        return known.uids_with(("message",), depends_on, has_message), {*tested}

    known = KnownPods.of([web, job])
    assert test_with(known, "a") == (set(), {web.uid, job.uid})
    assert test_with(known, "a") == (set(), set())
    assert test_with(known, "b") == (set(), {web.uid, job.uid})
    changed = known.after([job.uid], [replace(web, message="refused"), new])
    assert test_with(changed, "b") == ({web.uid}, {web.uid, new.uid})
    assert test_with(changed.after([], [web]), "b") == (set(), {web.uid})
    assert test_with(known, "b") == (set(), set())


def test_pods_that_have_not_changed_are_the_same_value() -> None:
    pods = [Candidate(f"uid-{n}", "default", f"web-{n}") for n in range(3)]
    known = KnownPods.of(pods)

    assert known.updated(pods) is known
    assert known.after(["uid-9"], []) is known

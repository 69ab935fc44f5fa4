"""Who holds an allocation, and which are over."""

from __future__ import annotations

from collections.abc import Mapping

from agent.core.model import Allocation, Owner
from agent.core.reconcile import Change, Confirm, Granted, Pods, Release, reconcile

from .values import GPU, allocation

GRACE = 60.0
NOW = 1000.0
WEB = Owner("uid-web", "main", "default", "web")


def pods(**containers: Mapping[str, list[str]]) -> Pods:
    """Pods of the namespace "default", by name: container to the IDs it holds."""
    return {
        ("default", name): {container: {GPU: frozenset(ids)} for container, ids in held.items()}
        for name, held in containers.items()
    }


def changes(
    allocations: list[Allocation], granted: list[Granted] | None, shown: Pods | None, now: float = NOW
) -> list[Change]:
    return reconcile(allocations, granted, shown, now, GRACE)


def test_the_kubelets_checkpoint_proves_pod_and_container() -> None:
    it = allocation("one", ["a"])

    found = changes([it], [Granted("one", "uid-web", "main")], pods())

    assert found == [Confirm("one", Owner("uid-web", "main"), alive=False)]


def test_pod_resources_adds_the_name_and_shows_life() -> None:
    it = allocation("one", ["a", "b"])

    found = changes(
        [it], [Granted("one", "uid-web", "main")], pods(other={"main": ["c"]}, web={"main": ["b", "a"]})
    )

    assert found == [Confirm("one", WEB, alive=True)]


def test_what_is_known_is_not_said_again() -> None:
    it = allocation("one", ["a"], owner=WEB, seen_alive=True)

    assert changes([it], [Granted("one", "uid-web", "main")], pods(web={"main": ["a"]})) == []


def test_an_init_container_that_pod_resources_hides_is_named_after_its_sibling() -> None:
    init, app = allocation("init", ["a", "b"]), allocation("app", ["a"])
    granted = [Granted("init", "uid-web", "setup"), Granted("app", "uid-web", "main")]

    found = changes([init, app], granted, pods(web={"main": ["a"]}))

    assert found == [
        Confirm("init", Owner("uid-web", "setup", "default", "web"), alive=False),
        Confirm("app", WEB, alive=True),
    ]


def test_owners_are_learned_from_one_source_alone() -> None:
    it = allocation("one", ["a"])
    known = allocation("one", ["a"], owner=WEB)

    assert changes([it], [Granted("one", "uid-web", "main")], None) == [
        Confirm("one", Owner("uid-web", "main"), alive=False)
    ]
    assert changes([known], None, pods(web={"main": ["a"]})) == [Confirm("one", WEB, alive=True)]


def test_without_a_source_nothing_is_released() -> None:
    gone = allocation("gone", ["a"], owner=WEB, seen_alive=True)
    unused = allocation("unused", ["b"])

    assert changes([gone, unused], None, pods()) == []
    assert changes([gone, unused], [], None) == []
    assert changes([gone, unused], None, None) == []


def test_within_grace_nothing_is_released() -> None:
    unused = allocation("unused", ["a"], since=NOW - GRACE + 1)

    assert changes([unused], [], pods()) == []
    assert changes([unused], [], pods(), now=NOW + 1) == [Release("unused", "never used")]


def test_a_pod_that_is_shown_is_alive_whatever_the_checkpoint_says() -> None:
    it = allocation("one", ["a"], owner=WEB, seen_alive=True)

    assert changes([it], [], pods(web={"main": ["a"]})) == []


def test_a_pod_seen_alive_is_over_when_it_is_no_longer_shown() -> None:
    it = allocation("one", ["a"], owner=WEB, seen_alive=True)

    assert changes([it], [Granted("one", "uid-web", "main")], pods()) == [Release("one", "pod gone")]


def test_a_pod_never_seen_is_over_when_the_checkpoint_drops_it() -> None:
    it = allocation("one", ["a"], owner=Owner("uid-web", "main"))

    assert changes([it], [], pods()) == [Release("one", "pod gone")]


def test_after_a_kubelet_restart_a_pod_never_seen_alive_is_kept_while_the_checkpoint_grants_it() -> None:
    it = allocation("one", ["a"], owner=Owner("uid-web", "main"))

    assert changes([it], [Granted("one", "uid-web", "main")], pods()) == []


def test_the_answer_to_a_rejected_pod_was_never_used() -> None:
    assert changes([allocation("one", ["a"])], [], pods()) == [Release("one", "never used")]


def test_the_answer_to_a_rejected_pod_is_over_also_while_another_pod_holds_its_ids() -> None:
    rejected = allocation("rejected", ["a"], since=1)
    web = allocation("web", ["a"], since=2, owner=WEB, seen_alive=True)

    found = changes([rejected, web], [Granted("web", "uid-web", "main")], pods(web={"main": ["a"]}))

    assert found == [Release("rejected", "superseded")]


def test_ids_that_went_to_another_pod_end_the_older_allocation() -> None:
    old = allocation("old", ["a", "b"], since=1, owner=Owner("uid-old", "main"))
    new = allocation("new", ["b", "c"], since=2, owner=WEB, seen_alive=True)
    granted = [Granted("old", "uid-old", "main"), Granted("new", "uid-web", "main")]

    assert changes([old, new], granted, pods(web={"main": ["b", "c"]})) == [Release("old", "superseded")]


def test_a_pod_of_the_same_name_with_the_same_ids_does_not_keep_its_predecessor() -> None:
    """A StatefulSet's pod comes back under its name, and on a node with one card gets the same IDs."""
    old = allocation("old", ["a"], since=1, owner=Owner("uid-old", "main", "default", "web"), seen_alive=True)
    new = allocation("new", ["a"], since=2)
    granted = [Granted("old", "uid-old", "main"), Granted("new", "uid-web", "main")]

    found = changes([old, new], granted, pods(web={"main": ["a"]}))

    assert found == [Confirm("new", WEB, alive=True), Release("old", "superseded")]


def test_a_clock_that_stepped_back_ends_no_living_pod() -> None:
    """The newer answer bears the older time; the order of the ledger tells."""
    old = allocation(
        "old", ["a"], since=500, owner=Owner("uid-old", "main", "default", "old"), seen_alive=True
    )
    new = allocation("new", ["a"], since=2, owner=WEB, seen_alive=True)

    found = changes([old, new], [Granted("new", "uid-web", "main")], pods(web={"main": ["a"]}))

    assert found == [Release("old", "pod gone")]


def test_the_same_ids_under_another_resource_end_nothing() -> None:
    one = allocation("one", ["0"], since=1, owner=WEB, seen_alive=True)
    other = allocation(
        "other", ["0"], since=2, resource="acme.com/x", owner=Owner("uid-2", "main", "default", "b")
    )

    found = changes([one, other], [Granted("other", "uid-2", "main")], pods(web={"main": ["0"]}, b={}))

    assert found == []


def test_init_and_app_container_of_one_pod_share_ids() -> None:
    init = allocation("init", ["a", "b"], since=1)
    app = allocation("app", ["a"], since=2)
    granted = [Granted("init", "uid-web", "setup"), Granted("app", "uid-web", "main")]

    found = changes([init, app], granted, pods(web={"main": ["a"]}))

    assert all(isinstance(it, Confirm) for it in found)


def test_an_init_containers_allocation_goes_with_its_pod() -> None:
    setup = Owner("uid-web", "setup", "default", "web")
    init = allocation("init", ["a", "b"], since=1, owner=setup)
    app = allocation("app", ["a"], since=2, owner=WEB, seen_alive=True)
    granted = [Granted("init", "uid-web", "setup"), Granted("app", "uid-web", "main")]

    found = changes([init, app], granted, pods(other={}))

    assert found == [Release("init", "pod gone"), Release("app", "pod gone")]


def test_an_init_container_whose_pod_is_listed_without_devices_is_kept() -> None:
    init = allocation("init", ["a"], owner=Owner("uid-web", "setup"))

    assert changes([init], [Granted("init", "uid-web", "setup")], pods(web={"main": []})) == []


def test_of_two_pods_that_show_the_ids_the_one_that_nobody_bears_is_the_owner() -> None:
    """Kubelets up to 1.33 also list pods that have ended."""
    ended = allocation(
        "ended", ["a"], since=1, owner=Owner("uid-1", "main", "default", "ended"), seen_alive=True
    )
    web = allocation("web", ["a"], since=2)

    found = changes(
        [ended, web], [Granted("web", "uid-web", "main")], pods(ended={"main": ["a"]}, web={"main": ["a"]})
    )

    assert found == [Confirm("web", WEB, alive=True), Release("ended", "superseded")]


def test_a_wrong_name_is_mended_and_releases_nothing() -> None:
    wrong = Owner("uid-web", "main", "default", "ended")
    web = allocation("web", ["a"], owner=wrong, seen_alive=True)

    found = changes([web], [Granted("web", "uid-web", "main")], pods(web={"main": ["a"]}))

    assert found == [Confirm("web", WEB, alive=True)]

"""Whose lock it is, and when it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from msgspec import structs
from support import strategies

from agent.core.allocation.node_lock_rules import (
    AHEAD,
    EXPIRED,
    EXPIRES,
    Lock,
    freeing_patch,
    lock_keys,
    locks_dated_ahead,
    locks_on_node,
    named_pods,
    parsed_lock,
    stale_sentences,
    why_over,
)
from agent.core.model import AllocationSource, Owner
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, Dialect, PodContainer, Scheduler
from agent.vendor_api.agent import ContainerEdits, Vendor
from core.values import GPU, allocation

KEY = "hami.io/mutex.lock"
VALUE = "2026-11-20T21:34:09Z,default,web"
TAKEN = 1795210449.0
HELD = Lock(KEY, VALUE, TAKEN, "default", "web")
WEB = Candidate(
    "uid-web", "default", "web", (PodContainer("a", {GPU: 1}), PodContainer("b", {GPU: 1, "cpu": 1}))
)


def served(container: str, uid: str = "uid-web") -> object:
    return allocation(container, [container], owner=Owner(uid, container))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (VALUE, HELD),
        ("2026-11-20T21:34:09Z", Lock(KEY, "2026-11-20T21:34:09Z", TAKEN)),
        *((it, None) for it in ("", "soon,default,web", "2026-11-20T21:34:09Z,web", f"{VALUE},more")),
        *((it, None) for it in ("2026-11-20T21:34:09Z,,web", "2026-11-20T21:34:09,default,web", "x" * 2000)),
    ],
)
def test_a_lock_is_read_as_schedulers_write_it(value: str, expected: Lock | None) -> None:
    assert parsed_lock(KEY, value) == expected


@given(strategies.hostile_texts)
def test_no_annotation_crashes_the_reading_of_locks(value: str) -> None:
    found = parsed_lock(KEY, value)

    assert found is None or found.value == value


@pytest.mark.parametrize(
    ("pods", "allocations", "age", "why"),
    [
        ([WEB], [], 1, ""),
        ([WEB], [served("a")], 1, ""),
        ([WEB], [served("a"), served("b")], 1, "its pod has its devices"),
        ([WEB], [served("a"), served("b", "uid-another")], 1, ""),
        ([replace(WEB, over=True)], [], 1, "its pod is over"),
        ([replace(WEB, uid="uid-former", over=True), WEB], [], 1, ""),
        ([], [], EXPIRES - 1, ""),
        ([], [], EXPIRES, "it is older than 300 s"),
        ([replace(WEB, namespace="other")], [served("a"), served("b")], 1, ""),
        ([replace(WEB, containers=())], [served("a"), served("b")], 1, ""),
    ],
    ids=[
        "its pod waits",
        "one container waits",
        "all are served",
        "another pod's container",
        "its pod has failed",
        "a former pod of its name has failed",
        "its pod is about to be bound",
        "nobody came",
        "a pod of another namespace",
        "a pod that asks for nothing",
    ],
)
def test_a_lock_is_over_when_its_pod_has_its_devices_or_will_never_have_them(
    pods: list[Candidate], allocations: list[object], age: float, why: str
) -> None:
    assert why_over(HELD, pods, allocations, TAKEN + age) == why  # type: ignore[arg-type]


BY_WORD = replace(allocation("x", [], owner=Owner("uid-web", "")), source=AllocationSource.ANNOTATION)
ALONE = replace(WEB, containers=(PodContainer("a", {"koordinator.sh/gpu-core": 50}),))


def test_who_asks_no_device_plugin_is_served_once_its_cards_are_known() -> None:
    assert why_over(HELD, [ALONE], [], TAKEN) == ""
    assert why_over(HELD, [ALONE], [served("b", "uid-another")], TAKEN) == ""  # type: ignore[list-item]
    assert why_over(HELD, [ALONE], [BY_WORD], TAKEN) == "its pod has its devices"


def test_cards_by_a_schedulers_word_serve_nobody_who_asks_for_others() -> None:
    assert why_over(HELD, [WEB], [BY_WORD, served("b", "uid-another")], TAKEN) == ""  # type: ignore[list-item]


def test_a_lock_of_the_old_form_ends_by_time_alone() -> None:
    old = Lock(KEY, "2026-11-20T21:34:09Z", TAKEN)

    assert why_over(old, [WEB], [], TAKEN + 1) == ""
    assert why_over(old, [WEB], [], TAKEN + EXPIRES)


def test_a_lock_that_has_expired_names_nobody() -> None:
    assert named_pods([HELD], TAKEN + 1) == {("default", "web")}
    assert named_pods([HELD], TAKEN + EXPIRES) == frozenset()


NOW = TAKEN - EXPIRES - 1


def test_a_lock_of_a_time_to_come_is_over_when_it_has_been_seen_for_as_long_as_one_may_last() -> None:
    assert why_over(HELD, [], [], NOW, EXPIRES - 1) == ""
    assert why_over(HELD, [], [], NOW, EXPIRES) == AHEAD
    assert why_over(HELD, [], [], TAKEN + EXPIRES, EXPIRES) == EXPIRED
    assert why_over(HELD, [replace(WEB, over=True)], [], NOW, EXPIRES) == "its pod is over"
    (said,) = stale_sentences({HELD: AHEAD, structs.replace(HELD, pod="other"): "its pod is over"})
    assert said.startswith(
        f"the lock {KEY} of the node is over: {VALUE} has not come for its devices, it is of a"
    )


def test_a_lock_of_a_time_to_come_names_its_pod_no_longer_than_another() -> None:
    assert named_pods([HELD], NOW, {HELD: EXPIRES - 1}) == {("default", "web")}
    assert named_pods([HELD], NOW, {HELD: EXPIRES}) == frozenset()


@pytest.mark.parametrize(
    ("known", "now", "expected"),
    [
        ({}, NOW, {HELD: 7.0}),
        ({}, NOW + 1, {}),
        ({HELD: 5.0}, NOW, {HELD: 5.0}),
        ({HELD: 5.0}, TAKEN + 1, {HELD: 5.0}),
        ({structs.replace(HELD, pod="before"): 5.0}, TAKEN, {}),
    ],
    ids=["seen now", "not further than it may last", "seen before", "by a clock that was set", "freed since"],
)
def test_it_counts_from_when_it_was_seen_first(
    known: dict[Lock, float], now: float, expected: dict[Lock, float]
) -> None:
    assert locks_dated_ahead([HELD], known, now, 7.0) == expected


def test_the_patch_frees_this_lock_and_no_other() -> None:
    path = "/metadata/annotations/hami.io~1mutex.lock"

    assert freeing_patch(HELD) == [
        {"op": "test", "path": path, "value": VALUE},
        {"op": "remove", "path": path},
    ]


def test_a_vendor_adds_its_own_lock() -> None:
    dialect = Dialect("acme", lambda pod, resource, cards: (), locks=("acme.com/mutex.lock", KEY))
    vendor = Vendor("acme", "a:B", GPU, lambda *_: ContainerEdits(), dialects=(dialect,))
    held = {KEY: VALUE, "acme.com/mutex.lock": VALUE, "other.com/mutex.lock": VALUE}

    assert [it.key for it in locks_on_node(held, lock_keys(registered(), []))] == [KEY]
    assert [it.key for it in locks_on_node(held, lock_keys(registered(), [vendor]))] == [
        KEY,
        "acme.com/mutex.lock",
    ]
    assert lock_keys([], [vendor]) == ("acme.com/mutex.lock", KEY)


def test_a_scheduler_s_dialect_adds_its_lock() -> None:
    dialect = Dialect("acme", lambda pod, resource, cards: (), locks=("acme.com/mutex.lock",))

    assert lock_keys([Scheduler("acme", dialects=(dialect,), locks=(KEY,))], []) == (
        KEY,
        "acme.com/mutex.lock",
    )

"""Who was refused is guessed until a pod's status says it: then nobody else is suspected of that request."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agent.core.allocation.known_pods import KnownPods
from agent.core.attribution.refused_requests import (
    MAX_REMEMBERED,
    RefusedRequest,
    suspected_uids,
    unexplained_requests,
    without_answered_pod,
)
from agent.scheduler_api import Candidate

A, B, C = (Candidate(f"uid-{name}", "default", name) for name in "abc")
FULL, SICK = "c0 is full", "c1 is unhealthy"


def refused(text: str, *pods: Candidate) -> RefusedRequest:
    return RefusedRequest(text, tuple(pod.uid for pod in pods))


def told(pod: Candidate, text: str) -> Candidate:
    return replace(pod, over=True, ended=True, message=f"Pod was rejected: Allocate failed due to {text}")


def gone(pod: Candidate) -> Candidate:
    return replace(pod, over=True)


@pytest.mark.parametrize(
    ("requests", "pods", "expected"),
    [
        pytest.param([refused(FULL, A, B)], [A, B], [A], id="the most likely one"),
        pytest.param([refused(FULL, A, B)] * 2, [A, B], [A, B], id="one a request"),
        pytest.param([refused(FULL, A)] * 2, [A, B], [A], id="who else may it have been"),
        pytest.param([refused(FULL, A, B)], [A, told(B, FULL)], [], id="it was another"),
        pytest.param([refused(FULL, A)], [A, told(C, FULL)], [], id="it was one that was not known then"),
        pytest.param([refused(FULL, A, B)], [A, gone(B)], [A], id="another is over and was not refused"),
        pytest.param([refused(FULL, A, B)], [A, told(B, SICK)], [A], id="another was refused otherwise"),
        pytest.param([refused(FULL, A, B)], [gone(A), B], [], id="it is over by itself"),
        pytest.param([refused(FULL, A, B)], [told(A, FULL), B], [], id="it was the one"),
        pytest.param(
            [refused(FULL, A, B), refused(SICK, B, A)], [A, told(B, FULL)], [A], id="then both were"
        ),
        pytest.param([refused(FULL, A, B)] * 2, [A, told(B, FULL)], [A], id="a pod explains one request"),
        pytest.param(
            [refused(FULL, A), refused(FULL, B)], [A, told(B, FULL)], [A], id="its own, of two alike"
        ),
        pytest.param([refused(FULL)], [A, B], [], id="of which nobody is known"),
        pytest.param([refused("", A)], [A, told(B, FULL)], [A], id="without a text"),
    ],
)
def test_who_seems_to_wait_is_suspected_of_a_request_that_no_status_explains(
    requests: list[RefusedRequest], pods: list[Candidate], expected: list[Candidate]
) -> None:
    assert suspected_uids(requests, KnownPods.of(pods)) == {pod.uid for pod in expected}


def test_a_pod_explains_no_request_after_the_one_that_it_was_refused_with() -> None:
    left = unexplained_requests(
        [refused(FULL, A, B), refused(FULL, A, C)], KnownPods.of([A, told(B, FULL), C])
    )

    assert suspected_uids(left, KnownPods.of([A, told(B, FULL), C])) == {A.uid}


def test_a_pod_whose_status_said_so_before_was_refused_with_another_request() -> None:
    request = structs.replace(refused(FULL, A), others=frozenset({B.uid}))

    assert suspected_uids([request], KnownPods.of([A, told(B, FULL)])) == {A.uid}


def test_of_who_was_suspected_and_gets_an_answer_the_next_likely_one_was_refused() -> None:
    requests = without_answered_pod(A.uid, [refused(FULL, A, B), refused(FULL, A)])

    assert suspected_uids(requests, KnownPods.of([A, B])) == {B.uid}


def test_of_requests_that_nobody_ever_explains_the_last_ones_are_remembered() -> None:
    requests = [refused(f"{n}", A) for n in range(MAX_REMEMBERED + 1)]

    assert unexplained_requests(requests, KnownPods.of([A])) == tuple(requests[1:])
    assert unexplained_requests(requests, KnownPods.of([gone(A)])) == ()


@given(data=st.data())
def test_nobody_is_suspected_any_more_once_every_pod_that_was_refused_says_so(data: st.DataObject) -> None:
    """In whatever order the statuses come, whoever was suspected, and whatever is forgotten between."""
    pods = {name: Candidate(f"uid-{name}", "default", name) for name in "abcdef"}
    its = data.draw(st.lists(st.sampled_from(sorted(pods)), unique=True))
    texts = {name: data.draw(st.sampled_from([FULL, SICK])) for name in its}
    requests = tuple(
        refused(texts[name], *(pods[one] for one in data.draw(st.permutations(sorted(pods))))) for name in its
    )

    for name in data.draw(st.permutations(its)):
        pods[name] = told(pods[name], texts[name])
        if data.draw(st.booleans()):
            requests = unexplained_requests(requests, KnownPods.of(pods.values()))

    assert not suspected_uids(requests, KnownPods.of(pods.values()))

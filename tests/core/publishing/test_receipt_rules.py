"""What pods are to tell their schedulers follows from who has what, and from what stands on them already."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.core.publishing.receipt_rules import (
    MAX_BYTES,
    OwedReceipt,
    OwedReceipts,
    PodReceipts,
    owed_receipts,
    wrong_key,
)
from agent.scheduler_api import Candidate, Claim, Dialect, PodContainer, ServedClaim
from core.values import GPU, allocation

DONE, EACH = "acme.com/assigned", "assigned-containers"


def told(pod: Candidate, its: Sequence[ServedClaim]) -> Mapping[str, str]:
    """As GCUShare's plugins tell it: each container with what it has, and whether those are all."""
    known = json.loads(pod.annotations.get(EACH, "{}"))
    known |= {it.container: {"request": it.count, "cards": list(it.devices)} for it in its}
    asking = {it.name for it in pod.containers if it.limits}
    return {DONE: "true" if asking <= known.keys() else "false", EACH: json.dumps(known, sort_keys=True)}


ACME = Dialect("acme", lambda *_: (), receipt=told, receipt_keys=(DONE, EACH))


def pod(name: str, *containers: str, **annotations: str) -> Candidate:
    asking = tuple(PodContainer(it, {GPU: 1}) for it in containers or ("main",))
    return Candidate(f"uid-{name}", "default", name, asking, annotations)


def of(name: str, container: str = "main", card: str = "a", **but: Any) -> Allocation:
    """What a pod's container has under its claim, as the kubelet confirms it."""
    claim = Claim(f"uid-{name}", "default", name, container, dialect="acme")
    made = allocation(
        f"{name}-{container}", (f"{card}::0",), owner=Owner(f"uid-{name}", container), claim=claim
    )
    return replace(made, **but)


def owed(pods: Sequence[Candidate], in_use: Sequence[Allocation], dialect: Dialect = ACME) -> OwedReceipts:
    return owed_receipts(pods, in_use, lambda *name: {("acme", dialect.name): dialect}.get(name))


MAIN = '{"main": {"cards": ["a"], "request": 1}}'


def test_a_pod_that_has_its_devices_is_to_say_so() -> None:
    found = owed((pod("web"),), (of("web"),))

    assert found == OwedReceipts((OwedReceipt("uid-web", "default", "web", {DONE: "true", EACH: MAIN}),))


def test_of_a_receipt_only_what_differs_is_owed_and_what_stands_there_is_known() -> None:
    it = pod("web", **{DONE: "false", EACH: MAIN, "acme.com/index": "1"})

    assert owed((it,), (of("web"),)).owed == (
        OwedReceipt("uid-web", "default", "web", {DONE: "true"}, {DONE: "false"}),
    )


def test_each_container_of_a_pod_adds_to_what_stands_there() -> None:
    it = pod("web", "one", "two")
    (first,) = owed((it,), (of("web", "one"),)).owed
    assert first.texts[DONE] == "false"

    bearing = replace(it, annotations=first.texts)
    (second,) = owed((bearing,), (of("web", "one"), of("web", "two", "b"))).owed

    assert second.texts[DONE] == "true"
    assert json.loads(second.texts[EACH]).keys() == {"one", "two"}


def test_a_pod_that_bears_its_receipt_is_owed_nothing() -> None:
    assert owed((pod("web", **{DONE: "true", EACH: MAIN}),), (of("web"),)) == OwedReceipts()


ANOTHER = Claim("uid-job", "default", "job", "main", dialect="acme")
NOT_THEIRS = {
    "the pod is being deleted": (replace(pod("web"), over=True), of("web")),
    "a static pod says its uid itself": (replace(pod("web"), static=True), of("web")),
    "another pod of the same name was made since": (replace(pod("web"), uid="uid-new"), of("web")),
    "nothing was promised": (pod("web"), of("web", claim=None)),
    "the kubelet has not confirmed it": (pod("web"), of("web", owner=None)),
    "the kubelet gave it to another pod": (pod("web"), of("web", owner=Owner("uid-job", "main"))),
    "the kubelet gave it to another container": (pod("web"), of("web", owner=Owner("uid-web", "side"))),
    "PodResources shows another pod": (pod("web"), of("web", owner=Owner("", "main", "default", "job"))),
    "it is another pod's promise still": (pod("web"), of("web", claim=ANOTHER)),
    "it is known by a scheduler's word alone": (pod("web"), of("web", source=AllocationSource.ANNOTATION)),
    "its hardware is not made yet": (pod("web"), of("web", state=AllocationState.INTENT)),
    "the pod has no such container": (pod("web", "side"), of("web")),
}


@pytest.mark.parametrize("case", NOT_THEIRS)
def test_no_pod_says_that_it_has_what_it_may_not_have(case: str) -> None:
    it, held = NOT_THEIRS[case]

    assert owed((it,), (held,)) == OwedReceipts()


def test_whom_podresources_alone_shows_is_known_by_its_claim_and_name() -> None:
    held = of("web", owner=Owner("", "main", "default", "web"), source=AllocationSource.POD_RESOURCES)

    assert [it.pod for it in owed((pod("web"),), (held,)).owed] == ["web"]


def test_a_dialect_without_a_receipt_and_one_that_nobody_has_ask_for_nothing() -> None:
    silent = replace(ACME, receipt=None)

    assert owed((pod("web"),), (of("web"),), silent) == OwedReceipts()
    assert owed((pod("web"),), (of("web"),), replace(ACME, name="other")) == OwedReceipts()


def test_what_a_container_got_last_counts() -> None:
    its = (of("web", card="a"), replace(of("web", card="b"), id="again"))

    assert json.loads(owed((pod("web"),), its).owed[0].texts[EACH])["main"]["cards"] == ["b"]


def test_a_dialect_is_given_cards_count_and_slices_in_the_order_of_the_containers() -> None:
    seen: list[Sequence[ServedClaim]] = []
    watching = replace(ACME, receipt=lambda _, its: seen.append(its) or {})  # type: ignore[func-returns-value]
    its = (of("web", "two", diverged=("c", "d"), ids=("a::0", "a::1")), of("web", "one", partitions=("s",)))

    owed((pod("web", "one", "two"),), its, watching)

    assert seen == [(ServedClaim("one", GPU, 1, ("a",), ("s",)), ServedClaim("two", GPU, 2, ("c", "d")))]


def growing(it: Candidate, _: Sequence[ServedClaim]) -> Mapping[str, str]:
    return {DONE: it.annotations.get(DONE, "") + "x"}


@pytest.mark.parametrize(
    ("receipt", "why"),
    [
        pytest.param(
            lambda *_: {"acme.com/other": "1"}, "'acme.com/other' is not among its", id="a strange key"
        ),
        pytest.param(lambda *_: {DONE: True}, "a text is needed, and no bool", id="no text"),
        pytest.param(lambda *_: {DONE: "x" * MAX_BYTES}, f"at most {MAX_BYTES} work", id="too large"),
        pytest.param(lambda *_: {DONE: "\ud800"}, "surrogates not allowed", id="half a character"),
        pytest.param(lambda *_: 7, "not iterable", id="no mapping"),
        pytest.param(growing, "would be written for ever", id="one that grows by itself"),
        pytest.param(lambda it, _: {DONE: it.annotations["x"]}, "x", id="a bug"),
    ],
)
def test_a_receipt_that_can_not_be_written_is_told_and_harms_no_other_pod(receipt: Any, why: str) -> None:
    def odd(it: Candidate, its: Sequence[ServedClaim]) -> Mapping[str, str]:
        made: Mapping[str, str] = receipt(it, its) if it.name == "odd" else told(it, its)
        return made

    found = owed((pod("odd"), pod("good")), (of("odd"), of("good")), replace(ACME, receipt=odd))

    assert [it.pod for it in found.owed] == ["good"]
    (wrong,) = found.wrong
    assert wrong.startswith("default/odd: acme: ")
    assert why in wrong


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("acme.com/assigned", ""),
        ("assigned-containers", ""),
        ("xpu-agent.io/simulated-given", ""),
        ("kubernetes.io/x", "Kubernetes' own"),
        ("container.apparmor.security.beta.kubernetes.io/main", "Kubernetes' own"),
        ("a.k8s.io/x", "Kubernetes' own"),
        ("a b", "letters, digits"),
        ("", "letters, digits"),
    ],
)
def test_a_receipt_has_no_keys_that_are_kubernetes_own(key: str, why: str) -> None:
    assert why in wrong_key(key)
    assert bool(why) is bool(wrong_key(key))


names = st.sampled_from(("a", "b", "c"))
confirmed = st.builds(of, names, st.sampled_from(("one", "two")), names)
others = st.sampled_from([held for _, held in NOT_THEIRS.values()])


@given(st.lists(st.tuples(st.lists(confirmed | others, max_size=4), st.sets(names)), max_size=6))
def test_what_is_remembered_of_pods_changes_nothing_of_what_follows(
    steps: list[tuple[list[Allocation], set[str]]],
) -> None:
    known: dict[str, PodReceipts] = {}
    for in_use, there in steps:
        pods = tuple(pod(it, "one", "two") for it in sorted(there))

        assert owed_receipts(pods, in_use, lambda *_: ACME, known) == owed_receipts(
            pods, in_use, lambda *_: ACME
        )
        assert known.keys() <= {it.claim.uid for it in in_use if it.claim is not None}


def test_a_pod_is_looked_at_again_only_when_it_or_its_devices_changed() -> None:
    asked: list[str] = []

    def counting(it: Candidate, its: Sequence[ServedClaim]) -> Mapping[str, str]:
        asked.append(it.name)
        return {}

    dialect, known, in_use = replace(ACME, receipt=counting), dict[str, PodReceipts](), (of("web"), of("job"))
    for pods in ((pod("web"), pod("job")), (pod("web"), pod("job")), (pod("web", **{DONE: "x"}), pod("job"))):
        owed_receipts(pods, in_use, lambda *_: dialect, known)

    assert asked == ["web", "job", "web"]


@given(st.lists(confirmed | others, max_size=8), st.sets(names, min_size=1))
def test_once_written_nothing_is_owed_and_only_pods_with_devices_are_written(
    in_use: list[Allocation], there: set[str]
) -> None:
    pods = tuple(pod(it, "one", "two") for it in sorted(there))
    found = owed(pods, in_use)

    written = {it.uid: it.texts for it in found.owed}
    bearing = [replace(it, annotations=written.get(it.uid, {})) for it in pods]

    assert owed(bearing, in_use) == OwedReceipts()
    assert written.keys() <= {it.owner.uid for it in in_use if it.owner is not None}
    assert all(texts.keys() <= {*ACME.receipt_keys} for texts in written.values())

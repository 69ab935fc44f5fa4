"""Who has what of a vendor's cards, and who is promised it, as formats of others show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from agent.core.allocation.known_pods import KnownPods
from agent.core.model import Allocation, AllocationState, Owner
from agent.core.publishing.agent_status import AgentStatus
from agent.core.publishing.status_for_tools import formats, node_listing
from agent.scheduler_api import Candidate, Cards, Claim, Dialect, PodContainer
from agent.vendor_api.agent import CardCount, ContainerEdits, ContainerShare, Format, ListedPod, Vendor
from core.values import GPU, node, shared, status

CARD = "acme.com/card"


def claims(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """One claim for each container, on the cards that the annotation names."""
    card = pod.annotations.get(CARD)
    if card == "nonsense":
        raise ValueError("makes no sense")
    return [
        Claim(pod.uid, pod.namespace, pod.name, it.name, tuple(card.split())) for it in pod.containers if card
    ]


ACME = Vendor(
    "acme", "acme:Acme", GPU, lambda devices, request: ContainerEdits(), dialects=(Dialect("acme", claims),)
)
VIEW = AgentStatus(
    "node-1",
    "1",
    snapshot=node(status("a", 0), status("b", 1)),
    resources={GPU: shared({"a": 4, "b": 4})},
    vendors={"acme": ACME},
)


def pod(name: str, created: float, *limits: Mapping[str, int], card: str = "", **more: Any) -> Candidate:
    containers = (PodContainer(f"c{n}", it) for n, it in enumerate(limits))
    annotations = {CARD: card} if card else {}
    return Candidate(f"uid-{name}", "default", name, tuple(containers), annotations, created, **more)


def had(pod: str, container: str, *ids: str, card: str = "a") -> Allocation:
    owner = Owner(f"uid-{pod}", container, "default", pod)
    return Allocation(f"{pod}-{container}", GPU, "acme", ids, (card,), AllocationState.DONE, 1.0, owner=owner)


def shown(it: Candidate) -> ListedPod:
    return ListedPod("default", it.name, it.uid, it.created, it.pending)


def test_who_has_something_is_shown_oldest_pod_first() -> None:
    old, young = pod("old", 1.0, {GPU: 1}), pod("young", 2.0, {GPU: 2})
    its = (had("young", "c0", "a::0", "a::1"), had("old", "c0", "a::2"))

    found = node_listing(structs.replace(VIEW, allocations=its, pods=KnownPods.of((young, old))), ACME)

    assert found.shares == (
        ContainerShare(GPU, "a", 1, shown(old), "c0"),
        ContainerShare(GPU, "a", 2, shown(young), "c0"),
    )
    assert found.counts == (CardCount(GPU, "a", 4), CardCount(GPU, "b", 4))


def test_who_is_promised_something_and_has_it_not_yet_is_shown_too() -> None:
    waiting = pod("waiting", 1.0, {GPU: 1}, {GPU: 2}, card="b")
    its = (had("waiting", "c0", "b::0", card="b"),)

    found = node_listing(structs.replace(VIEW, allocations=its, pods=KnownPods.of((waiting,))), ACME)

    assert {(it.container, it.count, it.allocated) for it in found.shares} == {
        ("c0", 1, True),
        ("c1", 2, False),
    }


@pytest.mark.parametrize("ended", [{"over": True}, {"over": True, "ended": True}])
def test_who_is_over_is_promised_nothing(ended: Mapping[str, bool]) -> None:
    found = node_listing(
        structs.replace(VIEW, pods=KnownPods.of((pod("over", 1.0, {GPU: 1}, card="a", **ended),))), ACME
    )

    assert found.shares == ()


def test_an_annotation_that_makes_no_sense_hides_nobody_else() -> None:
    pods = (pod("mad", 1.0, {GPU: 1}, card="nonsense"), pod("good", 2.0, {GPU: 1}, card="a"))

    found = node_listing(structs.replace(VIEW, pods=KnownPods.of(pods)), ACME)

    assert [it.pod.name for it in found.shares if it.pod] == ["good"]


def test_an_id_that_an_init_container_had_before_counts_once() -> None:
    its = (had("p", "init", "a::0", "a::1"), had("p", "c0", "a::1"))

    found = node_listing(
        structs.replace(VIEW, allocations=its, pods=KnownPods.of((pod("p", 1.0, {GPU: 1}),))), ACME
    )

    assert {it.container: it.count for it in found.shares} == {"init": 1, "c0": 1}


def test_what_is_promised_to_an_init_container_is_not_counted_beside_those_after_it() -> None:
    waiting = pod("p", 1.0, {GPU: 1}, {GPU: 1}, card="a")
    waiting = replace(waiting, containers=(replace(waiting.containers[0], init=True), waiting.containers[1]))

    found = node_listing(structs.replace(VIEW, pods=KnownPods.of((waiting,))), ACME)

    assert [(it.container, it.count) for it in found.shares] == [("c1", 1)]


def test_a_pod_that_asks_for_more_than_there_is_is_shown_with_all_that_is_there() -> None:
    mad = pod("mad", 1.0, {GPU: 10**15}, card="a")

    found = node_listing(structs.replace(VIEW, pods=KnownPods.of((mad,))), ACME)

    assert {it.uuid: it.count for it in found.shares} == {"a": 4}


@pytest.mark.parametrize(
    ("wanted", "counts"), [(1, {"a": 1}), (3, {"a": 2, "b": 1}), (10**15, {"a": 4, "b": 4})]
)
def test_what_is_promised_on_several_cards_is_counted_on_them_in_turn(
    wanted: int, counts: Mapping[str, int]
) -> None:
    waiting = pod("p", 1.0, {GPU: wanted}, card="a b")

    found = node_listing(structs.replace(VIEW, pods=KnownPods.of((waiting,))), ACME)

    assert {it.uuid: it.count for it in found.shares} == counts


def test_shares_of_several_cards_count_where_they_lie() -> None:
    two = replace(had("p", "c0", "a::0", "b::0", "b::1"), devices=("a", "b"))

    found = node_listing(structs.replace(VIEW, allocations=(two,)), ACME)

    assert {it.uuid: it.count for it in found.shares} == {"a": 1, "b": 2}


@pytest.mark.parametrize(("where", "counts"), [(("b",), {"b": 2}), (("b", "a"), {"a": 1, "b": 1})])
def test_a_share_that_lies_elsewhere_counts_there(where: tuple[str, ...], counts: Mapping[str, int]) -> None:
    moved = replace(had("p", "c0", "a::0", "a::1"), diverged=where)

    found = node_listing(structs.replace(VIEW, allocations=(moved,)), ACME)

    assert {it.uuid: it.count for it in found.shares} == counts


def test_without_an_api_server_a_pod_is_called_as_the_kubelet_calls_it_and_comes_last() -> None:
    unseen, seen = had("unseen", "c0", "a::0"), had("seen", "c0", "a::1")

    found = node_listing(
        structs.replace(VIEW, allocations=(unseen, seen), pods=KnownPods.of((pod("seen", 9.0, {GPU: 1}),))),
        ACME,
    )

    assert [it.pod.name for it in found.shares if it.pod] == ["seen", "unseen"]
    assert found.shares[1].pod is not None
    assert found.shares[1].pod.created is None


def test_what_nobody_is_known_to_have_counts_and_is_nobodys() -> None:
    found = node_listing(
        structs.replace(VIEW, allocations=(replace(had("p", "c0", "a::0"), owner=None),)), ACME
    )

    assert [(it.count, it.pod) for it in found.shares] == [(1, None)]


def test_what_is_released_or_of_another_vendor_is_not_shown() -> None:
    its = (
        replace(had("p", "c0", "a::0"), state=AllocationState.RELEASED),
        replace(had("q", "c0", "a::1"), vendor="other"),
    )

    assert node_listing(structs.replace(VIEW, allocations=its), ACME).shares == ()


def test_of_two_vendors_with_one_name_for_a_format_the_first_one_has_it() -> None:
    first, second = (Format("theirs", lambda *_, n=n: n) for n in range(2))
    vendors = {name: replace(ACME, name=name, formats=(it,)) for name, it in (("acme", first), ("b", second))}

    found = formats(structs.replace(VIEW, vendors=vendors))

    assert {name: vendor.name for name, (vendor, _) in found.items()} == {"theirs": "acme"}

"""What names one of our cards holds that card, whatever its resource and whoever answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies

from agent.core.allocation.ledger import Ledger
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.plan import plan
from agent.core.model import AllocationSource, DeviceStatus, NodeSnapshot
from agent.core.reconciling.cards_of_answers import AnswerReader, CardsOfAnswer, resources_of_other_plugins
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.core.reconciling.recovered_allocations import recover_from_answers, recover_from_pods
from agent.vendor_api.agent import (
    ContainerEdits,
    Device,
    DeviceNode,
    ReplacedPlugins,
    ResourceRule,
    Sharing,
    Vendor,
)
from core.values import GPU, node, status

NOW = 1000.0
CORE, MEMORY = "tencent.example/vcuda-core", "tencent.example/vcuda-memory"


def card(uuid: str, index: int) -> DeviceStatus:
    it = status(uuid, index, minor=index)
    device = replace(it.device, pci=f"0000:3{index}:00.0", paths=("/dev/control", f"/dev/acme{index}"))
    return replace(it, device=device)


def slice_of(parent: str, index: int, number: int) -> DeviceStatus:
    it = status(f"{parent}/{number}", index, parent=parent, slice=number)
    paths = ("/dev/control", f"/dev/acme{index}", f"/dev/caps/{index}-{number}")
    return replace(it, device=replace(it.device, pci=f"0000:3{index}:00.0", paths=paths))


CARDS = (card("a", 0), card("b", 1), card("c", 2), slice_of("c", 2, 0), slice_of("c", 2, 1))


def vendor(
    told: Callable[[ContainerEdits, Sequence[Device]], Sequence[str] | None] = lambda answer, devices: None,
) -> Vendor:
    former = ("acme.example/gpu*", CORE, MEMORY)
    return Vendor(
        "acme",
        "acme:Backend",
        GPU,
        lambda devices, request: ContainerEdits(),
        replaces=ReplacedPlugins(resources=former, cards_of_answer=told),
    )


def by_variable(answer: ContainerEdits, devices: Sequence[Device]) -> Sequence[str] | None:
    value = answer.env.get("CARDS")
    return None if value is None else value.split(",")


TIES = AnswerReader(CARDS, {"acme": vendor(by_variable)})


def entry(
    *ids: str,
    resource: str = "other.example/gpu",
    uid: str = "uid-web",
    container: str = "main",
    mark: str = "",
    cards: tuple[str, ...] = (),
    **edits: Any,
) -> CheckpointAnswer:
    name = mark or f"kubelet-{uid}-{container}-{resource}"
    return CheckpointAnswer(
        name,
        uid,
        container,
        resource,
        ids,
        cards=cards,
        unit="" if mark else None,
        edits=ContainerEdits(**edits),
    )


def nodes(*paths: str) -> dict[str, Any]:
    return {"device_nodes": tuple(DeviceNode(it, it) for it in paths)}


@pytest.mark.parametrize(
    ("answered", "cards"),
    [
        pytest.param(entry("17", env={"CARDS": "b,a"}), ("b", "a"), id="its variable"),
        pytest.param(entry("17", cdi_devices=("acme.example/gpu=b",)), ("b",), id="a CDI name"),
        pytest.param(entry("17", **nodes("/dev/control", "/dev/acme1")), ("b",), id="a device node"),
        pytest.param(
            entry("17", device_nodes=(DeviceNode("/dev/acme1", "/run/driver/dev/acme1"),)),
            ("b",),
            id="a device node below a driver's root",
        ),
        pytest.param(entry("a"), ("a",), id="a uuid"),
        pytest.param(entry("a::3", "b::0"), ("a", "b"), id="shares of cards"),
        pytest.param(entry("a-_-3"), ("a",), id="a share in another writing"),
        pytest.param(entry("0000:31:00.0"), ("b",), id="a PCI address"),
        pytest.param(entry("c/1"), ("c/1",), id="a slice"),
        pytest.param(
            entry("17", **nodes("/dev/control", "/dev/acme2", "/dev/caps/2-1")),
            ("c/1",),
            id="a slice's nodes, its card's among them",
        ),
        pytest.param(entry("17", mark="0123456789abcdef", cards=("b",)), ("b",), id="our mark"),
        pytest.param(entry("a", env={"CARDS": "b"}), ("b",), id="another card than its ID says"),
    ],
)
def test_an_answer_is_tied_to_the_cards_that_it_names(
    answered: CheckpointAnswer, cards: tuple[str, ...]
) -> None:
    tie = TIES.cards_of(answered)

    assert tie is not None
    assert (tie.vendor, tie.cards) == ("acme", cards)


@pytest.mark.parametrize(
    "answered",
    [
        pytest.param(entry("0000:99:00.2", resource="nic.example/vf"), id="another device"),
        pytest.param(entry("0", "0-3", resource="nic.example/vf"), id="a number, which may count anything"),
        pytest.param(entry("17", **nodes("/dev/control")), id="a node that all cards have"),
        pytest.param(entry("a", "x", resource="nic.example/vf"), id="not all of them are cards"),
        pytest.param(entry(resource="nic.example/vf"), id="nothing"),
    ],
)
def test_an_answer_of_other_devices_is_neither_held_nor_said(answered: CheckpointAnswer) -> None:
    assert TIES.cards_of(answered) is None
    recalled = recover_from_answers([answered], {}, NOW, TIES)
    assert (recalled.allocations, recalled.answers_without_cards) == ([], {})


@pytest.mark.parametrize(
    ("answered", "of"),
    [
        pytest.param(entry("gone", env={"CARDS": "gone"}), "acme", id="in its vendor's words"),
        pytest.param(
            entry("gone", resource="acme.example/gpu.shared"), "acme", id="of its vendor's resource"
        ),
        pytest.param(entry("gone", mark="0123456789abcdef"), "", id="with our mark"),
    ],
)
def test_an_answer_of_a_card_that_is_not_here_is_said(answered: CheckpointAnswer, of: str) -> None:
    recalled = recover_from_answers([answered], {}, NOW, TIES)

    assert recalled.allocations == []
    assert recalled.answers_without_cards == {answered.allocation: (of, answered)}


def test_a_vendor_that_fails_on_an_answer_leaves_its_ids_to_say_the_card() -> None:
    def fails(answer: ContainerEdits, devices: Sequence[Device]) -> Sequence[str]:
        raise RuntimeError("a bug")

    tie = AnswerReader(CARDS, {"acme": vendor(fails)}).cards_of(entry("a", env={"CARDS": "b"}))

    assert tie == CardsOfAnswer("acme", ("a",), ("a",))


def test_a_vendor_without_cards_here_ties_nothing() -> None:
    ties = AnswerReader((), {"acme": vendor(by_variable)})

    assert ties.cards_of(entry("a", env={"CARDS": "a"}, resource="acme.example/gpu")) is None
    assert not ties.has_cards


def held(snapshot: NodeSnapshot, *granted: CheckpointAnswer) -> Ledger:
    ledger = Ledger()
    for it in recover_from_answers(
        granted, {}, NOW, AnswerReader(snapshot.devices, {"acme": vendor(by_variable)})
    ).allocations:
        ledger.record(it.allocation)
    return ledger


@pytest.mark.parametrize("sharing", [Sharing(), Sharing("replicas", 4)], ids=["whole", "shared"])
@pytest.mark.parametrize(
    "answered",
    [entry("b::1"), entry(*map(str, range(130)), env={"CARDS": "b"}), entry("1", env={"CARDS": "b"})],
    ids=["a share", "units", "one ID"],
)
def test_its_card_is_given_out_in_no_other_way_until_it_is_free(
    answered: CheckpointAnswer, sharing: Sharing
) -> None:
    snapshot = node(*CARDS[:3])
    ledger = held(snapshot, answered)
    offers = [Offer("acme", (ResourceRule(GPU, sharing=sharing),))]

    planned = plan(
        offers, snapshot, usage=ledger.usage(), of_others=resources_of_other_plugins(ledger.in_use())
    )

    assert {it.uuid for it in planned[GPU].cards} == {"a", "c"}
    assert set(planned) == {GPU}


def test_several_cards_of_more_or_fewer_ids_are_all_held() -> None:
    snapshot = node(*CARDS[:3])
    for ids in ((*map(str, range(5)),), ("17",)):
        ledger = held(snapshot, entry(*ids, env={"CARDS": "a,c"}))
        offers = [Offer("acme", (ResourceRule(GPU),))]

        planned = plan(
            offers, snapshot, usage=ledger.usage(), of_others=resources_of_other_plugins(ledger.in_use())
        )

        assert [it.uuid for it in planned[GPU].cards] == ["b"]


def test_what_names_no_card_holds_those_of_its_container_that_do() -> None:
    cores = entry(*(f"{CORE}-{n}" for n in range(50)), resource=CORE, env={"CARDS": "b"})
    memory = entry(*(f"{MEMORY}-{n}" for n in range(8)), resource=MEMORY)
    elsewhere = replace(memory, container="side", allocation="kubelet-elsewhere")

    recalled = recover_from_answers([memory, elsewhere, cores], {}, NOW, TIES)

    assert {it.allocation.resource: {*it.allocation.cards} for it in recalled.allocations} == {
        CORE: {"b"},
        MEMORY: {"b"},
    }
    assert list(recalled.answers_without_cards) == ["kubelet-elsewhere"]


def test_what_we_answered_under_a_name_that_the_config_has_no_more_is_held() -> None:
    ours = entry("a", "b", resource="example.com/before", mark="0123456789abcdef", env={"CARDS": "a,b"})

    (found,) = recover_from_answers([ours], {}, NOW, TIES).allocations

    it = found.allocation
    assert (it.id, it.vendor, it.devices, it.source) == (
        "0123456789abcdef",
        "acme",
        ("a", "b"),
        AllocationSource.KUBELET,
    )


def test_without_the_kubelets_checkpoint_ids_alone_say_the_card() -> None:
    shown = {
        ("default", "web"): {"main": {"other.example/gpu": frozenset({"a::1"}), "nic/vf": frozenset({"0"})}}
    }

    (found,) = recover_from_pods(shown, {}, lambda place: f"kubelet-{place}", NOW, TIES)

    assert (found.allocation.vendor, found.allocation.cards) == ("acme", ("a",))


@given(
    st.lists(strategies.hostile_texts | st.sampled_from(["a", "b::1", "0000:31:00.0", "c/0"])),
    strategies.hostile_texts,
    st.dictionaries(st.just("CARDS") | strategies.hostile_texts, strategies.hostile_texts),
    st.lists(strategies.hostile_texts | st.sampled_from(["acme.example/gpu=a", "=b"])),
)
def test_no_answer_of_others_fails_the_pass_or_holds_a_card_that_is_not_here(
    ids: list[str], resource: str, env: dict[str, str], cdi: list[str]
) -> None:
    recalled = recover_from_answers(
        [entry(*ids, resource=resource, env=env, cdi_devices=(*cdi,))], {}, NOW, TIES
    )

    for it in recalled.allocations:
        assert {*it.allocation.cards} <= {card.uuid for card in CARDS}
        assert it.allocation.cards

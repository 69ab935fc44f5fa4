"""Rules of what is told of the cards: which vendor's, which cards, and how they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.model import AbsentDevice, Health, NodeSnapshot, VendorState
from agent.scheduler_api.node_report import ReportedCard
from agent.schedulers.koordinator.reported_cards import MAX_MINOR, koordinator_vendor, model_name, reason
from agent.vendor_api.agent import Fault, State
from schedulers.koordinator.cards import GIB, broken, card, cards, cordoned, linked, lost, node, report, told


def uuids(snapshot: NodeSnapshot, vendor: str = "") -> list[str]:
    found = report(snapshot, vendor)
    return [it.uuid for it in found.cards] if found else []


# Which vendor


def test_the_vendor_with_most_cards_is_reported_and_the_other_one_named() -> None:
    found = told(node(cards(2) + cards(3, "enflame")))

    assert (found.vendor, len(found.cards)) == ("enflame", 3)
    why = "the node reports enflame, and one vendor alone: report.vendor chooses"
    assert found.left_out == (f"2 cards of metax are not reported: {why}",)


def test_the_config_chooses_the_vendor() -> None:
    assert told(node(cards(1) + cards(3, "enflame")), vendor="metax").vendor == "metax"


def test_a_vendor_that_the_config_chose_and_that_is_not_here_reports_nobody_else() -> None:
    assert report(node(cards(2)), "enflame") is None
    assert report(node(cards(2), enflame=VendorState.UNAVAILABLE), "enflame") is None


def test_of_two_vendors_with_as_many_cards_the_one_that_was_told_stays() -> None:
    both = node(cards(2) + cards(2, "enflame"))

    assert {told(both, before=told(node(cards(2, it)))).vendor for it in ("metax", "enflame")} == {
        "metax",
        "enflame",
    }


def test_nothing_is_told_while_a_vendor_may_still_come_with_more_cards() -> None:
    assert report(node(cards(2), enflame=VendorState.STARTING)) is None


def test_a_vendor_that_starts_holds_up_nobody_whom_the_config_chose() -> None:
    assert told(node(cards(2), enflame=VendorState.STARTING), vendor="metax").vendor == "metax"


def test_a_vendor_without_hardware_holds_up_nobody() -> None:
    assert told(node(cards(2), enflame=VendorState.UNAVAILABLE)).vendor == "metax"


# Never empty


@pytest.mark.parametrize("state", list(VendorState))
def test_a_node_that_had_no_cards_is_not_reported(state: VendorState) -> None:
    assert report(node(metax=state)) is None


def test_before_the_vendors_are_known_nothing_is_told() -> None:
    assert report(NodeSnapshot(), before=told(node(cards(2)))) is None


def test_while_a_vendor_starts_what_was_told_stays() -> None:
    assert report(node(metax=VendorState.STARTING), before=told(node(cards(2)))) is None


@pytest.mark.parametrize(
    "state", [VendorState.UNAVAILABLE, VendorState.FAILED, VendorState.LEFT_OUT, VendorState.OPEN]
)
def test_cards_of_a_vendor_that_lists_none_are_told_as_unhealthy(state: VendorState) -> None:
    before = told(node(cards(2)))

    found = told(node(metax=state), before=before)

    assert [(it.uuid, it.healthy, it.status, it.reason) for it in found.cards] == [
        (it.uuid, False, "Unknown", "LostContact") for it in before.cards
    ]
    assert replace(found, cards=()) == replace(before, cards=())


def test_a_vendor_that_was_told_and_does_not_list_its_cards_gives_way_to_no_smaller_one() -> None:
    before = told(node(cards(3, "enflame")))

    found = told(node(cards(2), enflame=VendorState.UNAVAILABLE), before=before)

    assert (found.vendor, [it.healthy for it in found.cards]) == ("enflame", [False] * 3)


def test_nothing_of_one_vendor_is_told_of_another() -> None:
    before = told(node(linked({(0, 1): 4}, 2)))

    found = told(
        node([card(0, "enflame", attributes={}), card(1, "enflame")]), before=replace(before, driver="9")
    )

    assert (found.links, found.driver) == ((), "2.32.0")
    assert told(node([card(0, "enflame", attributes={})]), before=before).driver == ""


def test_what_somebody_else_told_of_a_vendor_that_is_none_of_ours_stays() -> None:
    before = told(node(cards(2, "huawei")))

    assert report(node(metax=VendorState.UNAVAILABLE), before=before) is None


def test_a_card_that_is_away_and_remembered_stays_as_unhealthy_in_its_place() -> None:
    before = told(node(cards(3)))
    away = before.cards[0].uuid
    gone = AbsentDevice(away, "metax", Health(State.UNHEALTHY, "xid-79", "fell off the bus"))

    found = told(node(cards(3)[1:], absent=[gone]), before=before)

    assert found.cards == (
        replace(before.cards[0], healthy=False, status="False", reason="Xid79", message="fell off the bus"),
        *before.cards[1:],
    )


def test_a_card_that_is_away_and_forgotten_is_told_no_more() -> None:
    assert len(told(node(cards(3)[1:]), before=told(node(cards(3)))).cards) == 2


def test_an_absent_device_that_was_never_told_as_a_card_is_none() -> None:
    slice = AbsentDevice("MIG-1", "metax", Health(State.UNHEALTHY, "xid-79"))

    assert len(told(node(cards(1), absent=[slice]), before=told(node(cards(1)))).cards) == 1


# Which cards


def test_a_slice_is_no_card_and_its_card_is_given_to_nobody_as_a_whole() -> None:
    whole = card(0)
    slice = card(1, parent=whole.uuid, slice=0)

    found = told(node([whole, slice, card(2)]))

    assert [(it.uuid, it.healthy, it.reason) for it in found.cards] == [
        (whole.uuid, False, "Sliced"),
        (card(2).uuid, True, ""),
    ]


def test_a_slice_that_was_unmade_cuts_its_card_no_more() -> None:
    unmade = replace(card(1, parent=card(0).uuid, slice=0), gone=True)

    assert [it.healthy for it in told(node([card(0), unmade])).cards] == [True]


def test_a_card_without_its_name_is_named_and_not_reported() -> None:
    found = told(node([card(0), card(1, nameless=True)]))

    assert [it.uuid for it in found.cards] == [card(0).uuid]
    assert found.left_out == ("card 1 of metax is not reported: it cannot tell its uuid",)


def test_more_cards_than_the_scheduler_can_count_are_left_out_by_name() -> None:
    found = told(node(cards(65)))

    assert [it.minor for it in found.cards] == list(range(MAX_MINOR + 1))
    assert [it.split()[0] for it in found.left_out] == [card(63).uuid, card(64).uuid]


# Minors


def test_a_card_without_a_minor_has_its_index() -> None:
    assert [it.minor for it in told(node([card(3, minor=None), card(5, minor=None)])).cards] == [3, 5]


def test_a_minor_that_two_cards_claim_is_given_to_one() -> None:
    found = told(node([card(0, minor=4), card(1, minor=4)]))

    assert [(it.minor, it.uuid) for it in found.cards] == [(1, card(1).uuid), (4, card(0).uuid)]


@pytest.mark.parametrize("wrong", [-1, 63, 255])
def test_a_minor_that_the_scheduler_can_not_hash_is_not_told(wrong: int) -> None:
    assert [it.minor for it in told(node([card(7, minor=wrong)])).cards] == [7]


def test_a_card_keeps_the_minor_that_it_had_when_its_index_moves() -> None:
    before = told(node([card(0, minor=None), card(1, minor=None)]))
    moved = card(0, minor=None, uuid=card(1).uuid)

    assert [it.minor for it in told(node([moved]), before=before).cards] == [1]


def test_what_the_driver_says_of_a_minor_beats_what_another_card_had() -> None:
    before = told(node([card(0, minor=None)]))

    found = told(node([card(0, minor=None), card(1, minor=0)]), before=before)

    assert {it.uuid: it.minor for it in found.cards} == {card(0).uuid: 1, card(1).uuid: 0}


# How they are


def health(it: ReportedCard) -> tuple[bool, str, str, str]:
    return it.healthy, it.status, it.reason, it.message


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (card(0), (True, "True", "", "")),
        (broken(0), (False, "False", "EccError", "2 uncorrectable errors")),
        (cordoned(card(0)), (False, "False", "Cordoned", "by ann: fan noise")),
        (cordoned(broken(0)), (False, "False", "EccError", "2 uncorrectable errors")),
        (
            card(0, health=Health(State.UNKNOWN, "not-watched", "no events")),
            (True, "Unknown", "NotWatched", "no events"),
        ),
        (lost(card(0), told_healthy=True), (True, "True", "", "")),
        (lost(card(0), told_healthy=False), (False, "Unknown", "LostContact", "it crashed")),
    ],
    ids=["healthy", "broken", "cordoned", "both", "nobody watches", "just lost", "lost for long"],
)
def test_health_is_what_the_kubelet_hears(status: object, expected: object) -> None:
    assert health(told(node([status])).cards[0]) == expected  # type: ignore[list-item]


def test_a_card_that_nobody_gets_as_a_whole_is_told_as_unhealthy_with_the_reason() -> None:
    found = told(node(cards(2)), withheld={card(1).uuid: "no resource names it"})

    assert [health(it) for it in found.cards] == [
        (True, "True", "", ""),
        (False, "False", "NotOffered", "no resource names it"),
    ]


def test_a_card_of_unknown_size_is_given_to_nobody() -> None:
    assert [(it.healthy, it.reason) for it in told(node([card(0, memory=0)])).cards] == [
        (False, "MemoryUnknown")
    ]


def test_a_sick_card_keeps_what_it_told_before() -> None:
    before = told(node(linked({(0, 1): 4}, 2)))
    fault = Fault("gone")
    blank = replace(broken(0).device, pci=None, numa=None, memory=0, model="", attributes={}, fault=fault)

    found = told(node([replace(broken(0), device=blank), card(1)]), before=before)

    assert replace(found.cards[0], healthy=True, status="True", reason="", message="") == before.cards[0]
    assert found.links == before.links
    assert (found.model, found.driver) == ("C500", "2.32.0")


def test_a_message_is_bounded_and_printable() -> None:
    message = told(node([broken(0, message="\x1b[2J" + "x" * 9000)])).cards[0].message

    assert (len(message), message.isprintable()) == (1024, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ECC error", "ECCError"),
        ("chip error", "ChipError"),
        ("xid-79", "Xid79"),
        ("79", "Fault79"),
        ("", "Unknown"),
        ("…", "Unknown"),
        ("Xid79", "Xid79"),
        ("x" * 5000, "X" + "x" * 127),
    ],
)
def test_a_reason_is_made_fit_for_the_crd(text: str, expected: str) -> None:
    assert reason(text) == expected


# What they are


def test_a_card_is_told_in_full() -> None:
    attributes = {
        "pcie-root": "pci0000:10",
        "driver-version": "2.32.0",
        "compute-capability": "9.0",
        "x": "/y",
    }

    assert told(node([card(0, attributes=attributes)])).cards == (
        ReportedCard(
            uuid="GPU-00000000-metax",
            minor=0,
            memory=64 * GIB,
            model="C500",
            numa=0,
            pcie="pci0000:10",
            pci="0000:10:00.0",
            labels={
                "xpu-agent.io/compute-capability": "9.0",
                "xpu-agent.io/driver-version": "2.32.0",
                "xpu-agent.io/model": "C500",
            },
        ),
    )


@pytest.mark.parametrize(
    ("vendor", "model", "expected"),
    [
        ("metax", "MXC500", "C500"),
        ("metax", "MXN100", "MXN100"),
        ("nvidia", "NVIDIA H100 80GB HBM3", "H100-80GB-HBM3"),
        ("nvidia", "Tesla T4", "Tesla-T4"),
        ("nvidia", "NVIDIA GeForce RTX 2080 Ti", "GeForce-RTX-2080-Ti"),
        ("enflame", "Enflame S60", "S60"),
        ("acme", "", ""),
        ("acme", "(broken)\n" + "x" * 99, "broken" + "x" * 57),
    ],
)
def test_a_model_is_told_as_koordinator_knows_it(vendor: str, model: str, expected: str) -> None:
    assert model_name(vendor, model) == expected


def test_a_vendor_is_told_as_koordinator_knows_it() -> None:
    assert [koordinator_vendor(it) for it in ("nvidia", "metax", "kunlun")] == ["nvidia", "metax", "baidu"]


def test_models_that_differ_are_told_by_card_alone() -> None:
    found = told(node([card(0), card(1, model="MXC550")]))

    assert (found.model, [it.model for it in found.cards]) == ("", ["C500", "MXC550"])


def test_a_machine_without_numa_nodes_has_one() -> None:
    assert [it.numa for it in told(node([card(0, numa=None), card(1, numa=None)])).cards] == [0, 0]


def test_a_card_that_tells_no_numa_node_among_others_that_do_has_none() -> None:
    assert [it.numa for it in told(node([card(0, numa=None), card(1, numa=1)])).cards] == [-1, 1]


def test_cards_that_do_not_tell_their_root_are_not_said_to_share_one() -> None:
    found = told(node([card(0, attributes={}), card(1, attributes={})]))

    assert [it.pcie for it in found.cards] == ["pci0000:10", "pci0000:11"]


# Links


def test_links_that_are_not_all_read_yet_change_nothing_of_what_was_told() -> None:
    all_read = linked({(0, 1): 4, (2, 3): 4}, 4)
    before = told(node(all_read))

    assert [told(node(cards(4)), before=it).links for it in (None, before)] == [(), before.links]
    assert told(node([*all_read[:2], *cards(4)[2:]]), before=before).links == before.links


def test_groups_of_cards_that_are_told_no_more_are_not_kept() -> None:
    before = told(node(linked({(0, 1): 4, (2, 3): 4}, 4)))

    assert [it.minors for it in told(node(cards(3)), before=before).links] == [(0, 1)]


def test_a_broken_card_stays_in_its_group() -> None:
    well = linked({(0, 1): 4}, 2)
    sick = replace(well[0], health=Health(State.UNHEALTHY, "hot"), told_healthy=False)

    assert told(node([sick, well[1]])).links == told(node(well)).links

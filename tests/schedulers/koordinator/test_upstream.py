"""Faults of Koordinator's own programs that reporting could trigger or copy, and does not.

koord-device-daemon writes files of its own, koordlet makes the Device of files, koord-manager makes the
Node's resources of the Device, koord-scheduler books cards by it.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from support.strategies import hostile_texts

from agent.core.model import Health, VendorState
from agent.scheduler_api.node_report import Report
from agent.schedulers.koordinator.device_infos_file import device_infos, report_in, unlisted
from agent.schedulers.koordinator.device_object import device
from agent.vendor_api.agent import State
from schedulers.koordinator.cards import NODE, NOW, UID, broken, card, cards, linked, node, report, written
from schedulers.koordinator.cards import told as heard
from schedulers.koordinator.koordlet import made, read, refused

GPUS = "scheduling.koordinator.sh/gpu-partitions"
STAMP = "2026-11-22T07:00:00Z"


def fed(found: Report) -> list[dict[str, object]]:
    """The entries that koordlet makes of our file, with a time."""
    devices = made(read([device_infos(found)]) or [])["devices"]
    return [
        it | {"conditions": [row | {"lastTransitionTime": STAMP} for row in it["conditions"]]}
        for it in devices
    ]


@given(hostile_texts)
def test_no_fault_has_a_reason_that_keeps_the_whole_device_from_being_written(reason: str) -> None:
    """The reasons `ECC error` and `chip error` do so: a broken card stays healthy for ever."""
    found = heard(node([card(0), broken(1, reason)]))

    for devices in (written(found)["spec"]["devices"], fed(found)):
        assert [refused(it) for it in devices] == ["", ""]
        assert [it["health"] for it in devices] == [True, False]


def test_no_card_is_without_a_minor_which_ends_scheduler_and_koordlet() -> None:
    nowhere = [card(index, minor=None, index=-1) for index in range(3)]

    assert [it["minor"] for it in written(heard(node(nowhere)))["spec"]["devices"]] == [0, 1, 2]
    assert [it["minor"] for it in fed(heard(node(nowhere)))] == [0, 1, 2]


def test_labels_and_annotations_of_others_are_not_erased() -> None:
    """koordlet replaces both every three seconds."""
    existing = written(heard(node(cards(1))))
    existing["metadata"]["labels"]["team"] = "a"
    existing["metadata"]["annotations"] = {"note": "b"}

    metadata = written(heard(node([broken(0)])), existing)["metadata"]

    assert (metadata["labels"]["team"], metadata["annotations"]) == ("a", {"note": "b"})


@pytest.mark.parametrize("state", [VendorState.STARTING, VendorState.FAILED, VendorState.UNAVAILABLE])
def test_a_restart_takes_no_card_from_the_node(state: VendorState) -> None:
    """koord-device-daemon removes its file when it ends, and the Device loses its cards until it is back."""
    before = report_in(device_infos(heard(node(cards(2)))))

    found = report(node(metax=state), before=before) or before

    assert found is not None
    assert [it.uuid for it in found.cards] == [it.uuid for it in cards(2)]


def test_a_vendor_has_the_name_by_which_the_scheduler_looks_for_its_adapter() -> None:
    """koord-device-daemon writes `kunlun`, the scheduler knows `baidu`."""
    assert heard(node(cards(1, "kunlun"))).vendor == "baidu"


def test_the_groups_of_cards_are_written_so_that_the_scheduler_reads_all_of_them() -> None:
    """The manual writes the score as text, which is no table at all, and a size twice, which loses one."""
    text = written(heard(node(linked({(0, 1): 1, (2, 3): 1}, 4))))["metadata"]["annotations"][GPUS]

    pairs = json.loads(text, object_pairs_hook=list)
    assert [size for size, _ in pairs] == ["2"]
    assert [dict(it)["minors"] for it in pairs[0][1]] == [[0, 1], [2, 3]]
    assert all(type(dict(it)["allocationScore"]) is int for it in pairs[0][1])


def test_a_new_driver_or_model_changes_a_card_so_that_the_node_gets_its_label() -> None:
    """koord-manager does not look at a Device whose labels alone are others."""
    existing = written(heard(node(cards(1))))

    for its in (card(0, attributes={"driver-version": "3.0"}), card(0, model="MXC550")):
        fresh = written(heard(node([its])), existing)
        assert fresh["metadata"]["labels"] != existing["metadata"]["labels"]
        assert fresh["spec"]["devices"] != existing["spec"]["devices"]


def test_one_card_of_many_that_fails_is_written_at_once() -> None:
    """koord-manager waits up to five minutes with what is a tenth of the node or less."""
    existing = written(heard(node(cards(32))))

    fresh = written(heard(node([*cards(31), broken(31)])), existing)

    assert [it["minor"] for it in fresh["spec"]["devices"] if not it["health"]] == [31]


def test_no_minor_is_one_that_koordlet_takes_for_zero() -> None:
    """What is no number becomes 0, without a word: the first card, twice."""
    strange = [card(0, minor=-3), card(1, minor=1 << 40), card(2, minor=0)]

    assert sorted(str(it["minor"]) for it in fed(heard(node(strange)))) == ["0", "1", "2"]


def test_no_file_is_an_empty_list_which_koordlet_takes_at_its_word() -> None:
    """What it cannot read leaves the cards as they are, an empty list takes them all."""
    found = heard(node(cards(1)))

    with pytest.raises(ValueError, match="without cards"):
        device_infos(unlisted(found, {"a": {it.uuid: it.minor for it in found.cards}}))


def test_all_groups_of_a_size_have_one_score_so_that_it_chooses_nothing() -> None:
    """The scheduler takes the least score first, and says that it takes the most."""
    mesh = {(left, right): 1 + (left + right) % 3 for left in range(8) for right in range(left + 1, 8)}
    text = written(heard(node(linked(mesh, 8))))["metadata"]["annotations"][GPUS]

    assert {it["allocationScore"] for groups in json.loads(text).values() for it in groups} == {1}


def test_a_device_that_says_all_of_it_is_not_written_again() -> None:
    """koordlet writes one with conditions every three seconds, as it compares their times."""
    unwatched = card(1, health=Health(State.UNKNOWN, "not-watched"))
    found = heard(node([card(0), unwatched, broken(2)]))
    existing = written(found)

    assert device(NODE, UID, replace(found, left_out=("another",)), existing, NOW + 3) is None

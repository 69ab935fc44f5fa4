"""Rules of the file for koordlet: it takes it, and makes of it what we would write ourselves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import hostile_texts

from agent.config import Config
from agent.scheduler_api.node_report import Report
from agent.schedulers.koordinator.device_infos_file import DIRECTORY, device_infos, report_in, unlisted
from agent.schedulers.koordinator.device_infos_file import cards as listed
from agent.schedulers.koordinator.gpu_partitions import parsed
from schedulers.koordinator.cards import GIB, RECORDED, broken, card, cards, linked, node, report, written
from schedulers.koordinator.cards import told as heard
from schedulers.koordinator.koordlet import made, read, refused
from schedulers.koordinator.nodes import snapshots

GPUS = "scheduling.koordinator.sh/gpu-partitions"
STAMP = "2026-11-22T07:00:00Z"


def test_the_configuration_s_directory_is_the_one_in_which_a_koordlet_looks() -> None:
    assert Config().report.device_infos_dir == DIRECTORY


def taken(*files: str) -> dict[str, Any]:
    """What koordlet makes of the files, which it takes."""
    entries = read(files)
    assert entries is not None
    return made(entries)


def test_a_card_is_written_as_koordlet_reads_it() -> None:
    sick = replace(broken(1), device=card(1, attributes={"pcie-root": "pci0000:3a"}).device)

    assert json.loads(device_infos(heard(node([sick])))) == [
        {
            "vendor": "metax",
            "model": "C500",
            "uuid": "GPU-00000001-metax",
            "minor": "1",
            "resources": {"gpu-core": "100", "gpu-memory": "64Gi"},
            "topology": {"socketID": "-1", "nodeID": "0", "pcieID": "pci0000:3a", "busID": "0000:11:00.0"},
            "status": {"healthy": False, "errCode": "EccError", "errMessage": "2 uncorrectable errors"},
        }
    ]


def test_links_are_written_for_each_group_that_a_card_is_in() -> None:
    entries = json.loads(device_infos(heard(node(linked({(0, 1): 2, (0, 2): 1, (1, 2): 1}, 3)))))

    assert [[it["peerMinor"] for it in entry["topology"]["p2pLinks"]] for entry in entries] == [
        ["1", "1,2"],
        ["0", "0,2"],
        ["0,1"],
    ]
    assert {it["type"] for it in entries[0]["topology"]["p2pLinks"]} == {"MetaXLink"}


@given(snapshots())
def test_koordlet_makes_of_our_file_what_we_would_write(snapshot: Any) -> None:
    """But for what a file cannot say: labels of cards, the driver, and that nobody knows how a card is."""
    found = report(snapshot)
    if found is None:
        return
    theirs, ours = taken(device_infos(found)), written(found)

    for its, mine in zip(theirs["devices"], ours["spec"]["devices"], strict=True):
        assert not refused(
            its | {"conditions": [it | {"lastTransitionTime": STAMP} for it in its["conditions"]]}
        )
        mine.pop("labels", None)
        if mine["conditions"][0]["status"] == "Unknown":
            mine.pop("conditions"), its.pop("conditions")
        else:
            mine["conditions"][0]["lastTransitionTime"] = "T"
        assert its == mine
    groups = (theirs["annotations"] or {}).get(GPUS, {})
    assert {(it.minors, it.type) for it in parsed(json.dumps(groups))} == {
        (it.minors, it.type) for it in found.links
    }


@given(snapshots())
def test_what_was_written_says_the_same_when_it_is_read(snapshot: Any) -> None:
    found = report(snapshot)
    if found is None:
        return
    text = device_infos(found)

    again = report(snapshot, before=report_in(text))

    assert again is not None
    assert device_infos(again) == text


def test_koordlet_takes_the_vendor_from_the_first_card_and_the_policy_with_it() -> None:
    labels = taken(device_infos(heard(node(linked({(0, 1): 1}, 2)))))["labels"]

    assert labels == {
        "node.koordinator.sh/gpu-vendor": "metax",
        "node.koordinator.sh/gpu-model": "C500",
        "node.koordinator.sh/gpu-partition-policy": "Prefer",
    }


# Files of others


@pytest.mark.parametrize(
    ("others", "written", "left_out"),
    [
        ({}, [0, 1, 2], []),
        ({"GPU-00000001-metax": 1}, [0, 2], ["another file lists it: 'ic-device'"]),
        ({"GPU-00000001-metax": 9}, [0, 2], ["another file lists it: 'ic-device'"]),
        ({"npu-1": 2}, [0, 1], ["another file has its minor 2 for npu-1: 'ic-device'"]),
        ({f"GPU-{n:08x}-metax": n for n in range(3)}, [], ["another file lists it: 'ic-device'"] * 3),
    ],
    ids=["none", "the same", "the same, other minor", "a stranger", "all"],
)
def test_what_another_file_lists_is_not_written_twice(
    others: dict[str, int], written: list[int], left_out: list[str]
) -> None:
    found = unlisted(heard(node(cards(3))), {"ic-device": others})

    assert [it.minor for it in found.cards] == written
    assert [it.partition(": ")[2] for it in found.left_out] == left_out


def test_groups_with_cards_of_another_file_are_not_written() -> None:
    found = unlisted(heard(node(linked({(0, 1): 1, (2, 3): 1}, 4))), {"other": {"GPU-00000000-metax": 0}})

    assert [it.minors for it in found.links] == [(2, 3)]


def test_beside_another_file_koordlet_counts_each_card_once() -> None:
    other = device_infos(heard(node(cards(2))))

    ours = device_infos(unlisted(heard(node(cards(4))), {"other": listed(other)}))

    assert [it["minor"] for it in taken(other, ours)["devices"]] == [0, 1, 2, 3]


# What is read


def why_not(text: str) -> str:
    """What is wrong with it; a text that is well fails."""
    with pytest.raises(ValueError, match=r"is|has") as raised:
        listed(text)
    return str(raised.value)


@pytest.mark.parametrize("case", [it for it in RECORDED if it["file"] is not None], ids=lambda it: it["case"])
def test_the_cards_of_a_recorded_file_are_those_that_koordlet_took(case: dict[str, Any]) -> None:
    text = json.dumps(case["file"])

    if "decode error" in case["case"]:
        assert why_not(text)
    else:
        assert listed(text) == {it["id"]: it["minor"] for it in case["device"]["spec"].get("devices", [])}


ENTRY: dict[str, Any] = {"uuid": "a", "minor": "1"}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (7, "entry 2 is no object"),
        ("a", "entry 2 is no object"),
        ([], "entry 2 is no object"),
        ({"minor": 1}, "entry 2: minor is no text"),
        ({"uuid": 1}, "entry 2: uuid is no text"),
        ({"resources": {"gpu-core": 100}}, "entry 2: resources.gpu-core is no text"),
        ({"resources": []}, "entry 2: resources is no object"),
        ({"topology": {"nodeID": 0}}, "entry 2: topology.nodeID is no text"),
        ({"topology": {"p2pLinks": {}}}, "entry 2: topology.p2pLinks is no list"),
        ({"topology": {"p2pLinks": [7]}}, "entry 2: a link of topology.p2pLinks is no object"),
        ({"topology": {"p2pLinks": [{"peerMinor": 1}]}}, "entry 2: topology.p2pLinks.peerMinor is no text"),
        ({"status": {"healthy": "true"}}, "entry 2: status.healthy is neither true nor false"),
        ({"status": {"errCode": 7}}, "entry 2: status.errCode is no text"),
    ],
)
def test_a_file_that_koordlet_can_not_decode_says_nothing_but_what_is_wrong(entry: Any, why: str) -> None:
    text = json.dumps([ENTRY, entry])

    assert (why_not(text), report_in(text)) == (why, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no JSON: Expecting value: line 1 column 1 (char 0)"),
        ("{}", "is no list of cards"),
        ("[", "is no JSON"),
        ("[{}", "is no JSON"),
        ("\x00", "is no JSON"),
        ("7", "is no list of cards"),
        ("[" * 99_999, "is nested too deeply"),
        (f"[{'9' * 9999}]", "is no JSON"),
    ],
    ids=lambda it: it[:8],
)
def test_a_text_that_is_no_list_says_nothing_but_what_it_is(text: str, why: str) -> None:
    assert why_not(text).startswith(why)
    assert report_in(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("null", {}),
        ("[]", {}),
        ('[{"uuid": "a", "minor": "1"}] and what follows', {"a": 1}),
        ('[{"uuid": "a", "minor": "x"}]', {"a": 0}),
        ('[{"uuid": "a", "minor": null, "status": null, "more": 7}]', {"a": 0}),
    ],
)
def test_a_file_is_read_as_koordlet_reads_it(text: str, expected: dict[str, int]) -> None:
    assert listed(text) == expected


@given(
    hostile_texts
    | st.lists(st.dictionaries(st.sampled_from(["uuid", "minor", "topology"]), st.text())).map(json.dumps)
)
def test_nothing_that_stands_in_a_file_stops_us(text: str) -> None:
    found = report_in(text)

    try:
        listed(text)
    except ValueError:
        assert found is None
    else:
        assert found is None or isinstance(found, Report)


def test_a_file_that_an_earlier_agent_wrote_is_remembered() -> None:
    before = heard(node(linked({(0, 1): 1}, 2)))

    found = report_in(device_infos(before))

    assert found is not None
    assert [(it.uuid, it.minor, it.memory, it.pcie) for it in found.cards] == [
        (it.uuid, it.minor, 64 * GIB, it.pcie) for it in before.cards
    ]
    assert (found.vendor, found.model, found.links) == ("metax", "C500", before.links)


def test_a_group_with_a_peer_that_is_no_minor_is_none() -> None:
    links = [{"peerMinor": it, "type": "P2P"} for it in ("1,x", "", "2")]
    found = report_in(json.dumps([{"uuid": "a", "minor": "0", "topology": {"p2pLinks": links}}]))

    assert found is not None
    assert [it.minors for it in found.links] == [(0, 2)]


def test_a_reason_that_the_crd_would_refuse_is_not_taken_over() -> None:
    case = next(it for it in RECORDED if "with a space" in it["case"])

    found = report_in(json.dumps(case["file"]))

    assert found is not None
    assert [it.reason for it in found.cards] == ["", "ECCError"]

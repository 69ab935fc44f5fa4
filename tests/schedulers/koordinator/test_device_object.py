"""Rules of the Device that we write: what koordlet would write, and nothing of others is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler_api.quantities import whole
from agent.schedulers.common.resource_names import quantity
from agent.schedulers.koordinator.device_object import device, report_in, without_cards
from schedulers.koordinator.cards import (
    GIB,
    NODE,
    NOW,
    RECORDED,
    UID,
    broken,
    card,
    cards,
    linked,
    node,
    report,
    written,
)
from schedulers.koordinator.cards import told as heard
from schedulers.koordinator.koordlet import refused
from schedulers.koordinator.nodes import snapshots

LATER = NOW + 3600
OWNER = {
    "apiVersion": "v1",
    "kind": "Node",
    "name": NODE,
    "uid": UID,
    "controller": True,
}
GPUS = "scheduling.koordinator.sh/gpu-partitions"
LABEL = "node.koordinator.sh/gpu-"

RDMA = {
    "type": "rdma",
    "id": "0000:09:00.0",
    "minor": 0,
    "health": True,
    "resources": {"koordinator.sh/rdma": "100"},
}
FPGA = {"type": "fpga", "id": "f", "minor": 1, "health": False}


def conditions(obj: dict[str, Any]) -> list[dict[str, Any]]:
    return [it["conditions"][0] for it in obj["spec"]["devices"]]


def changed(obj: dict[str, Any], metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """What somebody else made of it."""
    return {**obj, "metadata": {**obj["metadata"], **(metadata or {})}, "spec": {**obj["spec"], **spec}}


# What it says


def test_a_device_is_written_as_the_manual_for_metax_shows_it() -> None:
    attributes = {"pcie-root": "pci0000:3a", "driver-version": "2.32.0"}
    its = card(0, uuid="GPU-5d1c", pci="0000:38:00.0", numa=3, attributes=attributes)

    assert written(heard(node([its]))) == {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {
            "name": NODE,
            "labels": {
                f"{LABEL}vendor": "metax",
                f"{LABEL}model": "C500",
                f"{LABEL}driver-version": "2.32.0",
            },
            "ownerReferences": [OWNER],
        },
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": "GPU-5d1c",
                    "minor": 0,
                    "health": True,
                    "labels": {"xpu-agent.io/driver-version": "2.32.0", "xpu-agent.io/model": "C500"},
                    "resources": {
                        "koordinator.sh/gpu-core": "100",
                        "koordinator.sh/gpu-memory": "64Gi",
                        "koordinator.sh/gpu-memory-ratio": "100",
                    },
                    "topology": {
                        "socketID": -1,
                        "nodeID": 3,
                        "pcieID": "pci0000:3a",
                        "busID": "0000:38:00.0",
                    },
                    "conditions": [
                        {
                            "type": "Healthy",
                            "status": "True",
                            "reason": "DeviceHealthy",
                            "message": "device is healthy",
                            "lastTransitionTime": "2023-11-14T22:13:20Z",
                        }
                    ],
                }
            ]
        },
    }


#: What koordlet was told in a recorded case, as devices.
MESH = {(0, 1): 1, (0, 2): 1, (0, 3): 1, (1, 2): 1, (1, 3): 1, (2, 3): 1}
SAME = {
    "four healthy": [
        card(index, numa=index // 2, attributes={"pcie-root": f"pci0000:{0x10 + index // 2:02x}"})
        for index in range(4)
    ],
    "one broken": [
        card(0, numa=0),
        replace(broken(1, "EccError"), device=card(1, numa=0).device),
    ],
    "healthy again": [card(0, numa=0), card(1, numa=0)],
    "links": linked(MESH, 4, numa=0, attributes={"pcie-root": "pci0000:10"}),
    "pairs": linked({(0, 1): 1, (2, 3): 1}, 4, numa=0, attributes={"pcie-root": "pci0000:10"}),
}


@pytest.mark.parametrize("case", [it for it in RECORDED if it["case"] in SAME], ids=lambda it: it["case"])
def test_for_the_same_cards_koordlet_says_nothing_that_we_do_not(case: dict[str, Any]) -> None:
    """But for the model, which its file had as the library has it."""
    ours, theirs = written(heard(node(SAME[case["case"]]))), case["device"]

    for mine, its in zip(ours["spec"]["devices"], theirs["spec"]["devices"], strict=True):
        for condition in mine["conditions"]:
            condition["lastTransitionTime"] = "T"
        assert its.items() <= mine.items()
        assert mine.keys() - its.keys() == {"labels"}
    labels = theirs["metadata"]["labels"] | {f"{LABEL}model": "C500"}
    assert labels.items() <= ours["metadata"]["labels"].items()
    for key, text in (theirs["metadata"]["annotations"] or {}).items():
        table = json.loads(ours["metadata"]["annotations"][key])
        assert json.loads(text).items() <= table.items()


def test_labels_that_are_not_known_are_not_written_and_old_ones_go() -> None:
    existing = written(heard(node(cards(1))))

    fresh = written(heard(node([card(0), card(1, model="MXC550", attributes={})])), existing)

    assert fresh["metadata"]["labels"] == {f"{LABEL}vendor": "metax", f"{LABEL}driver-version": "2.32.0"}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (64 * GIB, "64Gi"),
        (81559 << 20, "81559Mi"),
        (85520809984 + 1024, "83516417Ki"),
        (1, "1"),
        (0, "0"),
        (1 << 40, "1Ti"),
    ],
)
def test_memory_is_written_as_apimachinery_writes_it(size: int, expected: str) -> None:
    assert quantity(size) == expected


@given(st.integers(0, 1 << 60))
def test_memory_is_told_to_the_byte(size: int) -> None:
    text = quantity(size)

    assert whole(text) == size or len(text) > 18


@given(snapshots())
def test_the_crd_takes_whatever_vendors_say(snapshot: Any) -> None:
    found = report(snapshot)
    if found is None:
        return
    obj = written(found)

    assert [refused(it) for it in obj["spec"]["devices"]] == [""] * len(found.cards)
    minors = [it["minor"] for it in obj["spec"]["devices"]]
    assert minors == sorted(set(minors))
    assert set(minors) <= set(range(63))


# When it is written


@given(snapshots())
def test_what_was_written_is_not_written_again(snapshot: Any) -> None:
    found = report(snapshot)
    if found is None:
        return
    existing = written(found)

    again = report(snapshot, before=report_in(existing))

    assert again == found
    assert device(NODE, UID, again, existing, LATER) is None


def test_a_transition_has_the_time_of_the_change_and_keeps_it() -> None:
    well = written(heard(node(cards(2))))
    sick = written(heard(node([card(0), broken(1)])), well, LATER)
    worse = written(heard(node([card(0), broken(1, "fire")])), sick, LATER + 60)

    times = [[it["lastTransitionTime"] for it in conditions(obj)] for obj in (well, sick, worse)]
    assert times[0] == ["2023-11-14T22:13:20Z"] * 2
    assert times[1] == times[2] == ["2023-11-14T22:13:20Z", "2023-11-14T23:13:20Z"]
    assert conditions(worse)[1]["reason"] == "Fire"


@pytest.mark.parametrize("key", ["labels", "annotations"])
def test_what_somebody_changed_of_ours_is_written_again(key: str) -> None:
    found = heard(node(linked({(0, 1): 1}, 2)))
    existing = written(found)

    assert written(found, changed(existing, {key: {}}))["metadata"][key] == existing["metadata"][key]


def test_a_device_that_is_being_deleted_is_left_alone() -> None:
    dying = {"metadata": {"name": NODE, "deletionTimestamp": "2026-11-22T07:00:00Z"}}

    assert device(NODE, UID, heard(node(cards(1))), dying, NOW) is None


def test_the_version_that_was_read_guards_what_is_put() -> None:
    existing = changed(written(heard(node(cards(1)))), {"resourceVersion": "7", "managedFields": [{}]})

    fresh = written(heard(node([broken(0)])), existing)

    assert fresh["metadata"]["resourceVersion"] == "7"
    assert "managedFields" not in fresh["metadata"]


# What is of others


def test_what_others_wrote_stays() -> None:
    existing = changed(
        written(heard(node(linked({(0, 1): 1}, 2)))),
        {
            "labels": {"team": "a", f"{LABEL}partition-policy": "Honor"},
            "annotations": {"note": "b"},
            "finalizers": ["c"],
        },
        devices=[RDMA, FPGA],
        other=1,
    )
    existing["status"] = {"allocations": []}

    fresh = written(heard(node(linked({(0, 1): 1}, 2))), existing)

    assert fresh["metadata"]["labels"].items() >= existing["metadata"]["labels"].items()
    assert fresh["metadata"]["annotations"].keys() == {"note", GPUS}
    assert fresh["metadata"]["finalizers"] == ["c"]
    assert (fresh["status"], fresh["spec"]["other"]) == ({"allocations": []}, 1)
    assert [it["type"] for it in fresh["spec"]["devices"]] == ["fpga", "gpu", "gpu", "rdma"]
    assert [it for it in fresh["spec"]["devices"] if it["type"] != "gpu"] == [FPGA, RDMA]


def test_what_others_added_to_our_cards_stays() -> None:
    existing = written(heard(node(cards(1))))
    added = existing["spec"]["devices"][0]
    added["labels"]["team"] = "a"
    added["moduleID"] = 3
    burnt = {
        "type": "Burnt",
        "status": "False",
        "reason": "No",
        "message": "",
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }
    added["conditions"].append(burnt)

    entry = written(heard(node([broken(0)])), existing)["spec"]["devices"][0]

    assert (entry["labels"]["team"], entry["moduleID"], entry["conditions"][1]) == ("a", 3, burnt)
    assert not entry["health"]


def test_cards_of_another_vendor_and_their_groups_are_replaced() -> None:
    existing = written(heard(node(linked({(0, 1): 1}, 2))))

    fresh = written(heard(node(cards(2, "enflame"))), existing)

    assert [it["id"] for it in fresh["spec"]["devices"]] == [it.uuid for it in cards(2, "enflame")]
    assert GPUS not in fresh["metadata"]["annotations"]
    assert f"{LABEL}partition-policy" not in fresh["metadata"]["labels"]


def test_groups_that_somebody_wrote_by_hand_stay_where_no_links_are_known() -> None:
    by_hand = {GPUS: '{"2":[{"minors":[0,1],"allocationScore":3}]}'}
    existing = changed(written(heard(node(cards(2)))), {"annotations": by_hand})

    assert written(heard(node([card(0), broken(1)])), existing)["metadata"]["annotations"] == by_hand


def test_groups_of_an_operator_stay_whatever_the_links_and_the_cards_are() -> None:
    by_hand = {GPUS: '{"1":[{"minors":[0]}],"2":[{"minors":[4,5]}]}'}
    found = heard(node(linked({(0, 1): 1}, 2)))
    of_others = changed(written(found), {"annotations": by_hand})
    fields: dict[str, Any] = {"f:metadata": {"f:annotations": {f"f:{GPUS}": {}}}}
    owned = [{"manager": "kubectl-edit", "operation": "Update", "fieldsV1": fields}]
    existing = changed(written(found), {"annotations": by_hand, "managedFields": owned})

    assert device(NODE, UID, found, existing, NOW) is None
    changed_ = device(NODE, UID, heard(node([broken(0)])), existing, NOW)
    assert changed_ is not None
    assert changed_["metadata"]["annotations"] == by_hand
    left = without_cards(changed(existing, devices=[RDMA]))
    assert left is not None
    assert left["metadata"]["annotations"] == by_hand
    assert device(NODE, UID, found, of_others, NOW) is not None


def test_groups_of_cards_that_are_told_no_more_go_though_no_links_are_known() -> None:
    by_hand = {GPUS: '{"2":[{"minors":[0,1]},{"minors":[2,3]}]}', "theirs": "1"}
    existing = changed(written(heard(node(cards(4)))), {"annotations": by_hand})

    fresh = written(heard(node(cards(2))), existing)

    assert fresh["metadata"]["annotations"] == {"theirs": "1"}


def test_the_same_groups_in_other_words_are_not_written_again() -> None:
    found = heard(node(linked({(0, 1): 1}, 2)))
    existing = written(found)
    words = json.dumps(json.loads(existing["metadata"]["annotations"][GPUS]), indent=1)

    assert device(NODE, UID, found, changed(existing, {"annotations": {GPUS: words}}), NOW) is None


# Who owns it


def owners(existing: list[Any], uid: str = UID) -> Any:
    found = heard(node(cards(1)))
    obj = changed(written(found), {"ownerReferences": existing})
    fresh = device(NODE, uid, found, obj, NOW)
    return (fresh or obj)["metadata"]["ownerReferences"]


def test_the_node_that_was_made_anew_owns_the_device_alone() -> None:
    assert owners([OWNER], "new") == [OWNER | {"uid": "new"}]
    assert owners([OWNER, OWNER | {"uid": "new"}], "new") == [OWNER | {"uid": "new"}]


def test_an_owner_that_is_there_is_not_written_again() -> None:
    theirs = OWNER | {"controller": False}

    assert owners([theirs]) == [theirs]


def test_another_owner_stays_and_the_device_has_one_controller() -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "1", "controller": True}

    assert owners([other]) == [other, OWNER | {"controller": False}]


def test_a_node_whose_uid_is_not_known_owns_nothing() -> None:
    assert owners([], "") == []
    assert owners([OWNER], "") == [OWNER]


# What is read of it

KEYS = st.sampled_from(
    "metadata spec devices labels annotations ownerReferences type id minor topology nodeID resources "
    f"conditions lastTransitionTime status reason {GPUS} {LABEL}vendor".split()
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda it: st.lists(it, max_size=3) | st.dictionaries(KEYS, it, max_size=6),
    max_leaves=30,
)
objects = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.dictionaries(KEYS, json_values) | json_values,
        "spec": st.fixed_dictionaries({"devices": st.lists(json_values | st.just(RDMA))}) | json_values,
    },
)


@given(objects)
def test_nothing_that_stands_in_a_device_stops_us(existing: dict[str, Any]) -> None:
    found = report(node(cards(2)), before=report_in(existing))

    assert found is not None
    assert len(written(found, existing)["spec"]["devices"]) >= 2


def test_no_device_says_nothing() -> None:
    assert report_in(None) is None
    assert report_in({"spec": {"devices": [RDMA]}}) is None


@pytest.mark.parametrize(
    "wrong",
    [{"id": ""}, {"id": 7}, {"minor": None}, {"minor": True}, {"minor": 63}, {"minor": -1}, {"minor": "1"}],
)
def test_what_can_be_no_card_is_left_out(wrong: dict[str, Any]) -> None:
    existing = written(heard(node(cards(2))))
    existing["spec"]["devices"][1].update(wrong)

    found = report_in(existing)

    assert found is not None
    assert [it.uuid for it in found.cards] == [card(0).uuid]


def test_of_two_cards_with_one_minor_the_first_is_read() -> None:
    existing = written(heard(node(cards(2))))
    existing["spec"]["devices"][1]["minor"] = 0

    assert [it.uuid for it in (report_in(existing) or heard(node(cards(2)))).cards] == [card(0).uuid]


def test_what_koordlet_wrote_is_understood() -> None:
    case = next(it for it in RECORDED if it["case"] == "one broken")

    found = report_in(case["device"])

    assert found is not None
    assert (found.vendor, found.model) == ("metax", "MXC500")
    assert [(it.minor, it.healthy, it.reason, it.memory) for it in found.cards] == [
        (0, True, "", 64 * GIB),
        (1, False, "EccError", 64 * GIB),
    ]


# When the cards are told no more


def test_of_a_device_with_our_cards_alone_nothing_is_left() -> None:
    assert without_cards(written(heard(node(cards(2))))) is None
    assert without_cards({}) is None


def test_devices_labels_and_annotations_of_others_are_all_that_is_left() -> None:
    snapshot = node(linked({(0, 1): 4}, 2))
    metadata = {"resourceVersion": "7", "labels": {"theirs": "1"}, "annotations": {"theirs": "2"}}
    theirs = changed({"metadata": {"name": NODE}, "spec": {}}, metadata, devices=[FPGA, RDMA])
    both = device(NODE, UID, heard(snapshot), theirs, NOW)
    assert both is not None
    assert GPUS in both["metadata"]["annotations"]

    left = without_cards(both)

    assert left is not None
    assert left["spec"] == {"devices": [FPGA, RDMA]}
    assert left["metadata"] == {**metadata, "name": NODE, "ownerReferences": [OWNER]}


def test_a_partition_policy_that_somebody_chose_is_left() -> None:
    policy = {"node.koordinator.sh/gpu-partition-policy": "Honor"}
    there = changed(written(heard(node(cards(1)))), {"labels": policy}, devices=[RDMA])

    assert (without_cards(there) or {})["metadata"]["labels"] == policy

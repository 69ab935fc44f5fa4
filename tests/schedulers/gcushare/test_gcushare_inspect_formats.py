"""What GCUShare's own tools read of a node: its manual's example, its scheduler's answers, and no error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.schedulers.gcushare.dialect_v4 import PROFILE, PROFILE_ID
from agent.schedulers.gcushare.inspect_formats import drs_format, slices_format, units_format
from agent.schedulers.gcushare.names import ResourceNames
from agent.schedulers.gcushare.plugin import FORMATS
from agent.vendor_api.agent import CardCount, ContainerShare, Device, Format, ListedPod, NodeListing, NotShown
from agent.vendors.enflame.agent.names import ENFLAME, Brand

RECORDED = Path(__file__).with_name("recorded_gcushare.json")
NAMES = ResourceNames.of(ENFLAME.terms)
NODE = "sse-lab-inspur-048"
#: Of the manual's pods: name, uid, when it was made (Unix and as written), card, units.
PODS = [
    ("gcushare-pod-1", "2713cdab-6ec7-40be-a0e6-bf144efb0098", 1662450043.0, "2022-09-06T07:40:43Z", 0, 4),
    ("gcushare-pod-2", "62b070a4-0c77-4371-adfa-b20b17e90657", 1662452889.0, "2022-09-06T08:28:09Z", 0, 8),
    ("gcushare-pod-3", "b2b0701d-9664-4763-a1eb-5892579bcb7a", 1662453232.0, "2022-09-06T08:33:52Z", 1, 12),
]


def cards(count: int) -> tuple[Device, ...]:
    return tuple(Device(f"GCU-{n}", count - 1 - n, minor=n) for n in range(count))


def holding(n: int, **more: Any) -> ContainerShare:
    name, uid, created, _, card, amount = PODS[n]
    holder = ListedPod("kube-system", name, uid, created, pending=False)
    return replace(ContainerShare(ENFLAME.memory, f"GCU-{card}", amount, holder, "pod-gcu-example"), **more)


def scene(
    *holdings: ContainerShare, count: int = 8, resource: str = ENFLAME.memory, size: int = 16
) -> NodeListing:
    listings = tuple(CardCount(resource, it.uuid, size) for it in cards(count))
    return NodeListing(NODE, cards(count), listings, holdings)


def first(picture: NodeListing, node: str = "", brand: Brand = ENFLAME) -> Any:
    return units_format(ResourceNames.of(brand.terms)).document(picture, node, {})


def fourth(picture: NodeListing, node: str = "", **query: str) -> Any:
    return slices_format(NAMES).document(picture, node, query)


def manuals(pods: int) -> dict[str, Any]:
    """The document that the manual prints once so many of its pods run."""
    devices = []
    for card in range(8):
        its: list[dict[str, Any]] = [
            {"name": name, "namespace": "kube-system", "uid": uid, "createTime": written, "usedGCU": amount}
            for name, uid, _, written, where, amount in PODS[:pods]
            if where == card
        ]
        used = sum(it["usedGCU"] for it in its)
        amounts = {"totalGCU": 16, "usedGCU": used, "availableGCU": 16 - used}
        devices.append({"id": card, **amounts, "pods": its})
    used = sum(int(it["usedGCU"]) for it in devices)
    amounts = {"totalGCU": 128, "usedGCU": used, "availableGCU": 128 - used}
    return {"nodes": [{"name": NODE, **amounts, "devices": devices}]}


@pytest.mark.parametrize("pods", [0, 1, 2, 3])
@pytest.mark.parametrize("node", ["", NODE])
def test_the_manuals_pods_give_the_manuals_document(pods: int, node: str) -> None:
    found = first(scene(*map(holding, range(pods))), node)

    assert json.dumps(found) == json.dumps(manuals(pods))  # the order of keys, too


def test_the_manual_counts_24_of_128_units_once_its_third_pod_runs() -> None:
    its = first(scene(*map(holding, range(3))))["nodes"][0]

    assert (its["totalGCU"], its["usedGCU"], its["availableGCU"]) == (128, 24, 104)


def test_b22_a_pod_that_is_reserved_and_has_nothing_yet_counts_and_breaks_nothing() -> None:
    waits = holding(1, allocated=False)

    assert first(scene(holding(0), waits)) == manuals(2)
    slices = replace(waits, resource=ENFLAME.shared, count=2)
    shown = fourth(scene(slices, resource=ENFLAME.shared, size=6), NODE)
    assert (shown["usedGCU"], shown["devices"]["0"]["pods"][0]["containers"]) == (
        2,
        {"pod-gcu-example": {"allocated": False, "request": 2}},
    )


def test_a_pods_containers_count_together() -> None:
    both = (holding(0), holding(0, container="other", count=3))

    device = first(scene(*both))["nodes"][0]["devices"][0]

    assert (device["usedGCU"], [it["usedGCU"] for it in device["pods"]]) == (7, [7])


def test_what_nobody_is_known_to_have_yet_is_used_and_no_pods() -> None:
    device = first(scene(holding(0, pod=None)))["nodes"][0]["devices"][0]

    assert (device["usedGCU"], device["pods"]) == (4, [])


def test_a_pod_of_which_no_server_tells_has_no_time() -> None:
    unknown = holding(0, pod=ListedPod("default", "p"))

    assert first(scene(unknown))["nodes"][0]["devices"][0]["pods"][0]["createTime"] is None


@pytest.mark.parametrize("held", [True, False])
def test_a_card_that_is_given_out_otherwise_is_left_out(held: bool) -> None:
    there = scene(*([holding(0, resource=ENFLAME.whole, count=1)] if held else []))
    listings = (replace(it, mode=ENFLAME.whole * (it.uuid == "GCU-0")) for it in there.counts)

    its = first(replace(there, counts=tuple(listings)))["nodes"][0]

    assert ([it["id"] for it in its["devices"]], its["totalGCU"]) == ([*range(1, 8)], 112)


def test_a_card_that_others_take_before_it_is_known_as_theirs_is_left_out_too() -> None:
    its = first(scene(holding(0, resource=ENFLAME.drs, count=3)))["nodes"][0]

    assert [it["id"] for it in its["devices"]] == [*range(1, 8)]


def test_more_than_there_is_leaves_nothing_and_never_less() -> None:
    device = first(scene(holding(0), holding(2, uuid="GCU-0"), holding(1)))["nodes"][0]["devices"][0]

    assert (device["usedGCU"], device["availableGCU"]) == (24, 0)


@pytest.mark.parametrize("picture", [scene(), NodeListing(NODE)])
def test_another_node_is_no_gcushare_node(picture: NodeListing) -> None:
    with pytest.raises(NotShown) as caught:
        first(picture, "other")

    assert caught.value.document == {"error": "node: other is not the gcushare node"}


def test_a_node_without_units_shows_no_node() -> None:
    assert first(NodeListing(NODE)) == {"nodes": []}
    with pytest.raises(NotShown):
        first(NodeListing(NODE), NODE)


def test_b25_who_sells_the_cards_by_another_name_is_read_by_it() -> None:
    zixiao = Brand("tencent.com", "zixiao")
    mine = scene(holding(0, resource=zixiao.memory), resource=zixiao.memory)

    assert first(mine, brand=zixiao) == manuals(1)


# The fourth generation


def test_slices_of_the_hardware_are_shown_as_its_scheduler_shows_them() -> None:
    recorded = next(
        it for it in json.loads(RECORDED.read_text())["scenes"] if it["scene"] == "drs and shared"
    )
    theirs = json.loads(recorded["inspect"]["inspect/node1?drs=true"])
    its: list[ContainerShare] = []
    for pod in sorted(theirs["devices"]["0"]["pods"], key=lambda it: it["creationTimestamp"]):
        created = {"drs3": 1795210957.0, "drs1x2": 1795210958.0}[pod["name"]]
        holder = ListedPod(pod["namespace"], pod["name"], pod["uid"], created)
        its += [
            ContainerShare(
                ENFLAME.drs,
                "GCU-0",
                said["request"],
                holder,
                container,
                allocated=False,
                parameters={PROFILE: said["profileName"], PROFILE_ID: said["profileID"]},
            )
            for container, said in pod["containers"].items()
        ]
    shared = ContainerShare(
        ENFLAME.shared, "GCU-1", 2, ListedPod("default", "shared2", "uid"), "a", allocated=False
    )
    listings = tuple(CardCount(name, it.uuid, 6) for name in (ENFLAME.drs, ENFLAME.shared) for it in cards(2))
    there = NodeListing("node1", cards(2), listings, (*its, shared))

    found = fourth(there, "node1", drs="true")

    # Theirs stand in the order of their names.
    theirs["devices"]["0"]["pods"].sort(key=lambda it: it["creationTimestamp"])
    assert json.dumps(found) == json.dumps(theirs)
    assert fourth(there, drs="true") == [theirs]
    assert [*fourth(there)[0]["devices"]] == ["1"]  # of which theirs is an error of the whole node
    assert [it.name for it in (slices_format(NAMES), drs_format(NAMES))] == ["gcushare", "gcushare-drs"]
    assert drs_format(NAMES).document(there, "", {}) == [theirs]


def test_a_slice_that_was_made_is_told_with_its_names() -> None:
    made = ContainerShare(
        ENFLAME.drs,
        "GCU-0",
        3,
        ListedPod("default", "p", "uid", 1778573037.0, pending=False),
        "c",
        parameters={PROFILE: "3g.20gb", PROFILE_ID: "1"},
        partitions=("2:7325501d-02bd-4da2-9289-24d8521736b9",),
    )

    pod = fourth(scene(made, resource=ENFLAME.drs, size=6), drs="true")[0]["devices"]["0"]["pods"][0]

    assert pod["phase"] == "Running"
    assert pod["containers"] == {
        "c": {
            "allocated": True,
            "request": 3,
            "profileID": "1",
            "profileName": "3g.20gb",
            "instanceID": "2",
            "instanceUUID": "7325501d-02bd-4da2-9289-24d8521736b9",
        }
    }


@pytest.mark.parametrize(
    ("node", "query", "document"),
    [
        ("", {"drs": "true"}, {"error": "the gcushare nodes not found"}),
        (NODE, {"drs": "true"}, {"name": NODE, "error": f"node: {NODE} is not the gcushare node"}),
        ("nosuch", {}, {"name": "nosuch", "error": 'nodes "nosuch" not found'}),
    ],
)
def test_what_is_not_there_is_told_as_its_scheduler_tells_it(
    node: str, query: dict[str, str], document: dict[str, str]
) -> None:
    with pytest.raises(NotShown) as caught:
        fourth(scene(resource=ENFLAME.shared), node, **query)

    assert caught.value.document == document


@pytest.mark.parametrize("format", [make(NAMES) for make in FORMATS.values()])
def test_formats_have_names_and_paths_of_their_own(format: Format) -> None:
    assert format.name.startswith("gcushare")
    assert format.path in ("", "/gcushare-scheduler/inspect")

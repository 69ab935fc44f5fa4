"""Pods of GCUShare's schedulers, and of HAMi: each is on the card that was chosen, and says so."""

from __future__ import annotations

import json

import pytest
from support import recorded_pods

from agent.testing.node_kubelet import Container, Pod

from .conftest import ONLY_ENFLAME
from .enflame import DRS, GB, GCU, MEMORY, SHARED, Enflame
from .gcushare import ASSIGNED, DOCUMENT_002, RECORDS, SCENES, GCUShare, first, fourth, offered
from .node import Node, one

pytestmark = ONLY_ENFLAME

DONE_OF_OLD = "enflame.com/gcu-device-assigned"
#: Scene to its cards, and the slices of each.
LAYOUTS = {
    "document 002: 8 cards of 16": (8, 16),
    "multi container": (2, 6),
    "best fit": (3, 6),
    "drs and shared": (2, 6),
}
#: The refused pods of the scenes that can come past the scheduler; they are refused here as well.
FORCED = ("p20", "more", "drs2")


# What was recorded


@pytest.mark.parametrize(("scene", "count"), [(it, LAYOUTS[it][0]) for it in SCENES], ids=list(SCENES))
async def test_the_recorded_pods_of_gcushare_are_on_the_cards_that_it_chose_and_say_so(
    gcushare: GCUShare, scene: str, count: int
) -> None:
    slices = LAYOUTS[scene][1]
    await gcushare.starts("gcushare-v4", offered(count, slices), sliceCount=slices)
    bound = [it for it in SCENES[scene] if it.annotations]
    pods = {it.name: gcushare.binds(it.pod, it.annotations) for it in bound}

    for it in bound:
        await gcushare.node.admit_pod(pods[it.name])

    for it in bound:
        await gcushare.is_on(pods[it.name], it.minor, *it.asking)
        await gcushare.records(pods[it.name], *it.asking)
    forced = [gcushare.binds(it.pod, {}) for it in SCENES[scene] if it.name in FORCED]
    for pod in forced:
        assert not (await gcushare.node.kubelet.admit(pod)).admitted
    await gcushare.is_told_again(pods[bound[0].name])
    for pod in forced:
        assert gcushare.read(pod) == {}


@pytest.mark.parametrize("count", [2])
async def test_the_slices_of_recorded_pods_are_made_on_their_card_and_written_down_with_their_uuids(
    gcushare: GCUShare,
) -> None:
    await gcushare.starts("gcushare-v4", offered(2))
    its = {it.name: it for it in SCENES["drs and shared"]}
    three, ones = (gcushare.binds(its[name].pod, its[name].annotations) for name in ("drs3", "drs1x2"))

    for pod in (three, ones):
        await gcushare.node.admit_pod(pod)

    records = [*(await gcushare.records(three, "a")).values()]
    records += (await gcushare.records(ones, "a", "b")).values()
    made = {it.uuid: it for it in gcushare.enflame.slices}
    assert [(it["profileName"], it["request"]) for it in records] == [
        ("3g.20gb", 3),
        ("1g.6gb", 1),
        ("1g.6gb", 1),
    ]
    assert {it["instanceUUID"] for it in records} == made.keys()
    for it in records:
        on_hardware = made[it["instanceUUID"]]
        assert (str(on_hardware.id), on_hardware.profile) == (it["instanceID"], it["profileName"])
        assert gcushare.enflame.minors[on_hardware.slot] == 0


@pytest.mark.parametrize("count", [8])
async def test_document_002s_pods_get_the_cards_of_its_examples(gcushare: GCUShare) -> None:
    """4 and 8 of 16 on one card; 12 on the next, though the first has 4 left; 20 on none."""
    gcushare.enflame.sized(*[16 * GB] * 8)
    await gcushare.starts("gcushare-v1", {GCU: 8, MEMORY: 128})

    for n, (name, (units, minor)) in enumerate(DOCUMENT_002.items()):
        pod = one(name, MEMORY, units, namespace="kube-system")
        gcushare.binds(pod, first(minor, units, n), "default-scheduler")
        await gcushare.node.admit_pod(pod)

        await gcushare.is_on(pod, minor)
        await gcushare.reads(pod, DONE_OF_OLD, "true")
    twenty = gcushare.binds(one("gcushare-pod-4", MEMORY, 20), {}, "default-scheduler")
    verdict = await gcushare.node.kubelet.admit(twenty)
    assert not verdict.admitted
    assert "insufficient GCU Memory in one gcu device" in verdict.message
    five = gcushare.binds(one("gcushare-pod-5", MEMORY, 4), first(2, 4, 4), "default-scheduler")
    await gcushare.is_told(five, DONE_OF_OLD)
    assert gcushare.read(twenty) == {}


@pytest.mark.parametrize("count", [8])
async def test_the_recorded_pods_of_koordinator_are_on_the_cards_that_it_chose(
    node: Node, enflame: Enflame
) -> None:
    """Whole cards and units of memory, of one node."""
    enflame.sized(*[48 * GB] * 8)
    enflame.numbered(*range(8))
    rules = [{"name": name, "placement": "auto"} for name in (GCU, MEMORY)]
    enflame.dialect = "gcushare-v1"
    node.configure(*rules)
    await node.start()
    await node.counts({GCU: (8, 8), MEMORY: (384, 384)})
    here = dict(zip(recorded_pods.devices("enf1"), enflame.uuids, strict=True))

    for case in recorded_pods.cases("enf1"):
        said = dict(case.annotations)
        for there, uuid in here.items():
            said = {key: text.replace(there, uuid) for key, text in said.items()}
        pod = Pod(case.name, tuple(Container(dict(its), name) for name, its in case.limits.items()))
        node.shows(pod, **said)
        await node.admit_pod(pod)
        minors = said["scheduling.koordinator.sh/gpu-minors"].split(",")
        assert await node.cards_of(pod, "a") == {enflame.named(it) for it in minors}, case.name


async def test_a_size_of_slices_that_the_hardware_does_not_make_is_refused_with_those_that_it_does(
    gcushare: GCUShare,
) -> None:
    """As its scheduler refuses it; this pod came past it."""
    await gcushare.starts("gcushare-v4", offered(4))

    verdict = await gcushare.node.kubelet.admit(gcushare.binds(one("drs2", DRS, 2), {}, "none"))

    assert not verdict.admitted
    assert "it can have 1g.6gb, 3g.20gb, 6g.40gb" in verdict.message
    assert gcushare.enflame.slices == []


# Several containers


async def test_containers_of_one_pod_are_on_its_card_and_the_last_one_says_it_for_all(
    gcushare: GCUShare,
) -> None:
    await gcushare.starts("gcushare-v1", {GCU: 4}, memoryUnit="1")
    containers = (Container({MEMORY: 2}, "a"), Container({}, "side"), Container({MEMORY: 3}, "b"))
    pod = gcushare.binds(Pod("three", containers), first(2, 5), "default-scheduler")

    await gcushare.node.admit_pod(pod)

    await gcushare.is_on(pod, 2, "a", "b")
    await gcushare.reads(pod, DONE_OF_OLD, "true")


async def test_a_pod_of_hami_up_to_2_8_is_on_the_card_of_its_place_and_told_in_its_words(
    gcushare: GCUShare,
) -> None:
    gcushare.enflame.numbered(0, 2, 5, 7)
    await gcushare.starts("hami", offered(4))
    said = {ASSIGNED: "false", f"{ASSIGNED}-time": "1795210908257059937", f"{ASSIGNED}-id": "2"}
    pod = gcushare.binds(one("old", SHARED, 3), said, "hami-scheduler")

    await gcushare.node.admit_pod(pod)

    await gcushare.is_on(pod, 5)
    await gcushare.reads(pod, ASSIGNED, "true")
    assert json.loads(gcushare.read(pod)[RECORDS]) == {"main": "true"}


async def test_a_pod_of_hami_as_it_is_now_is_told_as_gcushares_own(gcushare: GCUShare) -> None:
    await gcushare.starts("hami", offered(4))
    said = {**fourth(3, 3, main="3g.20gb:1"), f"{ASSIGNED}-id": "3"}
    pod = gcushare.binds(one("new", DRS, 3), said, "hami-scheduler")

    await gcushare.node.admit_pod(pod)

    await gcushare.is_on(pod, 3)
    records = await gcushare.records(pod, "main")
    assert [it.uuid for it in gcushare.enflame.slices] == [records["main"]["instanceUUID"]]


async def test_cards_that_are_sold_under_another_name_are_served_and_told_of_by_it(
    gcushare: GCUShare,
) -> None:
    ours = "tencent.com/shared-zixiao"
    await gcushare.starts("gcushare-v4", {ours: 24}, registerResource="tencent.com/zixiao")
    said = {
        key.replace("enflame.com", "tencent.com").replace("gcu", "zixiao"): text
        for key, text in fourth(1, 2).items()
    }
    pod = gcushare.binds(one("theirs", ours, 2), said)

    await gcushare.node.admit_pod(pod)

    await gcushare.is_on(pod, 1)
    await gcushare.reads(pod, "tencent.com/zixiao-assigned", "true")
    assert json.loads(gcushare.read(pod)[RECORDS]) == {"main": {"allocated": True}}


async def test_what_a_pods_containers_have_one_after_another_takes_its_room_once(gcushare: GCUShare) -> None:
    """The next pod is on the card that has the room for it, as its scheduler counts."""
    gcushare.enflame.sized(*[16 * GB] * 4)
    await gcushare.starts("gcushare-v1", {GCU: 4, MEMORY: 64})
    containers = (Container({MEMORY: 8}, "init", init=True), Container({MEMORY: 8}, "main"))
    first_, second = (
        gcushare.binds(Pod(name, containers), first(2, 8, n), "default-scheduler")
        for n, name in enumerate(("one", "two"))
    )

    for pod in (first_, second):
        await gcushare.node.admit_pod(pod)
        await gcushare.is_on(pod, 2)


async def test_its_scheduler_reads_that_a_card_has_its_slices_less_those_that_it_overlooks(
    gcushare: GCUShare,
) -> None:
    """Init containers count for nothing there: theirs are not added, and what they keep is not to be had."""
    await gcushare.starts("gcushare-v4", offered(4))
    alike = (Container({SHARED: 3}, "init", init=True), Container({SHARED: 3}, "main"))
    more = (Container({SHARED: 4}, "init", init=True), Container({SHARED: 1}, "main"))
    pods = [
        gcushare.binds(Pod("alike", alike), fourth(2, 3)),
        gcushare.binds(Pod("beside", (Container({SHARED: 3}, "main"),)), fourth(2, 3, 1)),
        gcushare.binds(Pod("more", more), fourth(1, 1, 2)),
    ]

    for pod in pods:
        await gcushare.node.admit_pod(pod)
        await gcushare.is_on(pod, 1 if pod.name == "more" else 2)

    await gcushare.slices({"0": 6, "1": 3, "2": 6, "3": 6})


async def test_the_card_of_a_pod_that_has_just_ended_is_the_next_pods_in_another_way(
    gcushare: GCUShare,
) -> None:
    """Its scheduler gives it away at once, shared or in slices; the next look at the kubelet is not due."""
    await gcushare.starts("gcushare-v4", offered(4))
    shared = gcushare.binds(one("shared", SHARED, 5), fourth(2, 5))
    await gcushare.is_told(shared)
    await gcushare.node.counts({DRS: (24, 18)})

    await gcushare.ends(shared)
    drs = gcushare.binds(one("drs", DRS, 3), fourth(2, 3, 1, main="3g.20gb:1"))
    await gcushare.is_told(drs)

    await gcushare.is_on(drs, 2)
    await gcushare.ends(drs)
    again = gcushare.binds(one("again", SHARED, 3), fourth(2, 3, 2))
    await gcushare.is_told(again)
    await gcushare.is_on(again, 2)


# Whatever comes between


async def test_a_pod_of_before_a_kill_is_told_of_after_it(gcushare: GCUShare) -> None:
    pod = gcushare.binds(one("drs", DRS, 1), fourth(2, 1, main="1g.6gb:0"))
    await gcushare.starts("gcushare-v4", offered(4))
    gcushare.api.hang()
    await gcushare.node.admit_pod(pod)
    await gcushare.process.until(lambda it: it["receipts"]["owed"] == 1)
    await gcushare.process.kill()
    gcushare.api.hang(False)

    await gcushare.begins()

    records = await gcushare.records(pod, "main")
    assert [it.uuid for it in gcushare.enflame.slices] == [records["main"]["instanceUUID"]]


async def test_a_slice_that_was_made_anew_is_the_one_that_its_pod_tells_of(gcushare: GCUShare) -> None:
    await gcushare.starts("gcushare-v4", offered(4))
    pod = gcushare.binds(one("drs", DRS, 1), fourth(2, 1, main="1g.6gb:0"))
    await gcushare.node.admit_pod(pod)
    before = await gcushare.records(pod, "main")
    gcushare.enflame.lose()

    await gcushare.node.start_of(pod)  # as after a reboot

    [made] = gcushare.enflame.slices
    assert made.uuid != before["main"]["instanceUUID"]
    await gcushare.tells(pod, instanceUUID=made.uuid, instanceID=str(made.id))


async def test_a_request_in_mib_on_a_node_that_counts_units_is_refused_saying_so(
    gcushare: GCUShare,
) -> None:
    await gcushare.starts("gcushare-v1", {GCU: 4})
    pod = gcushare.binds(one("mib", MEMORY, 12 * 1024), first(1, 12), "default-scheduler")

    verdict = await gcushare.node.kubelet.admit(pod)

    assert not verdict.admitted
    await gcushare.process.until(lambda it: not [one for one in it["allocations"] if one["state"] == "done"])
    units = gcushare.binds(one("units", MEMORY, 12), first(1, 12, 1), "default-scheduler")
    await gcushare.is_told(units, DONE_OF_OLD)
    assert gcushare.read(pod)[DONE_OF_OLD] == "false"

"""What Enflame's device plugin got wrong, bug by bug, on Enflame's cards; docs/peer-bugs.md lists all of it.

Those in its reading of sysfs, its tool and its health alone are in tests/vendors/enflame.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest

from agent.core.publishing.agent_status import AgentStatus
from agent.testing.node_kubelet import Container, Pod

from .conftest import ONLY_ENFLAME
from .enflame import DRS, GCU, SHARED, Enflame
from .gcushare import ASSIGNED, RECORDS, GCUShare, fourth, offered
from .node import Node, confirmed, in_use, one

pytestmark = ONLY_ENFLAME

SMALL, WHOLE = "1g.6gb:0", "6g.40gb:2"


@pytest.fixture
def count() -> int:
    return 3


async def served(node: Node, enflame: Enflame) -> None:
    enflame.dialect = "gcushare-v4"
    node.configure()
    await node.start()
    await node.counts(counted(3))


def counted(cards: int) -> dict[str, tuple[int, int]]:
    return {name: (count, count) for name, count in offered(cards).items()}


def registered(view: AgentStatus, times: int) -> bool:
    """Whether each resource has been registered so many times."""
    return {it.registrations for it in view.sessions.values()} == {times}


# Who asks


@pytest.mark.parametrize("resource", [SHARED, DRS])
async def test_b1_equal_pods_that_are_bound_in_another_order_than_they_were_placed_keep_their_cards(
    gcushare: GCUShare, resource: str
) -> None:
    """The kubelet hears of a pod when it is bound; the scheduler binds several at once."""
    await gcushare.starts("gcushare-v4", offered(3))
    record = {"main": SMALL} if resource == DRS else {}
    minors = (2, 0, 1)
    pods = [
        gcushare.binds(one(f"on-{minor}", resource, 1), fourth(minor, 1, -at, **record))
        for at, minor in enumerate(minors)
    ]

    for pod in pods:
        await gcushare.node.admit_pod(pod)

    for pod, minor in zip(pods, minors, strict=True):
        await gcushare.is_on(pod, minor)
        records = await gcushare.records(pod, "main")
        if resource == DRS:
            uuid = records["main"]["instanceUUID"]
            (made,) = (it for it in gcushare.enflame.slices if it.uuid == uuid)
            assert gcushare.enflame.minors[made.slot] == minor


@pytest.mark.parametrize("resource", [SHARED, DRS])
async def test_b1_equal_pods_of_which_the_kubelet_takes_another_first_have_a_card_each_and_are_told(
    gcushare: GCUShare, resource: str
) -> None:
    """Of each its record says that it has its share, which is so; the card stays its scheduler's word.

    A slice of the hardware is made on that card before its container starts.
    """
    await gcushare.starts("gcushare-v4", offered(3))
    record = {"main": WHOLE} if resource == DRS else {}
    pods = [
        gcushare.binds(one(f"on-{minor}", resource, 6), fourth(minor, 6, minor, **record))
        for minor in range(3)
    ]

    for pod in reversed(pods):
        await gcushare.node.admit_pod(pod)

    has = [await gcushare.node.cards_of(pod) for pod in pods]
    assert set().union(*has) == {*gcushare.enflame.uuids}
    moved = {pod.name for n, pod in enumerate(pods) if has[n] != {gcushare.enflame.named(str(n))}}
    await gcushare.process.until(lambda it: {one["pod"] for one in it["unheeded"]} == moved)
    assert not moved or resource == SHARED
    for minor, pod in enumerate(pods):
        await gcushare.records(pod, "main")
        assert gcushare.read(pod)[f"{ASSIGNED}-minor"] == str(minor)
        if resource == DRS:
            (made,) = (it for it in gcushare.enflame.slices if gcushare.enflame.minors[it.slot] == minor)
            assert {gcushare.enflame.uuids[made.slot]} == has[minor]
            await gcushare.tells(pod, instanceUUID=made.uuid)


async def test_b2_a_pod_that_bypassed_the_scheduler_takes_no_other_pods_record(gcushare: GCUShare) -> None:
    await gcushare.starts("gcushare-v4", offered(3))
    victim = gcushare.binds(one("victim", SHARED, 2), fourth(1, 2))
    past = gcushare.binds(one("past", SHARED, 2), {}, "default-scheduler")

    await gcushare.node.admit_pod(past)
    await gcushare.node.admit_pod(victim)

    await gcushare.is_on(victim, 1)
    await gcushare.records(victim, "main")
    assert gcushare.read(past) == {}


async def test_b3_a_request_that_is_refused_has_made_no_slice_and_said_nothing(gcushare: GCUShare) -> None:
    await gcushare.starts("gcushare-v4", offered(3))
    pod = gcushare.binds(one("odd", DRS, 3), fourth(1, 3, main="3g.20gb:2"))

    verdict = await gcushare.node.kubelet.admit(pod)
    await gcushare.is_told(gcushare.binds(one("next", SHARED, 1), fourth(0, 1)))

    assert not verdict.admitted
    assert "3g.20gb has number 1" in verdict.message
    assert (gcushare.enflame.slices, gcushare.enflame.stub.drs()) == ([], [])
    assert json.loads(gcushare.read(pod)[RECORDS])["main"]["allocated"] is False


async def test_b3_a_slice_whose_pod_can_not_be_written_to_is_neither_lost_nor_made_twice(
    gcushare: GCUShare,
) -> None:
    await gcushare.starts("gcushare-v4", offered(3))
    pod = gcushare.binds(one("unwritten", DRS, 1), fourth(1, 1, main=SMALL))
    gcushare.api.forbid("patch", "/api/v1/pods")

    await gcushare.node.admit_pod(pod)

    await gcushare.process.until(lambda it: "403" in it["receipts"]["error"])
    [made] = gcushare.enflame.slices
    gcushare.api.permit("patch", "/api/v1/pods")
    assert (await gcushare.records(pod, "main"))["main"]["instanceUUID"] == made.uuid
    assert gcushare.enflame.slices == [made]


async def test_b4_init_containers_and_sidecars_are_on_the_card_of_their_pod(gcushare: GCUShare) -> None:
    await gcushare.starts("gcushare-v4", offered(3))
    init, sidecar = (
        Container({SHARED: 2}, "prepare", init=True),
        Container({SHARED: 1}, "watch", init=True, restartable=True),
    )
    pod = gcushare.binds(Pod("of-three", (init, sidecar, Container({SHARED: 2}))), fourth(2, 2))

    await gcushare.node.admit_pod(pod)

    await gcushare.is_on(pod, 2)
    await gcushare.records(pod, "prepare", "watch", "main")


async def test_b5_equal_containers_have_each_their_own_slice_whatever_is_seen_of_their_pod(
    gcushare: GCUShare,
) -> None:
    containers = (Container({DRS: 1}, "left"), Container({DRS: 1}, "right"))
    pod = gcushare.binds(Pod("twins", containers), fourth(1, 2, left=SMALL, right=SMALL))
    await gcushare.starts("gcushare-v4", offered(3))
    gcushare.api.hang()  # what is seen of the pod stays as it was bound

    await gcushare.node.admit_pod(pod)
    gcushare.api.hang(False)

    records = await gcushare.records(pod, "left", "right")
    assert len({it["instanceUUID"] for it in records.values()}) == 2
    assert {it["instanceUUID"] for it in records.values()} == {it.uuid for it in gcushare.enflame.slices}


@pytest.mark.parametrize("count", [1])
async def test_b6_a_card_is_not_shared_and_sliced_at_once(node: Node, enflame: Enflame) -> None:
    enflame.dialect = "gcushare-v4"
    node.configure()
    await node.start()
    await node.counts(counted(1))

    pods = (one("shared", SHARED, 1), one("sliced", DRS, 1))
    verdicts = await asyncio.gather(*map(node.kubelet.admit, pods))

    assert sorted(it.admitted for it in verdicts) == [False, True]
    [has] = in_use(node.view)
    assert len(enflame.slices) == (has.resource == DRS)


async def test_b7_an_api_server_that_hangs_holds_up_no_pod_and_costs_none(gcushare: GCUShare) -> None:
    # Of different sizes: in which order equal ones are taken at once is another rule's.
    pods = [gcushare.binds(one(f"pod-{n}", SHARED, n + 1), fourth(n, n + 1, n)) for n in range(3)]
    await gcushare.starts("gcushare-v4", offered(3))
    gcushare.api.hang()

    await gcushare.node.admit_at_once(*pods)  # a kubelet of the tests gives up after seconds
    await gcushare.process.until(lambda it: it["receipts"]["owed"] == 3)
    gcushare.api.hang(False)

    for minor, pod in enumerate(pods):
        await gcushare.is_on(pod, minor)
        await gcushare.records(pod, "main")


# What annotations can do


@pytest.mark.parametrize(
    "said",
    [
        {f"{ASSIGNED}-index": "0 --drs off; touch {}"},
        {f"{ASSIGNED}-minor": "1; touch {}"},
        {RECORDS: '{"main":{"request":1,"profileName":"1g.6gb","profileID":"0; touch {}"}}'},
        {RECORDS: '{"main":{"request":1,"profileName":"1g.6gb$(touch {})","profileID":"0"}}'},
        {RECORDS: '{"main":{"request":1,"profileName":"1g.6gb","profileID":"0","instanceID":"`touch {}`"}}'},
    ],
    ids=["index", "minor", "profileID", "profileName", "instanceID"],
)
async def test_b8_no_annotation_runs_anything_and_none_is_handed_to_the_tool(
    gcushare: GCUShare, said: dict[str, str]
) -> None:
    touched = gcushare.node.root / "touched"
    hostile = {key: text.replace("{}", str(touched)) for key, text in said.items()}
    await gcushare.starts("gcushare-v4", offered(3))
    pod = gcushare.binds(one("hostile", DRS, 1), fourth(1, 1, main=SMALL) | hostile, "none")

    verdict = await gcushare.node.kubelet.admit(pod)
    if verdict.admitted:
        [made] = gcushare.enflame.slices
        assert made.profile == "1g.6gb"
        await gcushare.ends(pod)
        await gcushare.process.until(lambda it: {one["state"] for one in it["allocations"]} == {"released"})

    assert (gcushare.enflame.slices, gcushare.enflame.stub.drs()) == ([], [])
    assert not [it.name for it in gcushare.node.root.iterdir() if it == touched]


async def test_b8_a_pod_that_gives_itself_a_card_gets_none_that_has_no_room(gcushare: GCUShare) -> None:
    await gcushare.starts("gcushare-v4", offered(3))
    owner = gcushare.binds(one("owner", GCU, 1), {})
    await gcushare.node.admit_pod(owner)
    (taken,) = await gcushare.node.cards_of(owner)
    minor = gcushare.enflame.minors[gcushare.enflame.uuids.index(taken)]
    thief = gcushare.binds(one("thief", SHARED, 1), fourth(minor, 1))
    free = next(it for it in gcushare.enflame.minors if it != minor)

    verdict = await gcushare.node.kubelet.admit(thief)
    await gcushare.is_told(gcushare.binds(one("honest", SHARED, 1), fourth(free, 1)))

    assert not verdict.admitted
    assert gcushare.read(thief)[ASSIGNED] == "false"


@pytest.mark.parametrize("index", ["", " ", None])
async def test_b9_a_pod_without_an_index_leaves_every_other_card_as_it_is(
    gcushare: GCUShare, index: str | None
) -> None:
    theirs = gcushare.enflame.stub.make_instance(0)
    await gcushare.starts("gcushare-v4", {DRS: 18})
    said = fourth(gcushare.enflame.minors[1], 1, main=SMALL)
    said.pop(f"{ASSIGNED}-index")
    pod = gcushare.binds(
        one("nowhere", DRS, 1), said | ({} if index is None else {f"{ASSIGNED}-index": index})
    )

    await gcushare.node.admit_pod(pod)
    assert gcushare.enflame.stub.drs() == [0, 1]
    await gcushare.records(pod, "main")
    await gcushare.ends(pod)

    await gcushare.process.until(lambda it: {one["state"] for one in it["allocations"]} == {"released"})
    assert (gcushare.enflame.slices, gcushare.enflame.stub.drs()) == ([theirs], [0])


# Health and lists


async def test_b11_a_card_that_fails_while_the_api_server_is_away_costs_only_itself(
    gcushare: GCUShare,
) -> None:
    await gcushare.starts("gcushare-v4", offered(3))
    await gcushare.api.go_away()

    gcushare.enflame.fail(0)

    await gcushare.node.counts({GCU: (3, 2), SHARED: (18, 12), DRS: (18, 12)})
    gcushare.enflame.reset(0)
    await gcushare.node.counts(counted(3))
    await gcushare.node.admit("one", {SHARED: 1})


async def test_b12_what_a_card_became_while_nobody_listened_is_told_to_who_listens_next(
    node: Node, enflame: Enflame
) -> None:
    await served(node, enflame)
    enflame.fail(0)
    await node.counts({GCU: (3, 2)})
    enflame.fail(1)

    await node.kubelet.restart()

    await node.counts({GCU: (3, 1), SHARED: (18, 6), DRS: (18, 6)})
    for slot in (0, 1):
        enflame.reset(slot)
    await node.counts(counted(3))


async def test_b13_pods_that_come_and_go_at_once_are_all_served_and_a_failing_card_spoils_none(
    node: Node, enflame: Enflame
) -> None:
    await served(node, enflame)
    before = [await node.admit(f"before-{n}", {SHARED: 1}) for n in range(3)]
    await node.until(lambda it: confirmed(it, *before))
    pods = [one(f"pod-{n}", SHARED, 1) for n in range(6)]

    enflame.fail(2)
    await asyncio.gather(*(node.kubelet.delete(it.uid) for it in before))
    await node.admit_at_once(*pods)

    await node.until(lambda it: confirmed(it, *pods) and len(in_use(it)) == len(pods))
    assert len(node.view.sessions) == 3


async def test_b14_how_many_slices_a_shared_card_has_is_not_what_the_hardware_makes(
    node: Node, enflame: Enflame
) -> None:
    enflame.dialect, enflame.more = "gcushare-v4", {"sliceCount": 4}
    node.configure()
    await node.start()
    await node.counts({GCU: (3, 3), SHARED: (12, 12), DRS: (18, 18)})
    whole = await node.admit("whole", {SHARED: 4})
    await node.counts({GCU: (3, 2), SHARED: (12, 12), DRS: (18, 12)})
    (taken,) = await node.cards_of(whole)

    enflame.fail(enflame.uuids.index(taken))

    await node.counts({GCU: (3, 2), SHARED: (12, 8), DRS: (18, 12)})
    enflame.reset(enflame.uuids.index(taken))
    await node.counts({GCU: (3, 2), SHARED: (12, 12), DRS: (18, 12)})


# Lives


async def test_b16_a_kubelet_that_restarts_leaves_one_watcher_that_deletes_no_slice(
    node: Node, enflame: Enflame
) -> None:
    await served(node, enflame)
    pod = await node.admit("sliced", {DRS: 1})
    await node.until(lambda it: confirmed(it, pod))
    made = enflame.slices

    for restarts in range(1, 4):
        await node.kubelet.restart()
        # Every resource: the next restart would spare one of them the registration that it had not yet made.
        await node.until(partial(registered, times=1 + restarts))
        await node.counts({DRS: (18, 18)})

    await node.until(lambda it: confirmed(it, pod))
    assert enflame.slices == made
    assert registered(node.view, times=4)


async def test_b17_a_slice_that_nobody_owns_and_a_card_that_can_not_be_sliced_stop_nothing(
    node: Node, enflame: Enflame
) -> None:
    leaked = enflame.stub.make_instance(0)
    enflame.stub.virt(1, 0, "SRIOV")
    enflame.dialect = "gcushare-v4"
    node.configure()

    await node.start()

    await node.counts({GCU: (3, 2), SHARED: (18, 12), DRS: (12, 12)})
    pod = await node.admit("sliced", {DRS: 1})
    [made] = [it for it in enflame.slices if it != leaked]
    assert await node.cards_of(pod) == {enflame.uuids[made.slot]} != {enflame.uuids[1]}
    assert leaked in enflame.slices


@pytest.mark.parametrize("end", ["deleted", "finished"])
async def test_b18_slices_go_with_pods_that_ended_while_nobody_watched(gcushare: GCUShare, end: str) -> None:
    await gcushare.starts("gcushare-v4", offered(3))
    pod = gcushare.binds(one("short", DRS, 3), fourth(1, 3, main="3g.20gb:1"))
    await gcushare.node.admit_pod(pod)
    await gcushare.records(pod, "main")
    await gcushare.process.kill()
    kubelet = gcushare.node.kubelet
    await (kubelet.delete if end == "deleted" else kubelet.finish)(pod.uid)
    gcushare.api.delete_object("Pod", pod.name, pod.namespace)

    await gcushare.begins()

    await gcushare.process.until(lambda it: {one["state"] for one in it["allocations"]} == {"released"})
    assert (gcushare.enflame.slices, gcushare.enflame.stub.drs()) == ([], [])
    again = gcushare.binds(one("next", DRS, 6), fourth(1, 6, main="6g.40gb:2"))
    await gcushare.node.admit_pod(again)
    await gcushare.is_on(again, 1)


async def test_b19_the_end_of_a_pod_that_was_bound_and_never_came_is_nothing(gcushare: GCUShare) -> None:
    await gcushare.starts("gcushare-v4", offered(3))
    never = gcushare.binds(one("never", DRS, 1), fourth(1, 1, main=SMALL))
    gcushare.api.delete_object("Pod", never.name, never.namespace)

    pod = gcushare.binds(one("next", DRS, 1), fourth(1, 1, 1, main=SMALL))
    await gcushare.node.admit_pod(pod)

    await gcushare.is_on(pod, 1)
    await gcushare.records(pod, "main")
    assert len(gcushare.enflame.slices) == 1


async def test_b20_a_start_switches_no_card_on_or_off(node: Node, enflame: Enflame) -> None:
    enflame.stub.trace()
    await served(node, enflame)
    await node.stop()

    await node.start()
    await node.counts(counted(3))

    changes = {it: enflame.stub.calls(f"efsmi:{it}") for it in ("drs-on", "drs-off", "create", "destroy")}
    assert changes == dict.fromkeys(changes, 0)
    assert enflame.stub.calls("efsmi:table") > 0

"""Whole or nothing, written before answered, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from core.room import Room, heeding, promising
from core.scenes import LOW, ONE, SHARE, SLICE, UNCUT, WHOLE, bound, full_c5, held
from core.values import allocation, held_ids

from agent.core.allocation.answer_annotations import ALLOCATION, CARDS
from agent.core.allocation.container_edit_checks import UnusableEdits
from agent.core.errors import (
    AllocationError,
    GivenTwice,
    InOtherMode,
    InsufficientRoom,
    InvalidRequest,
    NotServable,
    PromisedElsewhere,
    RetiredResource,
    StillHeld,
    UnhealthyDevice,
    UnknownDevice,
    UnknownResource,
    VendorCrashed,
    VendorError,
)
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.core.reconciling.reconcile_rules import TAKEN_WITHIN
from agent.scheduler_api import Candidate, Cards, Claim, Dialect, PodContainer
from agent.vendor_api.agent import ContainerEdits


async def test_an_answer_is_recorded_before_it_is_given() -> None:
    room = Room()

    [answer] = await room.allocate(WHOLE, [["c0"]])

    [recorded] = room.ledger.all()
    assert recorded == Allocation(
        recorded.id, WHOLE, "acme", ("c0",), ("c0",), AllocationState.DONE, 1234.5, life="k1"
    )
    assert room.disk == (recorded,)
    assert room.log == ["save done"]
    assert answer.env == {"ACME": "c0"}


async def test_the_annotation_carries_the_allocations_id_beside_the_vendors_own() -> None:
    room = Room()

    [answer] = await room.allocate(WHOLE, [["c0"]])

    assert answer.annotations == {"acme.com/by": "acme", ALLOCATION: room.ledger.all()[0].id}


async def test_every_answer_has_an_id_of_its_own_also_for_the_same_ids() -> None:
    room = Room()

    answers = [await room.allocate(WHOLE, [["c0"], ["c0"]]) for _ in range(2)]

    ids = {edits.annotations[ALLOCATION] for answer in answers for edits in answer}
    assert ids == {it.id for it in room.ledger.all()}
    assert len(ids) == 4


async def test_devices_reach_the_vendor_distinct_and_in_the_order_of_the_request() -> None:
    room = Room()

    [cards] = await room.allocate(WHOLE, [["c1", "c0", "c1"]])
    [slices] = await room.allocate(SLICE, [["c2::3", "c2::0"]])

    assert cards.env == {"ACME": "c1,c0"}
    assert slices.env == {"ACME": "c2"}


async def test_an_id_named_twice_is_held_once() -> None:
    room = Room()

    await room.allocate(SLICE, [["c2::3", "c2::0", "c2::3"]])

    [recorded] = room.ledger.all()
    assert recorded.ids == ("c2::3", "c2::0")
    assert recorded.devices == ("c2", "c2")
    assert held_ids(room.ledger.usage()) == {SLICE: {"c2::3": "c2", "c2::0": "c2"}}


@pytest.mark.parametrize(
    ("resource", "containers", "error"),
    [
        pytest.param("acme.com/none", [["c0"]], UnknownResource, id="unknown resource"),
        pytest.param(WHOLE, [["c0"], ["c7"]], UnknownDevice, id="second container"),
        pytest.param(WHOLE, [["c0", "sick"]], UnhealthyDevice, id="unhealthy device"),
        pytest.param(WHOLE, [["c0"], []], InvalidRequest, id="container without devices"),
        pytest.param(ONE, [["c3::0", "c3::1"]], InvalidRequest, id="more replicas than one"),
        pytest.param(SLICE, [["c2::0"]], RetiredResource, id="resource that the config no longer has"),
    ],
)
async def test_a_request_that_is_not_admitted_leaves_no_trace(
    resource: str, containers: list[list[str]], error: type[AllocationError]
) -> None:
    room = Room(retired=frozenset({SLICE}))

    with pytest.raises(error):
        await room.allocate(resource, containers)

    assert (room.ledger.all(), room.log) == ((), [])
    assert await room.allocate(WHOLE, [["c1"]])


async def test_a_request_for_no_container_is_refused() -> None:
    room = Room()

    with pytest.raises(InvalidRequest) as refused:
        await room.allocate(WHOLE, [])

    assert str(refused.value) == (
        'invalid allocation request for "acme.com/whole": invalid request: it asks for no container'
    )
    assert (room.ledger.all(), room.log) == ((), [])


async def test_containers_are_answered_all_or_none() -> None:
    room = Room()

    with pytest.raises(ZeroDivisionError):
        await room.allocate(WHOLE, [["c0"], ["broken"], ["c1"]])

    assert room.ledger.all() == ()


async def test_edits_that_raise_leave_no_trace_on_the_hardware_either() -> None:
    room = Room(prepares=True)

    with pytest.raises(ZeroDivisionError):
        await room.allocate(WHOLE, [["c0"], ["broken"]])

    assert room.ledger.all() == ()
    assert room.log[-3:] == ["release c0", "release broken", "save"]
    assert room.disk == ()


@pytest.mark.parametrize("prepares", [False, True])
async def test_edits_that_the_kubelet_can_not_take_are_refused_before_anything_is_recorded(
    prepares: bool,
) -> None:
    answer = ContainerEdits(env={"A": cast("str", 1)})
    room = Room(prepares=prepares, edits=lambda devices, request: answer)

    with pytest.raises(UnusableEdits, match=r"^vendor acme: container edits: env\[A\] is 1; wanted: text$"):
        await room.allocate(WHOLE, [["c0"]])

    assert room.ledger.all() == room.disk == ()
    assert ("release c0" in room.log) is prepares


@pytest.mark.parametrize("prepares", [False, True])
async def test_a_disk_that_refuses_leaves_no_trace(prepares: bool) -> None:
    room = Room(prepares=prepares, save_fails=OSError("no space left on device"))

    with pytest.raises(OSError, match="no space"):
        await room.allocate(WHOLE, [["c0"]])

    assert room.ledger.all() == ()
    assert room.allocator.busy == set()
    assert not any(line.startswith("prepare") for line in room.log)


# Hardware


async def test_hardware_is_made_between_two_durable_writes() -> None:
    room = Room(prepares=True)

    [answer] = await room.allocate(SLICE, [["c2::1", "c2::0"]])

    assert room.log == [
        "save durable intent",
        "prepare c2::1,c2::0 on c2,c2",
        "save durable prepared",
        "save done",
    ]
    [recorded] = room.ledger.all()
    assert recorded.state is AllocationState.DONE
    assert recorded.partitions == ("slice-of-c2",)
    assert room.disk == (recorded,)
    assert answer.annotations[ALLOCATION] == recorded.id


async def test_the_vendor_is_told_of_its_hardware_when_a_container_gets_it() -> None:
    room = Room(
        prepares=True, edits=lambda devices, request: ContainerEdits(env={"OF": request.partitions[0]})
    )

    [answer] = await room.allocate(SLICE, [["c2::0"]])

    assert answer.env == {"OF": "slice-of-c2"}


async def test_an_answer_is_as_old_as_it_is_however_long_its_hardware_took() -> None:
    """Else what was read of the kubelet while it was made would tell that nobody ever used it."""
    room = Room(prepares=True)
    room.meanwhile = lambda ledger: setattr(room, "now", room.now + 90)

    await room.allocate(WHOLE, [["c0"]])

    [recorded] = room.ledger.all()
    assert recorded.since == 1234.5 + 90


async def test_a_prepare_that_fails_is_released_and_forgotten() -> None:
    room = Room(prepares=True, prepare_fails=VendorCrashed("acme", "signal 11"))

    with pytest.raises(VendorCrashed):
        await room.allocate(SLICE, [["c2::0"]])

    assert room.log == ["save durable intent", "prepare c2::0 on c2", "release c2::0", "save"]
    assert room.ledger.all() == room.disk == ()
    assert room.allocator.busy == set()


async def test_a_card_that_fails_while_its_slice_is_made_is_not_given_out() -> None:
    room = Room(prepares=True)
    room.meanwhile = lambda ledger: setattr(room, "failed", frozenset({"c2"}))

    with pytest.raises(UnhealthyDevice):
        await room.allocate(SLICE, [["c2::0"]])

    assert room.log[-2:] == ["release c2::0", "save"]
    assert room.ledger.all() == room.disk == ()


@pytest.mark.parametrize(
    ("error", "room", "served"),
    [
        (InsufficientRoom(WHOLE, "30 percent are free"), True, True),
        (InsufficientRoom(WHOLE, "30 percent are free"), False, False),
        (NotServable(WHOLE, "no such profile"), True, False),
        (VendorError("the driver is away"), True, False),
        (VendorCrashed("acme", "killed"), True, False),
    ],
    ids=["room-made", "none-made", "no-such", "away", "crash"],
)
async def test_a_request_without_room_is_tried_once_more_where_somebodys_is_over(
    error: Exception, room: bool, served: bool
) -> None:
    asked: list[str] = []

    async def make_room() -> bool:
        asked.append("room")
        there.prepare_fails = None if room else error
        return room

    there = Room(prepares=True, prepare_fails=error, make_room=make_room)

    if served:
        await there.allocate(WHOLE, [["c0"]])
    else:
        with pytest.raises(type(error)):
            await there.allocate(WHOLE, [["c0"]])

    assert [it.state for it in there.ledger.all()] == [AllocationState.DONE] * served
    assert asked == ["room"] * isinstance(error, InsufficientRoom)


async def test_a_prepare_that_is_cut_off_is_released_and_forgotten() -> None:
    room = Room(prepares=True, gate=asyncio.Event())

    limit = asyncio.timeout(None)
    room.meanwhile = lambda ledger: limit.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):
        async with limit:
            await room.allocate(SLICE, [["c2::0"]])

    assert room.log[-2:] == ["release c2::0", "save"]
    assert room.ledger.all() == room.disk == ()
    assert room.allocator.busy == set()


async def test_a_prepare_that_is_cut_off_again_and_again_is_released_all_the_same() -> None:
    room = Room(prepares=True, gate=asyncio.Event(), release_takes=0.01)
    call = asyncio.create_task(room.allocate(SLICE, [["c2::0"]]))
    for _ in range(20):
        await asyncio.sleep(0)
    assert room.log[-1].startswith("prepare")

    while not call.done():
        call.cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await room.emptied.wait()

    assert call.cancelled()
    assert room.log[-2:] == ["release c2::0", "save"]
    assert room.ledger.all() == ()
    assert room.allocator.busy == set()


async def test_hardware_that_can_not_be_removed_stays_known_and_the_first_error_is_told() -> None:
    first, second = VendorError("prepare failed"), VendorError("release failed")
    room = Room(prepares=True, prepare_fails=first, release_fails=second)

    with pytest.raises(VendorError, match="prepare failed"):
        await room.allocate(SLICE, [["c2::0"]])

    assert [it.state for it in room.ledger.all()] == [AllocationState.INTENT]
    assert room.allocator.busy == set()


async def test_what_is_being_answered_is_busy_until_it_is_answered() -> None:
    room = Room(prepares=True)
    busy: list[set[str]] = []
    room.meanwhile = lambda ledger: busy.append({*room.allocator.busy})

    await room.allocate(SLICE, [["c2::0"], ["c2::1"]])

    first, second = (it.id for it in room.ledger.all())
    assert busy == [{first}, {first, second}]
    assert room.allocator.busy == set()


async def test_what_happens_to_an_allocation_while_its_hardware_is_made_stays() -> None:
    """Reconcile may let it have another's claim."""
    room = Room(prepares=True)
    room.meanwhile = lambda ledger: ledger.record(replace(ledger.all()[0], claim=LOW))

    await room.allocate(SLICE, [["c2::0"]])

    [recorded] = room.ledger.all()
    assert (recorded.claim, recorded.state, recorded.partitions) == (
        LOW,
        AllocationState.DONE,
        ("slice-of-c2",),
    )


# One call after the other


async def test_a_card_that_fails_while_its_slice_is_made_is_given_to_nobody() -> None:
    room = Room(prepares=True)
    room.meanwhile = lambda ledger: setattr(room, "failed", frozenset({"c2"}))

    with pytest.raises(UnhealthyDevice):
        await room.allocate(SLICE, [["c2::0"]])

    assert "release c2::0" in room.log
    assert room.ledger.all() == room.disk == ()


async def test_calls_are_answered_one_at_a_time() -> None:
    room = Room(prepares=True, gate=asyncio.Event())

    calls = [asyncio.create_task(room.allocate(SLICE, [[f"c2::{n}"]])) for n in range(2)]
    for _ in range(20):
        await asyncio.sleep(0)
    waiting = list(room.log)
    assert room.gate is not None
    room.gate.set()
    await asyncio.gather(*calls)

    assert waiting == ["save durable intent", "prepare c2::0 on c2"]
    assert [it for it in room.log if it.startswith("prepare")] == [
        "prepare c2::0 on c2",
        "prepare c2::1 on c2",
    ]
    assert room.log.index("save done") < room.log.index("prepare c2::1 on c2")


async def test_a_refused_call_does_not_block_the_next() -> None:
    room = Room()

    with pytest.raises(AllocationError):
        await room.allocate(WHOLE, [["c9"]])

    assert await room.allocate(WHOLE, [["c0"]])


def test_of_a_resource_that_is_not_served_nothing_is_preferred() -> None:
    room = Room()

    assert room.allocator.preferred("acme.com/none", ["c0"], [], 1) == []
    assert room.allocator.preferred(WHOLE, ["c0", "c1"], ["c1"], 1) == ["c1"]


# What schedulers promised


async def test_hardware_is_made_as_the_pod_that_has_waited_longest_was_promised() -> None:
    room = promising()

    for n in range(3):
        await room.allocate(SLICE, [[f"c2::{n}"]])

    assert room.claimed() == ["low", "high", None]
    assert [it.parameters for it in room.requests] == [{"priority": "low"}, {"priority": "high"}, {}]


async def test_a_card_that_went_to_another_resource_a_moment_ago_is_refused_with_who_has_it() -> None:
    """The plan, and the kubelet, hear of it later."""
    room = Room(dynamic=True)
    await room.allocate(SLICE, [["c2::0"]])
    [first] = room.ledger.all()
    room.ledger.confirm(first.id, Owner("u", "main", "default", "early"))

    with pytest.raises(InOtherMode) as refused:
        await room.allocate(UNCUT, [["c2"]])

    assert str(refused.value) == (
        f'invalid allocation request for "{UNCUT}": card c2 is in-other-mode: it is given out as {SLICE} '
        "to default/early until that use ends; create the pod again to get another card"
    )
    assert room.ledger.all()[0].id == first.id
    assert len(room.ledger.all()) == 1
    await room.allocate(SLICE, [["c2::1"]])
    await room.allocate(UNCUT, [["c4"]])


async def test_the_id_of_a_pod_that_has_ended_gets_no_card_that_another_plugin_gave_meanwhile() -> None:
    """The plan lists it for its pod; the kubelet, who counts by resource alone, takes it for free."""
    room = Room()
    room.ledger.record(held("ended", "c0"))
    room.ledger.record(held("theirs", "x", resource="other.example/gpu", on=("c0",)))

    with pytest.raises(InOtherMode, match=r"given out as other\.example/gpu to default/theirs"):
        await room.allocate(WHOLE, [["c0"]])

    assert len(room.ledger.all()) == 2
    await room.allocate(WHOLE, [["c1"]])


@pytest.mark.parametrize(
    ("pods", "over", "asked"),
    [
        pytest.param((bound("next"),), True, True, id="gone"),
        pytest.param((bound("early", ended=True), bound("next")), True, True, id="ended"),
        pytest.param((bound("next"),), False, True, id="gone, and the kubelet shows it"),
        pytest.param((bound("early"), bound("next")), True, False, id="running"),
        pytest.param((), True, False, id="no pod is known"),
    ],
)
async def test_a_card_goes_over_to_another_resource_as_soon_as_the_pod_that_had_it_has_ended(
    pods: tuple[Candidate, ...], over: bool, asked: bool
) -> None:
    """A scheduler gives it away at once, before the ledger has let go of it."""
    tries: list[str] = []

    async def make_room() -> bool:
        tries.append("room")
        if over:
            room.ledger.release(first.id, "over", 1.0)
        return over

    room = Room(dynamic=True, candidates=pods, make_room=make_room)
    await room.allocate(SLICE, [["c2::0"]])
    [first] = room.ledger.all()
    room.ledger.confirm(first.id, Owner("uid-early", "main", "default", "early"))

    if over and asked:
        await room.allocate(UNCUT, [["c2"]])
    else:
        with pytest.raises(InOtherMode):
            await room.allocate(UNCUT, [["c2"]])

    assert tries == ["room"] * asked


async def test_a_share_that_a_scheduler_put_on_a_card_in_another_mode_is_refused() -> None:
    pod = Candidate("u", "default", "p", (PodContainer("main", {SHARE: 1}),))
    dialect = Dialect("d", lambda *_: [Claim("u", "default", "p", "main", ("c4",))])
    room = Room(dynamic=True, placement="auto", dialects=(dialect,), candidates=(pod,))
    room.ledger.record(allocation("x", ["c4"], resource=UNCUT))

    with pytest.raises(InOtherMode, match=f"given out as {UNCUT}"):
        await room.allocate(SHARE, [["c5::0"]])


async def test_a_share_is_refused_on_a_card_that_another_resource_has_through_its_slice() -> None:
    """The plan knows what is of one card; the ledger knows cards alone."""
    room = heeding()
    scene = room.scene()
    planned = scene.plan[SHARE]
    moded = (replace(it, healthy=False, mode=UNCUT) if it.uuid == "c4" else it for it in planned.cards)
    scene = replace(scene, plan={**scene.plan, SHARE: replace(planned, cards=tuple(moded))})
    room.allocator._scene = lambda: scene

    with pytest.raises(InOtherMode, match=f"card c4 is in-other-mode: it is given out as {UNCUT}"):
        await room.allocate(SHARE, [["c4::0"]])


@pytest.mark.parametrize(
    ("source", "age"), [(AllocationSource.CHECKPOINT, 0.0), (AllocationSource.ALLOCATE, TAKEN_WITHIN)]
)
async def test_an_answer_that_the_kubelet_asks_on_without_keeps_its_claim_from_nobody(
    source: AllocationSource, age: float
) -> None:
    """The agent was killed before the answer was out, or the kubelet had given up on it."""
    room = heeding(bound("web", "c5", resource=SHARE))
    claim = Claim("uid-web", "default", "web", "main", ("c5",))
    lost = allocation("lost", ["c5::0"], resource=SHARE, source=source, claim=claim)
    room.ledger.record(replace(lost, since=room.now - age, life=room.life))

    await room.allocate(SHARE, [["c4::0"]])

    [answered] = room.ledger.all()
    assert (answered.claim and answered.claim.pod, answered.cards) == ("web", ("c5",))


async def test_who_got_an_answer_without_a_promise_is_known_before_the_next_one_is_given() -> None:
    """It was promised another share, and counts with that."""
    early, late = bound("early", "c5", resource=SHARE), bound("late", "c4", resource=SHARE)
    room = heeding(replace(early, pending=False), late)
    room.ledger.record(allocation("plain", ["c4::0"], resource=SHARE, life=room.life))
    room.grants = [CheckpointAnswer("plain", "uid-early", "main", SHARE, ("c4::0",))]

    await room.allocate(SHARE, [["c4::1"]])

    known = room.ledger.get("plain")
    assert known is not None
    assert (known.owner, known.claim and known.claim.pod) == (Owner("uid-early", "main"), "early")


async def test_a_share_lies_on_the_chosen_card_whatever_its_ids_are() -> None:
    room = heeding(bound("web", "c5", resource=SHARE, count=2))

    [answer] = await room.allocate(SHARE, [["c4::0", "c4::1"]])

    assert answer.env["ACME"] == "c5"
    [recorded] = room.ledger.all()
    assert (recorded.devices, recorded.diverged, recorded.cards) == (("c4", "c4"), ("c5",), ("c5",))
    assert room.ledger.devices_in_use() == {"c4", "c5"}
    assert held_ids(room.ledger.usage()) == {SHARE: {"c4::0": "c4", "c4::1": "c4"}}


def record(room: Room, *allocations: Allocation) -> None:
    for one in allocations:
        room.ledger.record(one)


async def test_a_share_that_nobody_promised_lies_where_there_is_room() -> None:
    room = heeding()
    record(room, *full_c5())

    [answer] = await room.allocate(SHARE, [["c5::1"]])

    assert answer.env["ACME"] == answer.annotations[CARDS] == "c4"
    assert room.ledger.in_use()[-1].cards == ("c4",)


async def test_an_answer_names_the_cards_that_its_ids_do_not() -> None:
    room = heeding(bound("web", "c5", resource=SHARE))
    [moved] = await room.allocate(SHARE, [["c4::0"]])
    room.candidates = (bound("job", "c4", resource=SHARE),)
    [as_its_ids] = await room.allocate(SHARE, [["c4::1"]])

    assert moved.annotations[CARDS] == "c5"
    assert CARDS not in as_its_ids.annotations


async def test_an_init_container_and_the_one_after_it_share_the_room_of_their_id() -> None:
    pod = replace(
        bound("web", "c5", resource=SHARE),
        containers=(PodContainer("init", {SHARE: 1}, init=True), PodContainer("main", {SHARE: 1})),
    )

    def each(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
        return [Claim(pod.uid, pod.namespace, pod.name, it.name, ("c5",)) for it in pod.containers]

    room = Room(dialects=(Dialect("plain", each),), candidates=(pod,), placement="auto")
    room.ledger.record(allocation("a", ["c5::0"], resource=SHARE))

    for _ in ("init", "main"):
        await room.allocate(SHARE, [["c4::0"]])

    assert [it.cards for it in room.ledger.all()] == [("c5",)] * 3


async def test_an_id_that_is_given_anew_takes_no_room_twice() -> None:
    room = heeding(bound("web", "c5", resource=SHARE))
    record(room, *full_c5())

    await room.allocate(SHARE, [["c5::0"]])

    assert room.ledger.in_use()[-1].cards == ("c5",)


@pytest.mark.parametrize(
    ("since", "listed", "served"),
    [(1.0, "b", True), (1.0, "ab", False), (1200.0, "b", False)],
    ids=["gone", "there", "too young to be shown"],
)
async def test_the_room_of_a_pod_that_is_gone_is_there_before_it_is_released(
    since: float, listed: str, served: bool
) -> None:
    room = heeding(bound("web", "c5", resource=SHARE), listed=frozenset(listed))
    record(room, *full_c5(since))

    try:
        await room.allocate(SHARE, [["c5::1"]])
    except PromisedElsewhere:
        assert not served
    else:
        assert served
        assert room.ledger.in_use()[-1].cards == ("c5",)


async def test_the_room_of_a_pod_that_the_api_server_has_is_its_own_though_it_is_not_listed() -> None:
    """A kubelet that begins lists the pods that it has come to, the oldest first."""
    pods = (bound("web", "c5", resource=SHARE), *(bound(name, "c5", resource=SHARE) for name in "ab"))
    room = heeding(*pods)
    record(room, *full_c5(1.0))

    with pytest.raises(PromisedElsewhere):
        await room.allocate(SHARE, [["c5::1"]])


@pytest.mark.parametrize("over", [True, False])
async def test_the_room_of_a_pod_that_has_just_ended_is_there_once_the_kubelet_says_so_too(
    over: bool,
) -> None:
    """Its shares are on another card than their IDs, which the kubelet may give anew without them."""

    async def make_room() -> bool:
        for it in old if over else ():
            room.ledger.release(it.id, "over", 1.0)
        return over

    room = heeding(bound("web", "c5", resource=SHARE), make_room=make_room)
    old = full_c5(room.now)
    record(room, *old)

    if over:
        await room.allocate(SHARE, [["c5::1"]])
        assert room.ledger.in_use()[-1].cards == ("c5",)
    else:
        with pytest.raises(PromisedElsewhere):
            await room.allocate(SHARE, [["c5::1"]])


async def test_room_is_made_until_there_is_enough_for_what_asks() -> None:
    """What is let go of first may be another pod's, on another card."""
    calls: list[str] = []

    async def make_room() -> bool:
        calls.append("room")
        its = [it for it in (gone, *old) if room.ledger.get(it.id) in room.ledger.in_use()]
        for it in its[:1]:
            room.ledger.release(it.id, "over", 1.0)
        return bool(its)

    room = heeding(bound("web", "c5", resource=SHARE), make_room=make_room)
    old, gone = full_c5(room.now), held("gone", "c4::1", resource=SHARE, since=room.now)
    record(room, gone, *old)

    await room.allocate(SHARE, [["c5::1"]])

    assert room.ledger.in_use()[-1].cards == ("c5",)
    assert calls == ["room", "room"]


async def test_no_more_room_is_made_once_nothing_is_left_that_is_over() -> None:
    calls: list[str] = []

    async def make_room() -> bool:
        calls.append("room")
        room.ledger.release(gone.id, "over", 1.0)
        return True

    lives = [bound(it, resource=SHARE, pending=False) for it in ("a", "b")]
    room = heeding(bound("web", "c5", resource=SHARE), *lives, make_room=make_room)
    gone = held("gone", "c4::1", resource=SHARE, since=room.now)
    record(room, gone, *full_c5(room.now))

    with pytest.raises(PromisedElsewhere):
        await room.allocate(SHARE, [["c5::1"]])

    assert calls == ["room"]


async def test_room_is_made_for_so_long_only_that_the_pod_is_told_in_time_why_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def make_room() -> bool:
        await asyncio.sleep(0)
        return True

    monkeypatch.setattr("agent.daemon.allocation.made_hardware.ROOM_WITHIN", 0.05)
    room = heeding(bound("web", "c5", resource=SHARE), make_room=make_room)
    record(room, *full_c5(room.now))

    async with asyncio.timeout(30):
        with pytest.raises(PromisedElsewhere):
            await room.allocate(SHARE, [["c5::1"]])


@pytest.mark.parametrize(("listed", "named"), [({"old"}, True), (set(), False)])
async def test_a_pod_that_is_gone_is_not_named_as_who_has_the_card(listed: set[str], named: bool) -> None:
    room = heeding(bound("web", "c1"), listed=frozenset(listed))
    room.ledger.record(held("old", "c1"))

    with pytest.raises(PromisedElsewhere) as refused:
        await room.allocate(WHOLE, [["c0"]])

    assert ("c1 is held by default/old" in str(refused.value)) is named


# Pods that were refused


async def test_who_was_refused_waits_no_more_though_it_still_seems_to() -> None:
    room = heeding(bound("early", "c0", created=1), bound("late", "c1", created=2))

    with pytest.raises(PromisedElsewhere):
        await room.allocate(WHOLE, [["broken"]])

    assert room.allocator.preferred(WHOLE, ["c0", "c1"], [], 1) == ["c1"]
    await room.allocate(WHOLE, [["c1"]])
    assert room.claimed() == ["late"]


async def test_who_was_taken_for_refused_and_asks_is_served() -> None:
    room = heeding(bound("early", "c0", created=1))

    with pytest.raises(UnhealthyDevice):
        await room.allocate(WHOLE, [["sick"]])
    await room.allocate(WHOLE, [["c0"]])

    assert room.claimed() == ["early"]
    assert room.allocator.promises.refused == frozenset()


async def test_who_was_refused_and_is_gone_is_not_remembered() -> None:
    room = heeding(bound("early", "c0"))
    with pytest.raises(UnhealthyDevice):
        await room.allocate(WHOLE, [["sick"]])
    assert room.allocator.promises.refused == {"uid-early"}

    room.candidates = (bound("early", "c0", over=True),)

    assert room.allocator.promises.refused == frozenset()


async def test_who_was_taken_for_refused_is_so_no_more_once_the_status_of_another_says_that_it_was() -> None:
    early, late = bound("early", "c0"), bound("late", "c1")
    room = heeding(early, late)
    with pytest.raises(UnhealthyDevice) as refused:
        await room.allocate(WHOLE, [["sick"]])
    assert room.allocator.promises.refused == {"uid-early"}

    room.candidates = (early, replace(late, over=True, message=f"Pod was rejected: {refused.value}"))

    assert room.allocator.promises.refused == frozenset()


async def test_a_kubelet_that_begins_anew_asks_again_for_those_that_the_one_before_refused() -> None:
    room = heeding(bound("early", "c0"))
    with pytest.raises(UnhealthyDevice):
        await room.allocate(WHOLE, [["sick"]])

    room.life = "k2"

    assert room.allocator.promises.refused == frozenset()


# Devices that the kubelet gives out while a pod has them


GONE = Owner("uid-gone", "main", "default", "gone")


def holding(life: str) -> Room:
    """Card c0 is held since that life of the kubelet, and the kubelet lists its pod."""
    room = Room(listed=frozenset({"gone"}), life="k1")
    room.ledger.record(replace(held("gone", "c0", life=life), id="old"))
    return room


async def test_a_device_of_a_pod_that_the_kubelet_forgot_is_refused_by_the_pods_name() -> None:
    room = holding("k0")

    with pytest.raises(StillHeld) as refused:
        await room.allocate(WHOLE, [["c1"], ["c1", "c0"]])

    assert str(refused.value) == (
        'invalid allocation request for "acme.com/whole": device c0 is held by default/gone, and the '
        "kubelet has lost its record of that; delete that pod to free it"
    )
    assert [it.id for it in room.ledger.all()] == ["old"]
    assert room.allocator.busy == set()


async def test_a_device_that_the_kubelet_gives_out_again_is_given_where_it_lists_no_pod_with_it() -> None:
    room = holding("k1")

    await room.allocate(WHOLE, [["c0"]])

    assert room.log == ["list c0", "save done,done"]


@pytest.mark.parametrize(
    "change", [{"failed": frozenset({"c0"})}, {"retired": frozenset({WHOLE})}, {"left_out": True}]
)
async def test_what_changes_while_the_kubelet_is_asked_counts(change: dict[str, Any]) -> None:
    room = holding("k1")
    asked = room.pods_with_ids

    async def shown_with(
        resource: str, ids: Collection[str], owners: object
    ) -> Mapping[str, tuple[str, str]]:
        vars(room).update(change)
        return await asked(resource, ids, owners)

    room.pods_with_ids = shown_with  # type: ignore[method-assign]
    with pytest.raises((UnhealthyDevice, RetiredResource, UnknownResource)):
        await room.allocate(WHOLE, [["c0"]])

    assert [it.id for it in room.ledger.all()] == ["old"]


async def test_an_id_with_which_the_kubelet_lists_a_pod_is_not_given_to_another() -> None:
    """The kubelet lets go of an ID while its Allocate is under way, if PodResources is listed just then."""
    room = Room(shown={"c0": ("default", "first")})
    await room.allocate(WHOLE, [["c0"]])
    room.ledger.confirm(room.ledger.all()[0].id, Owner("uid-1", "main"), "k1")

    with pytest.raises(GivenTwice, match="device c0 is held by default/first, as the kubelet's PodResources"):
        await room.allocate(WHOLE, [["c0"]])

    assert len(room.ledger.all()) == 1


async def test_what_was_let_go_of_before_the_time_was_up_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much is over at once: the pass that let go of what was in the way is still busy with the rest."""

    async def make_room() -> bool:
        for it in old:
            room.ledger.release(it.id, "over", 1.0)
        return await asyncio.Event().wait()

    monkeypatch.setattr("agent.daemon.allocation.made_hardware.ROOM_WITHIN", 0.05)
    room = heeding(bound("web", "c5", resource=SHARE), make_room=make_room)
    old = full_c5(room.now)
    record(room, *old)

    await room.allocate(SHARE, [["c5::1"]])

    assert room.ledger.in_use()[-1].cards == ("c5",)

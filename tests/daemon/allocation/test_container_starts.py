"""A container starts with its hardware, as its pod was promised, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from core.room import Room, promising
from core.scenes import (
    HIGH,
    LIMITED,
    LOW,
    SHARE,
    SLICE,
    WHOLE,
    asked,
    asking,
    bound,
    edits,
    granted,
    held,
    limited,
)

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.allocation.ledger import Ledger
from agent.core.errors import LimitsUnread, NotAllocated, StartRefused, UnknownResource, VendorCrashed
from agent.core.model import Allocation, AllocationSource, Owner
from agent.scheduler_api import Candidate, Cards, Claim, Dialect
from agent.schedulers.common.grants import measured
from agent.vendor_api.agent import ContainerEdits, Device, Edits, Request

GONE = Owner("uid-gone", "main", "default", "gone")


async def started(room: Room, ids: Sequence[str]) -> list[Request]:
    """What the vendor is asked to make when a container with these IDs starts."""
    before = len(room.requests)
    await room.allocator.pre_start(SLICE, ids)
    return room.requests[before:]


async def sliced(room: Room, *containers: Sequence[str]) -> list[Allocation]:
    """Allocations of which the hardware is there; nothing is logged of it."""
    for ids in containers:
        await room.allocate(SLICE, [ids])
    room.log.clear()
    return list(room.ledger.all())


async def test_a_container_whose_hardware_is_there_starts_and_writes_nothing() -> None:
    room = Room(prepares=True)
    [made] = await sliced(room, ["c2::0"])
    room.grants = [granted(made, "web")]

    await room.allocator.pre_start(SLICE, ["c2::0"])

    assert room.log == ["prepare c2::0 on c2"]
    assert room.ledger.all() == (made,)


async def test_what_a_reboot_took_is_made_again_before_the_container_starts() -> None:
    room = Room(prepares=True)
    [made] = await sliced(room, ["c2::0"])
    room.grants = [granted(made, "web")]
    room.ledger.record(replace(made, partitions=("of-old",), reason="the reboot took of-old"))

    await room.allocator.pre_start(SLICE, ["c2::0"])

    assert room.ledger.all() == room.disk == (made,)
    assert room.log == ["prepare c2::0 on c2", "save durable done"]


async def test_a_vendor_that_makes_no_hardware_is_asked_nothing_when_a_container_starts() -> None:
    room = Room()

    await room.allocator.pre_start(WHOLE, ["never allocated"])

    assert room.log == []


async def test_a_container_with_ids_that_nobody_allocated_is_refused() -> None:
    room = Room(prepares=True)
    await sliced(room, ["c2::0"])

    with pytest.raises(NotAllocated) as refused:
        await room.allocator.pre_start(SLICE, ["c2::0", "c2::1"])
    with pytest.raises(UnknownResource):
        await room.allocator.pre_start("acme.com/none", ["c2::0"])

    assert str(refused.value) == (
        "acme.com/slice: no allocation on this node has c2::0, c2::1; "
        "if this stays so, delete the pod: its controller creates it again"
    )
    assert room.log == []


async def test_a_swap_is_mended_before_the_container_starts() -> None:
    room = promising()
    one, other = await sliced(room, ["c2::0"], ["c2::1"])
    room.grants = [granted(one, "high"), granted(other, "low")]

    requests = await started(room, ["c2::0"])

    assert requests == [Request(one.id, SLICE, ("c2::0",), {"priority": "high"})]
    assert room.log[-1] == "save durable done,done"
    assert room.disk == room.ledger.all()
    assert [it.claim for it in room.ledger.all()] == [HIGH, LOW]


async def test_an_init_container_and_the_app_container_on_its_ids_are_both_made() -> None:
    room = Room(prepares=True)
    init, app, _ = await sliced(room, ["c2::0", "c2::1"], ["c2::1", "c2::0"], ["c2::0"])
    room.grants = [granted(init, "web"), granted(app, "web")]

    assert [it.allocation for it in await started(room, ["c2::0", "c2::1"])] == [init.id, app.id]


async def test_where_the_kubelets_checkpoint_can_not_be_read_the_newest_is_made() -> None:
    room = Room(prepares=True)
    _, newer = await sliced(room, ["c2::0"], ["c2::0"])
    room.grants = None

    assert [it.allocation for it in await started(room, ["c2::0"])] == [newer.id]


async def test_a_container_is_not_started_without_its_hardware() -> None:
    room = Room(prepares=True)
    [made] = await sliced(room, ["c2::0"])
    room.prepare_fails = VendorCrashed("acme", "signal 11")

    with pytest.raises(VendorCrashed):
        await room.allocator.pre_start(SLICE, ["c2::0"])

    assert room.ledger.all() == (made,)
    assert room.allocator.busy == set()


async def test_what_starts_is_busy_and_keeps_what_happens_to_it_meanwhile() -> None:
    room = Room(prepares=True)
    [made] = await sliced(room, ["c2::0"])
    busy: list[set[str]] = []

    def confirmed(ledger: Ledger) -> None:
        busy.append({*room.allocator.busy})
        ledger.confirm(made.id, GONE, "k2")

    room.meanwhile = confirmed
    await room.allocator.pre_start(SLICE, ["c2::0"])

    assert busy == [{made.id}]
    assert room.allocator.busy == set()
    assert room.ledger.all() == (replace(made, owner=GONE, life="k2"),)


async def test_a_start_brings_nothing_back_that_was_released_meanwhile() -> None:
    room = Room(prepares=True)
    [made] = await sliced(room, ["c2::0"])
    room.meanwhile = lambda ledger: ledger.release(made.id, "pod gone", 2.0)

    await room.allocator.pre_start(SLICE, ["c2::0"])

    assert tuple(room.ledger.in_use()) == ()


async def test_a_share_that_was_read_back_is_made_as_it_was_answered_until_its_claim_is_known() -> None:
    room = Room(prepares=True, dialects=(Dialect("plain", limited),), placement="auto")
    read_back = held("high", "c4::0", resource=SHARE, source=AllocationSource.KUBELET)
    room.ledger.record(replace(read_back, handed=LIMITED["low"]))

    await room.allocator.pre_start(SHARE, ["c4::0"])
    room.candidates = (bound("high", resource=SHARE),)
    room.grants = [granted(read_back, "high")]
    await room.allocator.pre_start(SHARE, ["c4::0"])

    assert [it.parameters for it in room.requests] == [LIMITED["low"], LIMITED["high"]]


async def test_a_share_that_another_plugin_answered_is_not_made_when_its_container_starts() -> None:
    room = Room(prepares=True)
    room.ledger.record(replace(held("old", "c4::0", resource=SHARE), id="kubelet-old"))

    await room.allocator.pre_start(SHARE, ["c4::0"])

    assert (room.requests, room.log) == ([], [])


async def test_a_container_whose_allocation_is_being_released_is_not_started() -> None:
    room = Room(prepares=True)
    [made] = await sliced(room, ["c2::0"])
    room.allocator.busy.add(made.id)

    with pytest.raises(NotAllocated):
        await room.allocator.pre_start(SLICE, ["c2::0"])

    assert room.log == []
    assert room.allocator.busy == {made.id}


# What a pod's own limits ask for


def by_limits(*pods: Candidate, **more: Any) -> Room:
    """A room where pods say themselves how much of a card they are to have."""
    return Room(prepares=True, candidates=pods, placement="auto", by_limits=True, **more)


async def shared(room: Room, *ids: str) -> list[Allocation]:
    for one in ids:
        await room.allocate(SHARE, [[one]])
    return list(room.ledger.all())


def lying(room: Room) -> list[tuple[str, int]]:
    """The slices, in the order of their allocations."""
    return [room.lies[it.id] for it in room.ledger.all() if it.id in room.lies]


async def test_a_container_of_a_pod_that_is_not_known_yet_is_not_started() -> None:
    room = by_limits()
    [made] = await shared(room, "c4::0")
    room.grants = [granted(made, "web")]

    with pytest.raises(LimitsUnread, match=r"the limits of container main are not known: .*\(uid-web\)"):
        await room.allocator.pre_start(SHARE, ["c4::0"])

    room.candidates = (asking("web", 40),)
    await room.allocator.pre_start(SHARE, ["c4::0"])
    assert lying(room) == [("c4", 40)]


async def test_where_no_pod_is_ever_seen_a_container_starts_with_what_is_set() -> None:
    room = by_limits(unseen="agent.watchPods is false")
    [made] = await shared(room, "c4::0")
    room.grants = [granted(made, "web")]

    await room.allocator.pre_start(SHARE, ["c4::0"])

    assert lying(room) == [("c4", 10)]


async def test_a_container_without_room_on_its_card_is_not_started_and_its_pod_is_named() -> None:
    asked: list[str] = []

    async def make_room() -> bool:
        asked.append("make room")
        return False

    room = by_limits(asking("big", 80), make_room=make_room)
    big, *_ = await shared(room, "c4::0")
    room.candidates = (asking("big", 80, pending=False),)
    _, late = await shared(room, "c4::1")
    room.ledger.record(replace(late, diverged=()))  # as where it was asked for with nobody known
    room.grants = [granted(big, "big"), granted(late, "late")]
    room.candidates = (asking("big", 80, pending=False), asking("late", 30))

    with pytest.raises(StartRefused) as refused:
        await room.allocator.pre_start(SHARE, ["c4::1"])

    assert str(refused.value) == (
        "acme.com/share: container main of default/late cannot start on the card that the pod was admitted "
        "to: 30 percent are too many for c4; delete the pod: its controller creates it again"
    )
    assert (refused.value.uid, refused.value.pod) == ("uid-late", "late")
    assert asked == ["make room"]
    assert room.allocator.busy == set()


async def test_a_start_has_the_room_that_a_claim_that_changed_hands_leaves_beside() -> None:
    """On one card, which both fill: each has the other's slice, and the smaller one's starts first."""
    room = by_limits(asking("large", 90), asking("small", 10, created=1))
    one, other = await shared(room, "c4::0", "c4::1")
    assert lying(room) == [("c4", 90), ("c4", 10)]
    room.grants = [granted(one, "small"), granted(other, "large")]

    await room.allocator.pre_start(SHARE, ["c4::1"])

    assert lying(room) == [("c4", 10), ("c4", 90)]


async def test_no_pod_is_refused_for_what_the_one_before_it_asks_for() -> None:
    """The first one fits nowhere, and was taken for the second one: the kubelet says whose the answer was."""
    room = by_limits(asking("huge", 110), asking("small", 10, created=1))
    [first] = await shared(room, "c4::0")
    assert room.claimed() == ["small"]
    room.grants = [granted(first, "huge")]

    await room.allocate(SHARE, [["c4::1"]])

    assert room.claimed() == ["huge", "small"]


async def test_no_pod_is_refused_for_what_one_asks_for_that_was_not_known_when_it_was_answered() -> None:
    """The next one is not known yet, either: the first seems to ask again."""
    room = by_limits()
    [first] = await shared(room, "c4::0")
    room.candidates = (asking("huge", 110),)
    room.grants = [granted(first, "huge")]

    await room.allocate(SHARE, [["c4::1"]])

    assert room.claimed() == ["huge", None]


async def test_a_pod_that_fits_is_not_refused_beside_one_that_does_not() -> None:
    """Where no scheduler chooses cards, owners are read only once the hardware has refused a slice."""
    own = (Dialect("own", asked),)
    pods = (asking("small", 40), asking("large", 70, created=1))
    room = Room(prepares=True, by_limits=True, placement="local", dialects=own, candidates=pods)
    [first] = await shared(room, "c4::0")
    assert room.claimed() == ["small"]
    room.grants = [granted(first, "large")]

    await room.allocate(SHARE, [["c4::1"]])

    assert room.claimed() == ["large", "small"]


# Hardware that lies elsewhere until its container starts


def by_name(devices: Sequence[Device], request: Request) -> ContainerEdits:
    return ContainerEdits(cdi_devices=(f"acme.com/slice={request.allocation}",))


def halves(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    """A dialect of pods that are called by their card and by how much they get of it: `c4-60`."""
    card, core = pod.name.split("-")
    return [Claim(pod.uid, pod.namespace, pod.name, "main", (card,), {"core": core})]


def of_one_second(*names: str, container_edits: Edits = by_name) -> Room:
    pods = tuple(bound(name, resource=SHARE, created=7.0) for name in names)
    dialects = (Dialect("halves", halves, measure=measured),)
    return Room(prepares=True, dialects=dialects, candidates=pods, placement="auto", edits=container_edits)


async def asks(room: Room, pod: str, device_id: str) -> Allocation:
    """The pod's allocation, which the kubelet has written down by the time that it asks for the next."""
    [answer] = await room.allocate(SHARE, [[device_id]])
    made = room.ledger.get(answer.annotations[ALLOCATION])
    assert made is not None
    room.grants = [*(room.grants or ()), granted(made, pod)]
    return made


async def test_hardware_that_nothing_uses_makes_way_for_whom_the_card_was_chosen() -> None:
    room = of_one_second("c4-60", "c5-30")

    early = await asks(room, "c5-30", "c4::0")  # which was taken for the other's
    assert room.log[-3:-1] == ["prepare c4::0 on c4", "save durable prepared"]
    late = await asks(room, "c4-60", "c4::1")

    assert "release c4::0" in room.log
    its = {it.claim.pod: (it.id, it.cards) for it in room.ledger.all() if it.claim}
    assert its == {"c5-30": (early.id, ("c5",)), "c4-60": (late.id, ("c4",))}
    room.log.clear()
    await room.allocator.pre_start(SHARE, ["c4::0"])
    assert room.log == ["prepare c4::0 on c5", "save durable done,done"]
    assert room.requests[-1].parameters == {"core": "30"}


async def test_hardware_of_another_size_on_the_same_card_makes_way_too() -> None:
    room = of_one_second("c4-30", "c4-70")

    await asks(room, "c4-70", "c4::0")
    await asks(room, "c4-30", "c4::1")

    assert room.log.count("release c4::0") == 1
    await room.allocator.pre_start(SHARE, ["c4::0"])
    assert (room.log[-2], room.requests[-1].parameters) == ("prepare c4::0 on c4", {"core": "70"})


async def test_hardware_moves_where_its_container_starts_before_the_next_pod_asks() -> None:
    room = of_one_second("c4-60", "c5-30")
    await asks(room, "c5-30", "c4::0")

    await room.allocator.pre_start(SHARE, ["c4::0"])

    assert room.log[-3:] == ["release c4::0", "prepare c4::0 on c5", "save durable done"]


async def test_hardware_of_a_container_that_has_started_stays_where_it_is() -> None:
    room = of_one_second("c4-60", "c5-30")
    room.grants = None  # the kubelet's checkpoint cannot be read
    [answer] = await room.allocate(SHARE, [["c4::0"]])
    await room.allocator.pre_start(SHARE, ["c4::0"])
    made = room.ledger.get(answer.annotations[ALLOCATION])
    assert made is not None
    room.grants = [granted(made, "c5-30")]

    await room.allocator.pre_start(SHARE, ["c4::0"])

    assert not [it for it in room.log if it.startswith("release")]
    assert [it.cards for it in room.ledger.all()] == [("c4",)]


async def test_hardware_whose_card_stands_in_the_answer_stays_there() -> None:
    room = of_one_second("c4-60", "c5-30", container_edits=edits)
    await asks(room, "c5-30", "c4::0")

    await room.allocator.pre_start(SHARE, ["c4::0"])

    assert [(it.cards, it.claim and it.claim.devices) for it in room.ledger.all()] == [(("c4",), ("c5",))]


async def test_hardware_that_can_not_be_taken_away_stays_where_it_is() -> None:
    room = of_one_second("c4-60", "c5-30")
    await asks(room, "c5-30", "c4::0")
    room.release_fails = VendorCrashed("acme", "signal 11")

    await room.allocator.pre_start(SHARE, ["c4::0"])

    assert room.log[-2:] == ["prepare c4::0 on c4", "save durable done"]
    assert room.allocator.busy == set()


async def test_a_pod_is_known_to_have_its_share_before_the_next_is_answered() -> None:
    """Though no pass has read the kubelet's checkpoint meanwhile."""
    room = of_one_second("c4-60", "c5-30", container_edits=edits)

    await asks(room, "c5-30", "c4::0")
    late = await asks(room, "c4-60", "c5::0")

    assert (late.claim and late.claim.pod, late.cards) == ("c4-60", ("c4",))
    assert [it.container_key for it in room.ledger.all()] == [("uid-c5-30", "main"), ("uid-c4-60", "main")]

"""Whole or nothing, written before answered, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocator import ALLOCATION, Allocator, MakeRoom, Scene, UnusableEdits, admit
from agent.core.claims import Candidate, Cards, Claim, Dialect, PodContainer
from agent.core.dealing import Offer
from agent.core.errors import (
    AllocationError,
    CordonedDevice,
    GivenTwice,
    InOtherMode,
    InsufficientRoom,
    InvalidRequest,
    NotAllocated,
    NotPromised,
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
from agent.core.evidence import Granted
from agent.core.ledger import Ledger
from agent.core.marks import CARDS
from agent.core.model import Allocation, AllocationState, Cordon, Owner, Source
from agent.core.plan import plan
from agent.core.topology import topology
from agent.core.vendor import (
    ContainerEdits,
    Device,
    DeviceNode,
    Edits,
    Mount,
    Partition,
    Placement,
    Request,
    ResourceRule,
    Sharing,
    Vendor,
)
from agent.core.waits import Wait

from .values import GPU, allocation, node, status

WHOLE, SLICE, ONE = "acme.com/whole", "acme.com/slice", "acme.com/one"
#: Of the same card as SLICE, where the node's modes are dynamic.
UNCUT = "acme.com/uncut"
SHARE = "acme.com/share"


def edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    if "broken" in request.ids:
        raise ZeroDivisionError("a bug of the vendor's")
    return ContainerEdits(
        env={"ACME": ",".join(it.uuid for it in devices)}, annotations={"acme.com/by": "acme"}
    )


@dataclass
class Room:
    """The allocator between a vendor and a disk that write down what was asked of them, in order."""

    prepares: bool = False
    log: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    disk: tuple[Allocation, ...] = ()
    prepare_fails: Exception | None = None
    release_fails: Exception | None = None
    save_fails: Exception | None = None
    gate: asyncio.Event | None = None
    release_takes: float = 0.0
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    edits: Edits = edits
    dialects: tuple[Dialect, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    placement: Placement = "local"
    #: What the kubelet says.
    life: str = "k1"
    #: Resources that the config has no more, and who waits for their cards.
    retired: frozenset[str] = frozenset()
    waits: tuple[Wait, ...] = ()
    #: Why no pod is ever seen.
    unseen: str = ""
    grants: Sequence[Granted] | None = ()
    listed: frozenset[str] = frozenset()
    #: What happens while the vendor prepares.
    meanwhile: Callable[[Ledger], object] = lambda ledger: None

    #: Where the pods are looked for, instead of `candidates`.
    heard: Callable[[], tuple[Candidate, ...]] | None = None
    #: Cards that have failed by now, and those that a scheduler gave to others.
    failed: frozenset[str] = frozenset()
    external: dict[str, Allocation] = field(default_factory=dict)
    #: Whether the vendor is left out.
    left_out: bool = False
    #: Whether its resources may name the same cards.
    dynamic: bool = False
    #: Device ID to the pod with which the kubelet lists it.
    shown: dict[str, tuple[str, str]] = field(default_factory=dict)
    now: float = 1234.5
    make_room: MakeRoom | None = None

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        self.allocator = Allocator(
            self.scene,
            self.ledger,
            self,
            lambda: self.now,
            self.prepare,
            self.release,
            witness=self,
            make_room=self.make_room,
        )

    async def granted(self) -> Sequence[Granted] | None:
        return self.grants

    async def shows(self, owners: Collection[Owner]) -> Collection[Owner]:
        self.log.append(f"list {','.join(sorted(it.pod for it in owners))}")
        return {it for it in owners if it.pod in self.listed}

    async def shown_with(self, resource: str, ids: Collection[str]) -> Mapping[str, tuple[str, str]]:
        self.log.append(f"list {','.join(sorted(ids))}")
        return {it: self.shown[it] for it in ids if it in self.shown}

    def scene(self) -> Scene:
        cards = [status(f"c{n}", n, healthy=f"c{n}" not in self.failed) for n in range(6)]
        sick = status("sick", 6, healthy=False, reason="xid-79", message="lost")
        wanting = status("c6", 8, healthy=False, reason="xid-79", message="lost")
        snapshot = node(*cards, sick, status("broken", 7), wanting)
        rules: tuple[ResourceRule, ...] = (
            ResourceRule(WHOLE, devices=("c0", "c1", "sick", "broken")),
            ResourceRule(SLICE, devices=("c2",), sharing=Sharing("replicas", 4)),
            ResourceRule(SHARE, devices=("c4", "c5", "c6"), sharing=Sharing("replicas", 2)),
            ResourceRule(
                ONE, devices=("c3",), sharing=Sharing("replicas", 4, fail_requests_greater_than_one=True)
            ),
        )
        rules += (ResourceRule(UNCUT, devices=("c2", "c4")),) if self.dynamic else ()
        rules = tuple(replace(it, placement=self.placement) for it in rules)
        vendor = Vendor(
            "acme",
            "",
            self.edits,
            WHOLE,
            settings={"key": "value"},
            prepares=self.prepares,
            dialects=self.dialects,
        )
        offers = [Offer("acme", rules, dynamic=self.dynamic)]
        planned = plan(offers, snapshot, {}, {}, external=self.external)
        planned |= {name: replace(planned[name], retired=True) for name in self.retired}
        return Scene(
            planned,
            snapshot,
            topology(snapshot),
            {} if self.left_out else {"acme": vendor},
            candidates=self.heard() if self.heard else self.candidates,
            waits=self.waits,
            external=self.external,
            unseen=self.unseen,
        )

    async def save(self, *, durable: bool) -> None:
        if self.save_fails:
            self.log.append("save fails")
            raise self.save_fails
        self.disk = self.ledger.all()
        states = ",".join(it.state for it in self.disk)
        self.log.append(f"save {'durable ' * durable}{states}".strip())
        if not self.disk:
            self.emptied.set()

    async def prepare(self, vendor: str, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        self.log.append(f"prepare {','.join(request.ids)} on {','.join(uuids)}")
        self.requests.append(request)
        self.meanwhile(self.ledger)
        if self.gate:
            await self.gate.wait()
        if self.prepare_fails:
            raise self.prepare_fails
        return [Partition(f"slice-of-{uuids[0]}", uuids[0], request.allocation)]

    async def release(self, vendor: str, allocation: str) -> None:
        known = self.ledger.get(allocation)
        self.log.append(f"release {','.join(known.ids) if known else allocation}")
        await asyncio.sleep(self.release_takes)
        if self.release_fails:
            raise self.release_fails


async def test_an_answer_is_recorded_before_it_is_given() -> None:
    room = Room()

    [answer] = await room.allocator.allocate(WHOLE, [["c0"]])

    [it] = room.ledger.all()
    assert it == Allocation(it.id, WHOLE, "acme", ("c0",), ("c0",), AllocationState.DONE, 1234.5, life="k1")
    assert room.disk == (it,)
    assert room.log == ["save done"]
    assert answer.env == {"ACME": "c0"}


async def test_the_annotation_carries_the_allocations_id_beside_the_vendors_own() -> None:
    room = Room()

    [answer] = await room.allocator.allocate(WHOLE, [["c0"]])

    assert answer.annotations == {"acme.com/by": "acme", ALLOCATION: room.ledger.all()[0].id}


@pytest.mark.parametrize(
    ("waits", "remedy"),
    [
        ((), ""),
        ((Wait("acme.com/new", SLICE, ("c0",), frozenset({"c0"})),), ""),
        (
            (
                Wait("acme.com/new", WHOLE, ("c0",), frozenset({"c0"})),
                Wait("acme.com/far", WHOLE, ("c1",), frozenset({"c1"})),
            ),
            "; ask for acme.com/new, which has its cards as they get free",
        ),
    ],
)
async def test_a_resource_that_the_config_has_no_more_is_given_to_nobody_anew(
    waits: tuple[Wait, ...], remedy: str
) -> None:
    room = Room(retired=frozenset({WHOLE}), waits=waits)

    with pytest.raises(RetiredResource) as refused:
        await room.allocator.allocate(WHOLE, [["c0"]])

    only = "the config has it no more, it is listed only for the pods that hold it"
    assert str(refused.value) == f'invalid allocation request for "{WHOLE}": {only}{remedy}'
    assert (room.ledger.all(), room.log) == ((), [])
    assert await room.allocator.allocate(SLICE, [["c2::0"]])


async def test_a_card_that_went_to_another_resource_a_moment_ago_is_refused_with_who_has_it() -> None:
    """The plan, and the kubelet, hear of it later."""
    room = Room(dynamic=True)
    await room.allocator.allocate(SLICE, [["c2::0"]])
    [first] = room.ledger.all()
    room.ledger.confirm(first.id, Owner("u", "main", "default", "early"))

    with pytest.raises(InOtherMode) as refused:
        await room.allocator.allocate(UNCUT, [["c2"]])

    assert str(refused.value) == (
        f'invalid allocation request for "{UNCUT}": card c2 is in-other-mode: it is given out as {SLICE} '
        "to default/early, until nobody has it so; create this pod anew to get another card"
    )
    assert room.ledger.all()[0].id == first.id
    assert len(room.ledger.all()) == 1
    await room.allocator.allocate(SLICE, [["c2::1"]])
    await room.allocator.allocate(UNCUT, [["c4"]])


async def test_a_card_that_went_to_another_resource_a_moment_ago_is_not_preferred_to_one_that_is_free() -> (
    None
):
    """The kubelet asks before it has heard of it."""
    room = Room(dynamic=True)
    await room.allocator.allocate(SHARE, [["c4::0"]])

    assert room.allocator.preferred(UNCUT, ["c4", "c5"], [], 1) == ["c5"]
    assert room.allocator.preferred(UNCUT, ["c4", "c5"], ["c4"], 1) == ["c4"]
    assert room.allocator.preferred(UNCUT, ["c4"], [], 1) == ["c4"]
    assert {*room.allocator.preferred(UNCUT, ["c4", "c5"], [], 2)} == {"c4", "c5"}
    assert room.allocator.preferred(SHARE, ["c4::1", "c5::0"], [], 1)


async def test_a_share_that_a_scheduler_put_on_a_card_in_another_mode_is_refused() -> None:
    pod = Candidate("u", "default", "p", (PodContainer("main", {SHARE: 1}),))
    dialect = Dialect("d", lambda *_: [Claim("u", "default", "p", "main", ("c4",))])
    room = Room(dynamic=True, placement="auto", dialects=(dialect,), candidates=(pod,))
    room.ledger.record(replace(allocation("x", ["c4"], resource=UNCUT), devices=("c4",)))

    with pytest.raises(InOtherMode, match=f"given out as {UNCUT}"):
        await room.allocator.allocate(SHARE, [["c5::0"]])


async def test_every_answer_has_an_id_of_its_own_also_for_the_same_ids() -> None:
    room = Room()

    answers = [await room.allocator.allocate(WHOLE, [["c0"], ["c0"]]) for _ in range(2)]

    ids = {edits.annotations[ALLOCATION] for answer in answers for edits in answer}
    assert ids == {it.id for it in room.ledger.all()}
    assert len(ids) == 4


async def test_devices_reach_the_vendor_distinct_and_in_the_order_of_the_request() -> None:
    room = Room()

    [cards] = await room.allocator.allocate(WHOLE, [["c1", "c0", "c1"]])
    [slices] = await room.allocator.allocate(SLICE, [["c2::3", "c2::0"]])

    assert cards.env == {"ACME": "c1,c0"}
    assert slices.env == {"ACME": "c2"}


async def test_an_id_named_twice_is_held_once() -> None:
    room = Room()

    await room.allocator.allocate(SLICE, [["c2::3", "c2::0", "c2::3"]])

    [it] = room.ledger.all()
    assert it.ids == ("c2::3", "c2::0")
    assert it.devices == ("c2", "c2")
    assert room.ledger.held() == {SLICE: {"c2::3": "c2", "c2::0": "c2"}}


@pytest.mark.parametrize(
    ("resource", "containers", "error", "text"),
    [
        (
            "acme.com/none",
            [["c0"]],
            UnknownResource,
            'invalid allocation request for "acme.com/none": the resource is not served here',
        ),
        (
            WHOLE,
            [["c0"], ["c7"]],
            UnknownDevice,
            'invalid allocation request for "acme.com/whole": invalid request: unknown device: c7',
        ),
        (
            WHOLE,
            [["c2"]],
            UnknownDevice,
            'invalid allocation request for "acme.com/whole": invalid request: unknown device: c2',
        ),
        (
            WHOLE,
            [["c0", "sick"]],
            UnhealthyDevice,
            'invalid allocation request for "acme.com/whole": device sick is unhealthy: xid-79 lost',
        ),
        (
            WHOLE,
            [[]],
            InvalidRequest,
            'invalid allocation request for "acme.com/whole": invalid request: it names no device',
        ),
        (
            WHOLE,
            [],
            InvalidRequest,
            'invalid allocation request for "acme.com/whole": invalid request: it asks for no container',
        ),
        (
            ONE,
            [["c3::0", "c3::1"]],
            InvalidRequest,
            (
                'invalid allocation request for "acme.com/one": invalid request: '
                "maximum request size for shared resources is 1; found 2"
            ),
        ),
    ],
)
async def test_a_refusal_says_what_was_asked_and_leaves_no_trace(
    resource: str, containers: list[list[str]], error: type[AllocationError], text: str
) -> None:
    room = Room()

    with pytest.raises(error) as refused:
        await room.allocator.allocate(resource, containers)

    assert str(refused.value) == text
    assert room.ledger.all() == ()
    assert room.log == []


async def test_one_replica_is_no_request_greater_than_one() -> None:
    room = Room()

    [answer] = await room.allocator.allocate(ONE, [["c3::2", "c3::2"]])

    assert answer.env == {"ACME": "c3"}


async def test_containers_are_answered_all_or_none() -> None:
    room = Room()

    with pytest.raises(ZeroDivisionError):
        await room.allocator.allocate(WHOLE, [["c0"], ["broken"], ["c1"]])

    assert room.ledger.all() == ()


async def test_edits_that_raise_leave_no_trace_on_the_hardware_either() -> None:
    room = Room(prepares=True)

    with pytest.raises(ZeroDivisionError):
        await room.allocator.allocate(WHOLE, [["c0"], ["broken"]])

    assert room.ledger.all() == ()
    assert room.log[-3:] == ["release c0", "release broken", "save"]
    assert room.disk == ()


async def test_a_disk_that_refuses_leaves_no_trace() -> None:
    for prepares in (False, True):
        room = Room(prepares=prepares, save_fails=OSError("no space left on device"))

        with pytest.raises(OSError, match="no space"):
            await room.allocator.allocate(WHOLE, [["c0"]])

        assert room.ledger.all() == ()
        assert room.allocator.busy == set()
        assert not any(line.startswith("prepare") for line in room.log)


async def test_hardware_is_made_between_two_durable_writes() -> None:
    room = Room(prepares=True)

    [answer] = await room.allocator.allocate(SLICE, [["c2::1", "c2::0"]])

    assert room.log == [
        "save durable intent",
        "prepare c2::1,c2::0 on c2,c2",
        "save durable prepared",
        "save done",
    ]
    [it] = room.ledger.all()
    assert it.state is AllocationState.DONE
    assert it.partitions == ("slice-of-c2",)
    assert room.disk == (it,)
    assert answer.annotations[ALLOCATION] == it.id


async def test_an_answer_is_as_old_as_it_is_however_long_its_hardware_took() -> None:
    """Else what was read of the kubelet while it was made would tell that nobody ever used it."""
    room = Room(prepares=True)
    room.meanwhile = lambda ledger: setattr(room, "now", room.now + 90)

    await room.allocator.allocate(WHOLE, [["c0"]])

    [it] = room.ledger.all()
    assert it.since == 1234.5 + 90


async def test_a_prepare_that_fails_is_released_and_forgotten() -> None:
    room = Room(prepares=True, prepare_fails=VendorCrashed("acme", "signal 11"))

    with pytest.raises(VendorCrashed):
        await room.allocator.allocate(SLICE, [["c2::0"]])

    assert room.log == ["save durable intent", "prepare c2::0 on c2", "release c2::0", "save"]
    assert room.ledger.all() == room.disk == ()
    assert room.allocator.busy == set()


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
        await there.allocator.allocate(WHOLE, [["c0"]])
    else:
        with pytest.raises(type(error)):
            await there.allocator.allocate(WHOLE, [["c0"]])

    assert [it.state for it in there.ledger.all()] == [AllocationState.DONE] * served
    assert asked == ["room"] * isinstance(error, InsufficientRoom)


async def test_a_prepare_that_is_cut_off_is_released_and_forgotten() -> None:
    room = Room(prepares=True, gate=asyncio.Event())

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await room.allocator.allocate(SLICE, [["c2::0"]])

    assert room.log[-2:] == ["release c2::0", "save"]
    assert room.ledger.all() == room.disk == ()
    assert room.allocator.busy == set()


async def test_a_prepare_that_is_cut_off_again_and_again_is_released_all_the_same() -> None:
    room = Room(prepares=True, gate=asyncio.Event(), release_takes=0.01)
    call = asyncio.create_task(room.allocator.allocate(SLICE, [["c2::0"]]))
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
        await room.allocator.allocate(SLICE, [["c2::0"]])

    assert [it.state for it in room.ledger.all()] == [AllocationState.INTENT]
    assert room.allocator.busy == set()


async def test_what_is_being_answered_is_busy_until_it_is_answered() -> None:
    room = Room(prepares=True)
    busy: list[set[str]] = []
    room.meanwhile = lambda ledger: busy.append({*room.allocator.busy})

    await room.allocator.allocate(SLICE, [["c2::0"], ["c2::1"]])

    first, second = (it.id for it in room.ledger.all())
    assert busy == [{first}, {first, second}]
    assert room.allocator.busy == set()


async def test_what_happens_to_an_allocation_while_its_hardware_is_made_stays() -> None:
    """Reconcile may let it have another's claim."""
    room = Room(prepares=True)
    room.meanwhile = lambda ledger: ledger.record(replace(ledger.all()[0], claim=LOW))

    await room.allocator.allocate(SLICE, [["c2::0"]])

    [it] = room.ledger.all()
    assert (it.claim, it.state, it.partitions) == (LOW, AllocationState.DONE, ("slice-of-c2",))


async def test_a_card_that_fails_while_its_slice_is_made_is_given_to_nobody() -> None:
    room = Room(prepares=True)
    room.meanwhile = lambda ledger: setattr(room, "failed", frozenset({"c2"}))

    with pytest.raises(UnhealthyDevice):
        await room.allocator.allocate(SLICE, [["c2::0"]])

    assert "release c2::0" in room.log
    assert room.ledger.all() == room.disk == ()


async def test_calls_are_answered_one_at_a_time() -> None:
    room = Room(prepares=True, gate=asyncio.Event())

    calls = [asyncio.create_task(room.allocator.allocate(SLICE, [[f"c2::{n}"]])) for n in range(2)]
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
        await room.allocator.allocate(WHOLE, [["c9"]])

    assert await room.allocator.allocate(WHOLE, [["c0"]])


def test_a_preferred_choice_is_made_from_the_plan_and_never_fails() -> None:
    room = Room()

    assert room.allocator.preferred(WHOLE, ["c0", "c1"], ["c1"], 1) == ["c1"]
    assert room.allocator.preferred(WHOLE, ["c0"], [], 2) == []
    assert room.allocator.preferred("acme.com/none", ["c0"], [], 1) == []


@given(
    strategies.hostile_texts
    | st.sampled_from(["c" * 1_000_000, "c2::" + "9" * 5000, "\x00\x1b[31m", "\ud800"])
)
def test_a_hostile_id_gives_a_bounded_printable_message(device_id: str) -> None:
    with pytest.raises(UnknownDevice) as refused:
        admit(Room().scene(), SLICE, [f"c2::0{device_id}x"])

    text = str(refused.value)
    assert text.isprintable()
    assert len(text) < 250
    text.encode()


@given(st.lists(st.sampled_from(["c2::0", "c2::1", "c2::2", "c2::9", "c2", "", "c2-1"]), min_size=1))
def test_admitted_devices_stand_in_the_order_of_their_ids(ids: list[str]) -> None:
    known = {"c2::0", "c2::1", "c2::2", "c2-1"}
    scene = Room().scene()

    if set(ids) <= known:
        assert [it.uuid for it in admit(scene, SLICE, ids)] == ["c2"] * len(set(ids))
    else:
        with pytest.raises(UnknownDevice):
            admit(scene, SLICE, ids)


def test_a_device_whose_plan_says_unhealthy_is_refused() -> None:
    scene = Room().scene()
    resource = scene.plan[WHOLE]
    cards = tuple(replace(card, healthy=card.uuid != "c0") for card in resource.cards)

    with pytest.raises(UnhealthyDevice, match="device c0 is unhealthy"):
        admit(replace(scene, plan={WHOLE: replace(resource, cards=cards)}), WHOLE, ["c0"])


def cordon(scene: Scene, author: str, reason: str) -> Scene:
    """The same scene with the card c0 cordoned, and its ID in use."""
    devices = tuple(
        replace(it, cordon=Cordon(author, reason)) if it.uuid == "c0" else it for it in scene.snapshot.devices
    )
    resource = scene.plan[WHOLE]
    cards = tuple(
        replace(card, healthy=False, held=("c0",)) if card.uuid == "c0" else card for card in resource.cards
    )
    return replace(
        scene,
        snapshot=replace(scene.snapshot, devices=devices),
        plan={WHOLE: replace(resource, cards=cards)},
    )


@pytest.mark.parametrize(
    ("reason", "told"),
    [("maintenance", "device c0 is cordoned by alice: maintenance$"), ("", "is cordoned by alice$")],
)
def test_a_cordoned_card_is_refused_with_who_did_it_and_why_also_where_it_was_in_use(
    reason: str, told: str
) -> None:
    with pytest.raises(CordonedDevice, match=told):
        admit(cordon(Room().scene(), "alice", reason), WHOLE, ["c0"])


def test_the_fault_of_a_cordoned_card_is_told_before_the_cordon() -> None:
    scene = cordon(Room().scene(), "alice", "")
    devices = tuple(replace(it, told_healthy=False) for it in scene.snapshot.devices)

    with pytest.raises(UnhealthyDevice):
        admit(replace(scene, snapshot=replace(scene.snapshot, devices=devices)), WHOLE, ["c0"])


def test_the_rule_of_the_other_resources_does_not_matter() -> None:
    with pytest.raises(UnknownResource):
        admit(Room().scene(), GPU, ["c0"])


def loose(**fields: Any) -> ContainerEdits:
    """Edits as a vendor writes them who checks no types."""
    return ContainerEdits(**fields)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "the whole is None; wanted: ContainerEdits"),
        (loose(env=["A=1"]), "env is ['A=1']; wanted: a mapping of text to text"),
        (loose(env={"A": 1}), "env[A] is 1; wanted: text"),
        (loose(env={1: "A"}), "a key of env is 1; wanted: text"),
        (loose(env={"A": "\udc80"}), "env[A] is \\udc80; wanted: text that UTF-8 can carry"),
        (loose(annotations={"a": None}), "annotations[a] is None; wanted: text"),
        (loose(device_nodes="/dev/x"), "device_nodes is /dev/x; wanted: a tuple"),
        (loose(device_nodes=("/dev/x",)), "device_nodes[0] is /dev/x; wanted: a DeviceNode"),
        (
            loose(device_nodes=(DeviceNode("dev/x", "/dev/x"),)),
            "device_nodes[0].path is dev/x; wanted: an absolute path",
        ),
        (
            loose(device_nodes=(DeviceNode("/dev/x", "/dev/x", "rwx"),)),
            'device_nodes[0].permissions is rwx; wanted: some of "rwm"',
        ),
        (loose(mounts=(Mount("/lib", ""),)), "mounts[0].host_path is ; wanted: an absolute path"),
        (
            loose(mounts=(Mount("/lib", "/lib", cast("bool", "no")),)),
            "mounts[0].read_only is no; wanted: True or False",
        ),
        (loose(cdi_devices=(7,)), "cdi_devices[0] is 7; wanted: text"),
    ],
)
@pytest.mark.parametrize("prepares", [False, True])
async def test_edits_that_the_kubelet_can_not_take_are_refused_before_anything_is_recorded(
    prepares: bool, answer: ContainerEdits, told: str
) -> None:
    room = Room(prepares=prepares, edits=lambda devices, request: answer)

    with pytest.raises(UnusableEdits) as refused:
        await room.allocator.allocate(WHOLE, [["c0"]])

    assert str(refused.value) == f"vendor acme: container edits: {told}"
    assert isinstance(refused.value, AllocationError)
    assert room.ledger.all() == room.disk == ()
    assert ("release c0" in room.log) is prepares


async def test_edits_with_every_field_are_taken_as_they_are() -> None:
    full = ContainerEdits(
        env={"A": "é", "B": ""},
        device_nodes=(DeviceNode("/dev/x", "/dev/x", "rwm"),),
        mounts=(Mount("/lib", "/usr/lib"),),
        annotations={"a/b": "c"},
        cdi_devices=("acme.com/x=0",),
    )
    room = Room(edits=lambda devices, request: full)

    [answer] = await room.allocator.allocate(WHOLE, [["c0"]])

    assert replace(answer, annotations=full.annotations) == full


# Whose request it is


LOW, HIGH = (Claim(f"uid-{it}", "default", it, "main", (), {"priority": it}) for it in ("low", "high"))
WAITING = tuple(
    Candidate(f"uid-{it}", "default", it, (PodContainer("main", {SLICE: 1}),), {"priority": it}, created)
    for created, it in enumerate(("low", "high"))
)


def claims(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    return [Claim(pod.uid, pod.namespace, pod.name, "main", (), pod.annotations)]


def promising() -> Room:
    """Two equal pods wait, to which a scheduler has promised slices of different priorities."""
    return Room(prepares=True, dialects=(Dialect("plain", claims),), candidates=WAITING)


def granted(it: Allocation, pod: str) -> Granted:
    return Granted(it.id, f"uid-{pod}", "main", it.resource, it.ids)


async def test_hardware_is_made_as_the_pod_that_has_waited_longest_was_promised() -> None:
    room = promising()

    for n in range(3):
        await room.allocator.allocate(SLICE, [[f"c2::{n}"]])

    assert [it.claim for it in room.ledger.all()] == [LOW, HIGH, None]
    assert [it.parameters for it in room.requests] == [{"priority": "low"}, {"priority": "high"}, {}]


async def test_devices_are_named_to_schedulers_in_the_order_of_their_minors() -> None:
    named: list[Sequence[tuple[str, int | None]]] = []

    def listen(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
        named.append([*devices.items()][:3])
        return ()

    minors = {"late": 2, "none": None, "first": 0}
    room = Room(dialects=(Dialect("listening", listen),), candidates=WAITING[:1])
    scene = room.scene()
    snapshot = node(
        *(status(it, n, minor=minor) for n, (it, minor) in enumerate(minors.items())), *scene.snapshot.devices
    )
    asking = replace(room.candidates[0], containers=(PodContainer("main", {WHOLE: 1}),))
    room.allocator = Allocator(
        lambda: replace(scene, snapshot=snapshot, candidates=(asking,)),
        room.ledger,
        room,
        lambda: 0.0,
        room.prepare,
        room.release,
        room,
    )

    await room.allocator.allocate(WHOLE, [["c0"]])

    assert named[0] == [("first", 0), ("late", 2), ("none", None)]


async def test_claims_follow_what_the_kubelet_did() -> None:
    room = promising()
    await room.allocator.allocate(SLICE, [["c2::0"]])
    await room.allocator.allocate(SLICE, [["c2::1"]])
    one, other = room.ledger.all()
    grants = [granted(one, "high"), granted(other, "low")]

    assert set(room.allocator.swaps.exchange(grants)) == {one.id, other.id}
    assert [it.claim for it in room.ledger.all()] == [HIGH, LOW]
    assert room.allocator.swaps.exchange(grants) == ()
    swaps = sorted(room.allocator.swaps.last, key=lambda it: it.allocation != one.id)
    assert [(it.allocation, it.before, it.after) for it in swaps] == [
        (one.id, LOW, HIGH),
        (other.id, HIGH, LOW),
    ]
    assert sorted(it.number for it in swaps) == [1, 2]


async def test_who_was_not_attributed_is_given_its_promise_once_the_kubelet_says_who_it_is() -> None:
    room = promising()
    heard, room.candidates = room.candidates, ()
    await room.allocator.allocate(SLICE, [["c2::0"]])
    [it] = room.ledger.all()
    room.candidates = heard

    room.allocator.swaps.exchange([granted(it, "high"), Granted("other", "uid-low", "main")])

    assert it.claim is None
    assert [one.claim for one in room.ledger.all()] == [HIGH]
    assert room.allocator.swaps.last == ()


# Where a scheduler chose the card


def bound(name: str, *cards: str, resource: str = WHOLE, count: int = 1, **more: Any) -> Candidate:
    """A pod to which a scheduler gave these cards, or (none) said nothing."""
    annotations = {"cards": ",".join(cards)} if cards else {}
    return Candidate(
        f"uid-{name}", "default", name, (PodContainer("main", {resource: count}),), annotations, **more
    )


def chosen(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    cards = pod.annotations.get("cards")
    return [Claim(pod.uid, pod.namespace, pod.name, "main", tuple(cards.split(",")))] if cards else []


def heeding(*pods: Candidate, placement: Placement = "auto", **more: Any) -> Room:
    return Room(dialects=(Dialect("plain", chosen),), candidates=pods, placement=placement, **more)


@pytest.mark.parametrize(
    ("pods", "asked", "expected"),
    [
        ([bound("web", "c1")], (["c0", "c1"], [], 1), ["c1"]),
        ([bound("web", "c1", "c0", count=2)], (["c0", "c1"], [], 2), ["c1", "c0"]),
        ([bound("web", "c1"), bound("job")], (["c0", "c1"], [], 1), ["c1"]),
        ([bound("pair", "c0", "c1", count=2), bound("job")], (["c0", "c1"], [], 1), ["c0"]),
        ([bound("other", "c0", created=9), bound("web", "c1", created=1)], (["c0", "c1"], [], 1), ["c1"]),
        ([bound("gone", "c1", over=True), bound("web", "c0")], (["c0", "c1"], [], 1), ["c0"]),
        ([bound("taken", "c1", created=1), bound("web", "c0", created=2)], (["c0"], [], 1), ["c0"]),
        ([bound("web", "c1")], (["c0"], [], 1), ["c0"]),
        ([bound("web", "c1", "c0", count=2)], (["c0", "c1"], ["c0"], 2), ["c0", "c1"]),
        ([bound("runs", "c0", pending=False), bound("job")], (["c0", "c1"], [], 1), ["c0"]),
        ([], (["c0", "c1"], [], 1), ["c0"]),
    ],
    ids=[
        "its card",
        "its cards",
        "beside a pod without a promise",
        "none is left but promised ones",
        "bound first",
        "over",
        "the first one's is not to be had",
        "its card is not to be had",
        "it has one already",
        "one that runs waits for no card",
        "nobody waits",
    ],
)
def test_the_kubelet_is_steered_to_the_cards_of_who_asks_next(
    pods: Sequence[Candidate], asked: tuple[list[str], list[str], int], expected: list[str]
) -> None:
    assert heeding(*pods).allocator.preferred(WHOLE, *asked) == expected


async def test_of_whom_the_kubelet_gives_ids_anew_has_them_no_more_though_the_ledger_has_it_yet() -> None:
    """Two pods have each other's cards, and the one of c1 has gone; its card is chosen for the next one."""

    def has(name: str, card: str) -> Allocation:
        owner = Owner(f"uid-{name}", "main", "default", name)
        return allocation(name, [card], resource=WHOLE, owner=owner, devices=(card,))

    room = heeding(bound("next", "c0"), bound("stays", "c1", pending=False))
    for it in (has("stays", "c0"), has("gone", "c1")):
        room.ledger.record(it)

    assert room.allocator.preferred(WHOLE, ["c2", "c1"], [], 1) == ["c1"]
    await room.allocator.allocate(WHOLE, [["c1"]])

    claims_ = [it.claim for it in room.ledger.all() if it.claim is not None]
    assert [(it.pod, it.devices) for it in claims_] == [("next", ("c1",))]


def test_shares_are_spread_evenly_over_the_cards_that_were_chosen() -> None:
    room = heeding(bound("web", "c5", "c4", resource=SHARE, count=3))

    found = room.allocator.preferred(SHARE, ["c4::0", "c4::1", "c5::0", "c5::1"], [], 3)

    assert found == ["c5::0", "c4::0", "c5::1"]


async def test_a_whole_card_other_than_the_chosen_one_is_refused() -> None:
    room = heeding(bound("web", "c1"))

    with pytest.raises(PromisedElsewhere) as refused:
        await room.allocator.allocate(WHOLE, [["c0"]])

    assert str(refused.value) == (
        'invalid allocation request for "acme.com/whole": the kubelet gave c0, claims are on other cards: '
        "default/web on c1; create this pod anew to have its card chosen again"
    )
    assert room.ledger.all() == ()


async def test_who_has_the_card_that_was_chosen_is_named() -> None:
    mine = replace(
        allocation("annotation-1", [], owner=Owner("u", "", "default", "own"), devices=("c1",)),
        source=Source.ANNOTATION,
        resource="koordinator.sh/gpu",
    )
    other = replace(
        allocation("a", ["c1"], resource=SLICE, owner=Owner("v", "main", "default", "plain"), devices=("c1",))
    )
    taken = {
        "default/web on c1; c1 is held by default/own, by its scheduler's word alone;": (mine,),
        f"default/web on c1; c1 is held by default/plain as {SLICE};": (other,),
        "default/web on c1; create this pod anew": (),
    }
    for words, held in taken.items():
        room = heeding(bound("web", "c1"))
        for it in held:
            room.ledger.record(it)

        with pytest.raises(PromisedElsewhere) as refused:
            await room.allocator.allocate(WHOLE, [["c0"]])

        assert words in str(refused.value)


@pytest.mark.parametrize(("listed", "named"), [({"old"}, True), (set(), False)])
async def test_a_pod_that_is_gone_is_not_named_as_who_has_the_card(listed: set[str], named: bool) -> None:
    room = heeding(bound("web", "c1"), listed=frozenset(listed))
    owner = Owner("u", "main", "default", "old")
    room.ledger.record(allocation("a", ["c1"], resource=WHOLE, owner=owner, devices=("c1",)))

    with pytest.raises(PromisedElsewhere) as refused:
        await room.allocator.allocate(WHOLE, [["c0"]])

    assert ("c1 is held by default/old" in str(refused.value)) is named


@pytest.mark.parametrize(
    ("card", "why"),
    [
        ("c6", "which have no room; c6 is unhealthy;"),
        ("c3", "which have no room; c3 is not of this resource;"),
    ],
)
async def test_what_keeps_the_chosen_card_from_who_asks_is_said(card: str, why: str) -> None:
    room = heeding(bound("web", card, resource=SHARE))

    with pytest.raises(PromisedElsewhere) as refused:
        await room.allocator.allocate(SHARE, [["c4::0"]])

    assert why in str(refused.value)


async def test_a_whole_card_may_be_a_pods_of_which_no_scheduler_spoke() -> None:
    room = heeding(bound("web", "c1"), bound("job"))

    await room.allocator.allocate(WHOLE, [["c0"]])

    assert [it.claim for it in room.ledger.all()] == [None]


async def test_two_pods_that_got_each_others_cards_are_both_served() -> None:
    early, late = bound("early", "c0", created=1), bound("late", "c1", created=2)
    room = heeding(early, late)
    room.ledger.record(
        Allocation(
            "a", WHOLE, "acme", ("c0",), ("c0",), AllocationState.DONE, 1, owner=Owner(late.uid, "main")
        )
    )

    assert room.allocator.preferred(WHOLE, ["c1"], [], 1) == ["c1"]
    await room.allocator.allocate(WHOLE, [["c1"]])

    [_, it] = room.ledger.all()
    assert it.claim is not None
    assert (it.claim.pod, it.claim.devices) == ("early", ("c1",))


async def test_whose_card_an_equal_pod_has_is_known_by_its_claim_with_the_card_that_it_has() -> None:
    """The kubelet took them in another order than they were bound; who waits is to have what is left."""
    room = heeding(bound("early", "c0", created=1), bound("late", "c1", created=2))
    await room.allocator.allocate(WHOLE, [["c0"]])
    [it] = room.ledger.all()

    grants = [Granted(it.id, "uid-late", "main", WHOLE, ("c0",))]
    assert room.allocator.swaps.exchange(grants) == (it.id,)

    [it] = room.ledger.all()
    assert it.claim is not None
    assert (it.claim.pod, it.claim.devices, it.handed) == ("late", ("c0",), None)
    assert room.allocator.swaps.exchange(grants) == ()


@pytest.mark.parametrize(
    ("placement", "parameters"), [("local", {}), ("auto", {"priority": "low"})], ids=["unheard", "unlike"]
)
async def test_what_was_promised_of_another_card_is_nobodys_claim_on_this_one_unless_it_is_the_same(
    placement: Placement, parameters: Mapping[str, str]
) -> None:
    room = heeding(bound("late", "c1"), placement=placement)
    claim = Claim("uid-early", "default", "early", "main", ("c0",), parameters)
    room.ledger.record(Allocation("a", WHOLE, "acme", ("c0",), ("c0",), AllocationState.DONE, 1, claim=claim))

    room.allocator.swaps.exchange([Granted("a", "uid-late", "main", WHOLE, ("c0",))])

    assert [it.claim for it in room.ledger.all()] == [None]


async def test_a_share_lies_on_the_chosen_card_whatever_its_ids_are() -> None:
    room = heeding(bound("web", "c5", resource=SHARE, count=2))

    [edits_] = await room.allocator.allocate(SHARE, [["c4::0", "c4::1"]])

    assert edits_.env["ACME"] == "c5"
    [it] = room.ledger.all()
    assert (it.devices, it.diverged, it.cards) == (("c4", "c4"), ("c5",), ("c5",))
    assert room.ledger.devices_in_use() == {"c4", "c5"}
    assert room.ledger.held() == {SHARE: {"c4::0": "c4", "c4::1": "c4"}}


@pytest.mark.parametrize("card", ["c5", "c6"], ids=["full", "unhealthy"])
async def test_a_share_of_a_card_without_room_is_refused(card: str) -> None:
    room = heeding(bound("web", card, resource=SHARE))
    for name, one in (("a", "c5::0"), ("b", "c5::1")):
        room.ledger.record(Allocation(name, SHARE, "acme", (one,), ("c5",), AllocationState.DONE, 1))

    with pytest.raises(PromisedElsewhere, match="which have no room"):
        await room.allocator.allocate(SHARE, [["c4::0"]])


@pytest.mark.parametrize("one", ["c4", "c5"])
async def test_a_share_of_a_card_that_an_equal_pod_has_filled_lies_where_that_was_to_be(one: str) -> None:
    """The kubelet took them in another order than they were bound."""
    room = heeding(
        bound("here", "c5", resource=SHARE, count=2),
        bound("there", "c4", resource=SHARE, count=2, pending=False),
        listed=frozenset({"here", "there"}),
    )
    owner = Owner("uid-there", "main", "default", "there")
    held, asked = ((f"{it}::0", f"{it}::1") for it in ("c5" if one == "c4" else "c4", one))
    diverged = ("c5",) if one == "c5" else ()
    room.ledger.record(
        replace(
            Allocation("a", SHARE, "acme", held, (held[0][:2],) * 2, AllocationState.DONE, 1, owner=owner),
            diverged=diverged,
        )
    )

    [edits_] = await room.allocator.allocate(SHARE, [asked])

    assert edits_.env["ACME"] == "c4"
    _, it = room.ledger.all()
    assert {*it.cards} == {"c4"}


async def test_a_pod_whose_card_failed_since_takes_nobody_elses_promise() -> None:
    early, late = (
        bound("early", "c6", resource=SHARE, created=1),
        bound("late", "c5", resource=SHARE, created=2),
    )
    room = heeding(early, late)

    with pytest.raises(PromisedElsewhere, match="default/early on c6, which have no room"):
        await room.allocator.allocate(SHARE, [["c5::0"]])
    room.candidates = (replace(early, over=True), late)
    await room.allocator.allocate(SHARE, [["c5::0"]])

    assert [it.claim and it.claim.pod for it in room.ledger.all()] == ["late"]


async def test_a_share_that_diverged_takes_the_room_of_the_card_where_it_lies() -> None:
    room = heeding(bound("web", "c5", resource=SHARE))
    fill(room)

    with pytest.raises(PromisedElsewhere, match="which have no room"):
        await room.allocator.allocate(SHARE, [["c4::1"]])


def fill(room: Room, since: float = 1200.0) -> None:
    """Two shares lie on c5, one of them by an ID of c4."""
    mine = allocation(
        "a", ["c4::0"], resource=SHARE, since=since, owner=Owner("uid-a", "main", "default", "a")
    )
    room.ledger.record(replace(mine, diverged=("c5",)))
    own = Owner("uid-b", "main", "default", "b")
    room.ledger.record(allocation("b", ["c5::0"], resource=SHARE, since=since, owner=own))


async def test_a_share_of_a_card_that_others_have_filled_is_refused_though_it_has_an_id_there() -> None:
    room = heeding(bound("web", "c5", resource=SHARE))
    fill(room)

    with pytest.raises(PromisedElsewhere) as refused:
        await room.allocator.allocate(SHARE, [["c5::1"]])

    assert "default/web is promised that one, which shares with IDs of other cards have filled" in str(
        refused.value
    )


async def test_a_share_that_nobody_promised_lies_where_there_is_room() -> None:
    room = heeding()
    fill(room)

    [answer] = await room.allocator.allocate(SHARE, [["c5::1"]])

    assert answer.env["ACME"] == answer.annotations[CARDS] == "c4"
    assert room.ledger.in_use()[-1].cards == ("c4",)


async def test_a_share_of_any_card_lies_where_there_is_room() -> None:
    def anywhere(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
        return [Claim(pod.uid, pod.namespace, pod.name, "main", (), {"priority": "low"})]

    room = Room(dialects=(Dialect("plain", anywhere),), candidates=(bound("web", resource=SHARE),))
    fill(room)

    await room.allocator.allocate(SHARE, [["c5::1"]])

    it = room.ledger.in_use()[-1]
    assert (it.claim and it.claim.pod, it.cards) == ("web", ("c4",))


@pytest.mark.parametrize("placement", ["auto", "local"])
async def test_a_share_is_refused_where_no_card_has_the_room_that_the_kubelet_counts(
    placement: Placement,
) -> None:
    room = heeding(placement=placement)
    fill(room)
    room.failed = frozenset({"c4"})

    with pytest.raises(PromisedElsewhere, match=r"gave c5, which shares .*no other card has room"):
        await room.allocator.allocate(SHARE, [["c5::1"]])


async def test_a_share_lies_where_there_is_room_also_when_no_scheduler_is_heeded_any_more() -> None:
    room = heeding(placement="local")
    fill(room)

    await room.allocator.allocate(SHARE, [["c5::1"]])

    assert room.ledger.in_use()[-1].cards == ("c4",)


async def test_more_cards_than_shares_were_not_chosen_for_them() -> None:
    room = heeding(bound("web", "c4", "c5", resource=SHARE))

    with pytest.raises(PromisedElsewhere, match="have no room"):
        await room.allocator.allocate(SHARE, [["c4::0"]])


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
        await room.allocator.allocate(SHARE, [["c4::0"]])

    assert [it.cards for it in room.ledger.all()] == [("c5",)] * 3


async def test_an_id_that_is_given_anew_takes_no_room_twice() -> None:
    room = heeding(bound("web", "c5", resource=SHARE))
    fill(room)

    await room.allocator.allocate(SHARE, [["c5::0"]])

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
    fill(room, since)

    try:
        await room.allocator.allocate(SHARE, [["c5::1"]])
    except PromisedElsewhere:
        assert not served
    else:
        assert served
        assert room.ledger.in_use()[-1].cards == ("c5",)


async def test_an_answer_names_the_cards_that_its_ids_do_not() -> None:
    room = heeding(bound("web", "c5", resource=SHARE))
    [moved] = await room.allocator.allocate(SHARE, [["c4::0"]])
    room.candidates = (bound("job", "c4", resource=SHARE),)
    [as_its_ids] = await room.allocator.allocate(SHARE, [["c4::1"]])

    assert moved.annotations[CARDS] == "c5"
    assert CARDS not in as_its_ids.annotations


# What a container was given, and what its claim is


LIMITED = {"low": {"core": "30"}, "high": {"core": "60"}}


def limits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    """A vendor whose limits stand in the environment, which nobody changes later."""
    return ContainerEdits(env={"LIMIT": request.parameters.get("core", "")})


def shares(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    said = LIMITED.get(pod.name)
    return [Claim(pod.uid, pod.namespace, pod.name, "main", ("c4",), said)] if said else []


def limited(*names: str, **more: Any) -> Room:
    pods = (bound(it, resource=SHARE, created=created) for created, it in enumerate(names))
    return Room(
        edits=limits,
        dialects=(Dialect("plain", shares),),
        candidates=tuple(pods),
        placement="auto",
        **more,
    )


async def test_a_container_that_bears_anothers_limits_is_known_by_them() -> None:
    room = limited("low", "high")
    answers = [(await room.allocator.allocate(SHARE, [[one]]))[0] for one in ("c4::0", "c4::1")]
    one, other = room.ledger.all()

    room.allocator.swaps.exchange([granted(one, "high"), granted(other, "low")])

    assert [it.env["LIMIT"] for it in answers] == ["30", "60"]
    assert [it.claim and it.claim.parameters for it in room.ledger.all()] == [LIMITED["high"], LIMITED["low"]]
    assert [it.handed for it in room.ledger.all()] == [LIMITED["low"], LIMITED["high"]]
    room.allocator.swaps.exchange([granted(one, "low"), granted(other, "high")])
    assert [it.handed for it in room.ledger.all()] == [None, None]


async def test_a_container_that_was_served_before_its_promise_was_heard_has_no_limits() -> None:
    room = limited()
    await room.allocator.allocate(SHARE, [["c4::0"]])
    [it] = room.ledger.all()
    room.candidates = (bound("low", resource=SHARE),)

    room.allocator.swaps.exchange([granted(it, "low")])

    [it] = room.ledger.all()
    assert (it.claim and it.claim.parameters, it.handed) == (LIMITED["low"], {})


@pytest.mark.parametrize(
    "edits_", [edits, lambda devices, request: 1 / 0], ids=["no limits in it", "it can not say"]
)
async def test_what_an_answer_does_not_say_can_not_be_wrong(edits_: Edits) -> None:
    room = limited("low", "high")
    await room.allocator.allocate(SHARE, [["c4::0"]])
    await room.allocator.allocate(SHARE, [["c4::1"]])
    one, other = room.ledger.all()
    room.edits = edits_

    room.allocator.swaps.exchange([granted(one, "high"), granted(other, "low")])

    differs = [it.handed is not None for it in room.ledger.all()]
    assert differs == [edits_ is not edits] * 2


async def test_a_share_that_was_read_back_is_made_as_it_was_answered_until_its_claim_is_known() -> None:
    room = limited(prepares=True)
    [it] = [allocation("a", ["c4::0"], resource=SHARE, owner=Owner("uid-high", "main"), devices=("c4",))]
    room.ledger.record(replace(it, source=Source.KUBELET, handed=LIMITED["low"]))

    await room.allocator.pre_start(SHARE, ["c4::0"])
    room.candidates = (bound("high", resource=SHARE),)
    room.grants = [granted(it, "high")]
    await room.allocator.pre_start(SHARE, ["c4::0"])

    assert [it.parameters for it in room.requests] == [LIMITED["low"], LIMITED["high"]]


# What PodResources alone shows


def shown(pod: str, one: str, resource: str = SHARE) -> Allocation:
    owner = Owner("", "main", "default", pod)
    device = one.partition("::")[0]
    its = allocation(f"shown-{pod}", [one], resource=resource, owner=owner, devices=(device,))
    return replace(its, source=Source.POD_RESOURCES)


def test_whom_pod_resources_alone_shows_has_the_card_that_its_pod_names() -> None:
    room = heeding(bound("web", "c5", resource=SHARE), bound("job", "c4", resource=SHARE))
    for it in (shown("web", "c4::0"), shown("job", "c4::1"), shown("unknown", "c6::0")):
        room.ledger.record(it)

    assert set(room.allocator.swaps.recognise()) == {"shown-web", "shown-job"}

    its = {it.id: (it.diverged, it.claim and it.claim.uid) for it in room.ledger.all()}
    assert its == {
        "shown-web": (("c5",), "uid-web"),
        "shown-job": ((), "uid-job"),
        "shown-unknown": ((), None),
    }
    assert room.allocator.swaps.recognise() == ()


@pytest.mark.parametrize(
    ("pod", "it", "more"),
    [
        (bound("web", "c1"), shown("web", "c0", WHOLE), {}),
        (bound("web", "c5", resource=SHARE), shown("web", "c4::0"), {"placement": "local"}),
        (bound("web", "c0", resource=SHARE), shown("web", "c4::0"), {}),
        (bound("web", "c5", resource=SHARE), replace(shown("web", "c4::0"), source=Source.KUBELET), {}),
        (bound("web", "c5", resource=SHARE, over=True), shown("web", "c4::0"), {}),
    ],
    ids=[
        "a whole card",
        "no scheduler is heeded",
        "a card of another resource",
        "it is known better",
        "over",
    ],
)
def test_what_a_pod_names_is_not_where_it_can_not_be(
    pod: Candidate, it: Allocation, more: dict[str, Any]
) -> None:
    room = heeding(pod, **more)
    room.ledger.record(it)

    assert room.allocator.swaps.recognise() == ()
    assert room.ledger.all() == (it,)


def test_a_card_that_is_full_is_not_where_one_more_lies() -> None:
    room = heeding(bound("web", "c5", resource=SHARE))
    for name in ("c5::0", "c5::1"):
        room.ledger.record(allocation(name, [name], resource=SHARE, devices=("c5",)))
    room.ledger.record(shown("web", "c4::0"))

    assert room.allocator.swaps.recognise() == ()


def test_a_card_that_is_sick_by_now_is_still_the_one() -> None:
    room = heeding(bound("web", "c6", resource=SHARE))
    room.ledger.record(shown("web", "c4::0"))

    assert room.allocator.swaps.recognise() == ("shown-web",)


async def test_whose_claim_came_back_is_not_taken_for_one_that_waits() -> None:
    web, job = bound("web", "c5", resource=SHARE), bound("job", "c4", resource=SHARE, created=9)
    room = heeding(web, job)
    room.ledger.record(shown("web", "c5::0"))
    room.allocator.swaps.recognise()

    await room.allocator.allocate(SHARE, [["c4::0"]])

    assert [it.claim and it.claim.pod for it in room.ledger.all()] == ["web", "job"]


async def test_where_no_pod_is_ever_seen_the_refusal_says_why() -> None:
    room = heeding(placement="claim")
    room.unseen = "agent.watchPods is false"

    with pytest.raises(NotPromised, match=r"no pod is seen: agent\.watchPods is false; "):
        await room.allocator.allocate(WHOLE, [["c0"]])


async def test_where_a_scheduler_must_choose_nobody_else_does() -> None:
    room = heeding(bound("job"), placement="claim")

    with pytest.raises(NotPromised) as refused:
        await room.allocator.allocate(WHOLE, [["c0"]])

    assert str(refused.value) == (
        'invalid allocation request for "acme.com/whole": no scheduler has chosen a card for it: '
        "default/job asks for as much and has no claim; the resource's placement is 'claim': create this pod "
        "anew with a schedulerName that chooses, such as koord-scheduler, which writes "
        "scheduling.koordinator.sh/device-allocated"
    )
    assert room.ledger.all() == ()


async def test_where_a_scheduler_must_choose_a_pod_without_its_word_gets_no_other_pods_place() -> None:
    room = heeding(bound("web", "c1"), bound("job"), placement="claim")

    with pytest.raises(PromisedElsewhere):
        await room.allocator.allocate(WHOLE, [["c0"]])


async def test_who_was_refused_waits_no_more_though_it_still_seems_to() -> None:
    room = heeding(bound("early", "c0", created=1), bound("late", "c1", created=2))

    with pytest.raises(PromisedElsewhere):
        await room.allocator.allocate(WHOLE, [["broken"]])

    assert room.allocator.preferred(WHOLE, ["c0", "c1"], [], 1) == ["c1"]
    await room.allocator.allocate(WHOLE, [["c1"]])
    assert [it.claim and it.claim.pod for it in room.ledger.all()] == ["late"]


async def test_who_was_taken_for_refused_and_asks_is_served() -> None:
    room = heeding(bound("early", "c0", created=1))

    with pytest.raises(UnhealthyDevice):
        await room.allocator.allocate(WHOLE, [["sick"]])
    await room.allocator.allocate(WHOLE, [["c0"]])

    assert [it.claim and it.claim.pod for it in room.ledger.all()] == ["early"]
    assert room.allocator.promises.refused == frozenset()


async def test_who_was_refused_and_is_gone_is_not_remembered() -> None:
    room = heeding(bound("early", "c0"))
    with pytest.raises(UnhealthyDevice):
        await room.allocator.allocate(WHOLE, [["sick"]])
    assert room.allocator.promises.refused == {"uid-early"}

    room.candidates = (bound("early", "c0", over=True),)

    assert room.allocator.promises.refused == frozenset()


async def test_whom_pod_resources_alone_shows_waits_no_more() -> None:
    web, job = bound("web", "c5", resource=SHARE, created=1), bound("job", "c4", resource=SHARE, created=2)
    room = heeding(web, job)
    room.ledger.record(replace(shown("web", "c5::0"), since=5.0))

    ids = room.allocator.preferred(SHARE, ["c4::0", "c4::1", "c5::1"], [], 1)
    await room.allocator.allocate(SHARE, [ids])

    assert room.ledger.all()[-1].cards == ("c4",)


async def test_a_card_that_a_scheduler_gave_to_another_is_refused_by_that_pods_name() -> None:
    room = heeding()
    job = allocation("annotation-1", [], devices=("c1",), owner=Owner("uid-job", "", "default", "job"))
    room.external = {"c1": job}

    with pytest.raises(UnhealthyDevice) as refused:
        await room.allocator.allocate(WHOLE, [["c1"]])

    assert str(refused.value).endswith(
        "device c1 is unhealthy: a scheduler gave it to default/job, which asks no device plugin: "
        "it is free when that pod is gone"
    )


async def test_who_has_a_lock_of_the_node_asks_next() -> None:
    room = heeding(bound("early", "c0", created=1), bound("late", "c1", created=2))
    scene = replace(room.scene(), locked=frozenset({("default", "late")}))
    room.allocator._scene = lambda: scene

    assert room.allocator.preferred(WHOLE, ["c0", "c1"], [], 1) == ["c1"]


# Devices of pods that the kubelet has forgotten


GONE = Owner("uid-gone", "main", "default", "gone")


def holding(life: str, owner: Owner | None = GONE, *, now: str = "k1") -> Room:
    """Card c0 is held since that life of the kubelet, and the kubelet lists its pod."""
    room = Room(listed=frozenset({"gone"}), life=now)
    room.ledger.record(
        Allocation("old", WHOLE, "acme", ("c0",), ("c0",), AllocationState.DONE, 1, owner=owner, life=life)
    )
    return room


async def test_a_device_of_a_pod_that_the_kubelet_forgot_is_refused_by_the_pods_name() -> None:
    room = holding("k0")

    with pytest.raises(StillHeld) as refused:
        await room.allocator.allocate(WHOLE, [["c1"], ["c1", "c0"]])

    assert str(refused.value) == (
        'invalid allocation request for "acme.com/whole": device c0 is held by default/gone, of which the '
        "kubelet has lost its record; delete that pod to free it"
    )
    assert [it.id for it in room.ledger.all()] == ["old"]
    assert room.allocator.busy == set()


@pytest.mark.parametrize(
    "room",
    [
        pytest.param(holding("k1"), id="same life: it gave the devices back"),
        pytest.param(holding(""), id="never seen in a checkpoint"),
        pytest.param(holding("k0", now=""), id="no kubelet.sock: no other kubelet"),
    ],
)
async def test_a_device_that_the_kubelet_gives_out_again_is_given_where_it_lists_nobody_with_it(
    room: Room,
) -> None:
    await room.allocator.allocate(WHOLE, [["c0"]])

    assert room.log == ["list c0", "save done,done"]


async def test_a_device_of_which_nobody_knows_whose_it_was_is_given_without_asking() -> None:
    room = holding("k0", None)

    await room.allocator.allocate(WHOLE, [["c0"]])

    assert room.log == ["save done,done"]


@pytest.mark.parametrize(
    "change", [{"failed": frozenset({"c0"})}, {"retired": frozenset({WHOLE})}, {"left_out": True}]
)
async def test_what_changes_while_the_kubelet_is_asked_counts(change: dict[str, Any]) -> None:
    room = holding("k1")
    asked = room.shown_with

    async def shown_with(resource: str, ids: Collection[str]) -> Mapping[str, tuple[str, str]]:
        vars(room).update(change)
        return await asked(resource, ids)

    room.shown_with = shown_with  # type: ignore[method-assign]
    with pytest.raises((UnhealthyDevice, RetiredResource, UnknownResource)):
        await room.allocator.allocate(WHOLE, [["c0"]])

    assert [it.id for it in room.ledger.all()] == ["old"]


async def test_a_device_of_a_pod_that_is_not_listed_is_given() -> None:
    room = holding("k0")
    room.listed = frozenset()

    await room.allocator.allocate(WHOLE, [["c0"]])

    assert room.log == ["list gone", "save done,done"]


async def test_a_forgotten_pod_that_nobody_knows_the_name_of_is_refused_by_its_uid() -> None:
    """Its cgroup is there; PodResources hides a pod of which a plain init container alone has devices."""
    room = holding("k0", Owner("uid-gone", "main"))
    room.listed = frozenset({""})

    with pytest.raises(StillHeld, match="device c0 is held by pod/uid-gone, of which the kubelet"):
        await room.allocator.allocate(WHOLE, [["c0"]])


async def test_the_kubelet_is_asked_once_for_all_holders() -> None:
    """PodResources takes a call a second from the whole node."""
    room = holding("k0")
    room.listed = frozenset({"next"})
    owner = Owner("uid-next", "main", "default", "next")
    room.ledger.record(replace(room.ledger.all()[0], id="next", ids=("c1",), owner=owner))

    with pytest.raises(StillHeld, match="device c1 is held by default/next"):
        await room.allocator.allocate(WHOLE, [["c0", "c1"]])

    assert room.log == ["list gone,next"]


# Containers that start


async def started(room: Room, ids: Sequence[str]) -> list[Request]:
    """What the vendor is asked to make when a container with these IDs starts."""
    before = len(room.requests)
    await room.allocator.pre_start(SLICE, ids)
    return room.requests[before:]


async def sliced(room: Room, *containers: Sequence[str]) -> list[Allocation]:
    """Allocations of which the hardware is there; nothing is logged of it."""
    for ids in containers:
        await room.allocator.allocate(SLICE, [ids])
    room.log.clear()
    return list(room.ledger.all())


async def test_a_container_whose_hardware_is_there_starts_and_writes_nothing() -> None:
    room = Room(prepares=True)
    [it] = await sliced(room, ["c2::0"])
    room.grants = [granted(it, "web")]

    await room.allocator.pre_start(SLICE, ["c2::0"])

    assert room.log == ["prepare c2::0 on c2"]
    assert room.ledger.all() == (it,)


async def test_what_a_reboot_took_is_made_again_before_the_container_starts() -> None:
    room = Room(prepares=True)
    [it] = await sliced(room, ["c2::0"])
    room.grants = [granted(it, "web")]
    room.ledger.record(replace(it, partitions=("of-old",), reason="the reboot took of-old"))

    await room.allocator.pre_start(SLICE, ["c2::0"])

    assert room.ledger.all() == room.disk == (it,)
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
        "acme.com/slice: no allocation here holds c2::0, c2::1; "
        "if this stays so, delete the pod: its controller creates it anew"
    )
    assert room.log == []


async def test_a_swap_is_mended_before_the_container_starts() -> None:
    room = promising()
    one, other = await sliced(room, ["c2::0"], ["c2::1"])
    room.grants = [granted(one, "high"), granted(other, "low")]

    requests = await started(room, ["c2::0"])

    assert requests == [Request(one.id, SLICE, ("c2::0",), {"priority": "high"})]
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
    [it] = await sliced(room, ["c2::0"])
    room.prepare_fails = VendorCrashed("acme", "signal 11")

    with pytest.raises(VendorCrashed):
        await room.allocator.pre_start(SLICE, ["c2::0"])

    assert room.ledger.all() == (it,)
    assert room.allocator.busy == set()


async def test_what_starts_is_busy_and_keeps_what_happens_to_it_meanwhile() -> None:
    room = Room(prepares=True)
    [it] = await sliced(room, ["c2::0"])
    busy: list[set[str]] = []

    def confirmed(ledger: Ledger) -> None:
        busy.append({*room.allocator.busy})
        ledger.confirm(it.id, GONE, "k2")

    room.meanwhile = confirmed
    await room.allocator.pre_start(SLICE, ["c2::0"])

    assert busy == [{it.id}]
    assert room.allocator.busy == set()
    assert room.ledger.all() == (replace(it, owner=GONE, life="k2"),)


async def test_a_start_brings_nothing_back_that_was_released_meanwhile() -> None:
    room = Room(prepares=True)
    [it] = await sliced(room, ["c2::0"])
    room.meanwhile = lambda ledger: ledger.release(it.id, "pod gone", 2.0)

    await room.allocator.pre_start(SLICE, ["c2::0"])

    assert room.ledger.in_use() == ()


async def test_an_id_with_which_the_kubelet_lists_a_pod_is_not_given_to_another() -> None:
    """The kubelet lets go of an ID while its Allocate is under way, if PodResources is listed just then."""
    room = Room(shown={"c0": ("default", "first")})
    await room.allocator.allocate(WHOLE, [["c0"]])
    room.ledger.confirm(room.ledger.all()[0].id, Owner("uid-1", "main"), "k1")

    with pytest.raises(GivenTwice, match="device c0 is held by default/first, as the kubelet's PodResources"):
        await room.allocator.allocate(WHOLE, [["c0"]])

    assert len(room.ledger.all()) == 1


async def test_an_id_whose_pod_is_listed_no_more_goes_to_the_next() -> None:
    room = Room()
    await room.allocator.allocate(WHOLE, [["c0"]])
    room.ledger.confirm(room.ledger.all()[0].id, Owner("uid-1", "main"), "k1")

    await room.allocator.allocate(WHOLE, [["c0"]])

    assert len(room.ledger.all()) == 2


async def test_nobody_is_asked_about_an_id_that_no_pod_is_known_to_hold() -> None:
    room = Room()

    for _ in range(2):
        await room.allocator.allocate(WHOLE, [["c0"]])

    assert not any(line.startswith("list") for line in room.log)

"""What is timed and logged of the kubelet's calls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import cast

import pytest
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.attribution.refused_requests import RefusedAllocate
from agent.core.errors import InvalidRequest, LimitsUnread, NotAllocated, StartRefused, VendorError
from agent.core.event_notices import PodRef
from agent.core.model import Allocation, AllocationState
from agent.daemon.allocation.allocate_calls import MAX_REMEMBERED, AllocateCalls
from agent.daemon.allocation.allocator import Allocator, Answer
from agent.daemon.allocation.pod_waiter import PodWaiter
from agent.vendor_api.agent import ContainerEdits

XPU = "acme.com/xpu"
LOST = NotAllocated(XPU, ["a-0"])


class Scripted:
    """An allocator that fails as asked."""

    error: Exception | None = None

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Answer]:
        await self.pre_start(resource, ())
        return []

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def timed(scripted: Scripted) -> AllocateCalls:
    return AllocateCalls(cast("Allocator", scripted))


async def start(timed: AllocateCalls, scripted: Scripted, error: Exception | None, *ids: str) -> None:
    scripted.error = error
    if error is None:
        await timed.pre_start(XPU, ids)
        return
    with pytest.raises(type(error)):
        await timed.pre_start(XPU, ids)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (InvalidRequest(XPU, "no"), "refused"),
        (VendorError("hung"), "error"),
        (RuntimeError("bug"), "error"),
    ],
)
@pytest.mark.parametrize("call", ["allocate", "pre_start"])
async def test_each_call_is_timed_by_how_it_ends(
    timed: AllocateCalls, scripted: Scripted, call: str, error: Exception | None, outcome: str
) -> None:
    scripted.error = error
    with nullcontext() if error is None else pytest.raises(type(error)):
        await getattr(timed, call)(XPU, [])

    mine, other = timed.seconds, timed.pre_start_seconds
    if call == "pre_start":
        mine, other = other, mine
    assert {key: cell[0] for key, cell in mine.items()} == {(XPU, outcome): 1}
    assert other == {}


@pytest.mark.parametrize("error", [LOST, VendorError("acme: hung")])
async def test_a_start_that_is_refused_again_and_again_is_said_once_with_its_reason(
    timed: AllocateCalls, scripted: Scripted, error: Exception
) -> None:
    with capture_logs() as logged:
        for _ in range(3):
            await start(timed, scripted, error, "a-0")

    assert logged == [
        {
            "event": "container start refused",
            "log_level": "warning",
            "resource": XPU,
            "ids": ("a-0",),
            "error": str(error),
        }
    ]


async def test_a_refused_start_is_said_anew_of_another_container_for_another_reason_and_after_a_start(
    timed: AllocateCalls, scripted: Scripted
) -> None:
    with capture_logs() as logged:
        await start(timed, scripted, LOST, "a-0")
        await start(timed, scripted, LOST, "a-1")
        await start(timed, scripted, VendorError("hung"), "a-0")
        await start(timed, scripted, None, "a-0")
        await start(timed, scripted, VendorError("hung"), "a-0")
        await start(timed, scripted, LOST, "a-1")

    assert [it["ids"][0] for it in logged] == ["a-0", "a-1", "a-0", "a-0"]


async def test_of_the_containers_refused_only_so_many_are_remembered(
    timed: AllocateCalls, scripted: Scripted
) -> None:
    with capture_logs() as logged:
        for number in (*range(MAX_REMEMBERED + 1), 1, 0):
            await start(timed, scripted, LOST, f"a-{number}")

    assert len(logged) == MAX_REMEMBERED + 2
    assert logged[-1]["ids"] == ("a-0",)


FULL = StartRefused(XPU, "uid-web", "default", "web", "main", "no room")


async def test_a_container_without_room_on_its_card_is_told_once_with_its_pod(
    timed: AllocateCalls, scripted: Scripted
) -> None:
    for error in (FULL, FULL, LOST, FULL):
        await start(timed, scripted, error, "a-0")

    assert [(it.number, it.pod, it.text) for it in timed.starts_refused] == [
        (number, PodRef("default", "web", "uid-web"), str(FULL)) for number in (1, 2)
    ]


class Looking:
    """Knows the pod once the API server was asked for it."""

    def __init__(self, scripted: Scripted, *, then: Exception | None) -> None:
        self.looks = 0
        self._scripted = scripted
        self._then = then

    async def look(self) -> None:
        self.looks += 1
        self._scripted.error = self._then


UNREAD = LimitsUnread(XPU, "uid-web", "main")


@pytest.mark.parametrize("then", [None, UNREAD], ids=["listed", "not listed"])
async def test_where_a_pod_is_not_known_yet_it_is_listed_before_its_container_is_refused(
    scripted: Scripted, then: Exception | None
) -> None:
    asked = Looking(scripted, then=then)
    timed = AllocateCalls(cast("Allocator", scripted), pod_waiter=cast("PodWaiter", asked))
    scripted.error = UNREAD

    with nullcontext() if then is None else pytest.raises(LimitsUnread):
        await timed.pre_start(XPU, ["a-0"])

    assert asked.looks == 1


@pytest.mark.parametrize("error", [InvalidRequest(XPU, "it is cordoned"), VendorError("acme: hung")])
async def test_a_refused_allocate_is_told_with_its_ids_and_our_words(
    scripted: Scripted, error: Exception
) -> None:
    told: list[RefusedAllocate] = []
    timed = AllocateCalls(cast("Allocator", scripted), told.append)
    await timed.allocate(XPU, [["a"]])
    scripted.error = error

    with pytest.raises(type(error)):
        await timed.allocate(XPU, [["a"]])

    assert told == [RefusedAllocate(XPU, (("a",),), str(error))]


class Giving(Scripted):
    """An allocator that gives one card."""

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Answer]:
        held = Allocation("a1", XPU, "acme", ("a-0",), ("a",), AllocationState.DONE, 1.0)
        return [Answer(held, ContainerEdits(annotations={ALLOCATION: "a1"}))]


async def test_an_answer_is_logged_with_its_ids_and_waits_for_no_log() -> None:
    timed = AllocateCalls(cast("Allocator", Giving()))

    with capture_logs() as logged:
        await timed.allocate(XPU, [["a-0"]])
        assert logged == []
        await eventually(lambda: logged)

    (line,) = logged
    assert (line["event"], line["allocation"], line["ids"]) == ("allocated", "a1", ("a-0",))
    assert line["ms"] >= 0

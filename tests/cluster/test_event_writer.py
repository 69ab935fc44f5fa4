"""Notices become Events that the server takes, whatever it or the wire does meanwhile."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.cluster import credentials
from agent.cluster.api_client import open_api
from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, Busy, Conflict, Forbidden, NotFound
from agent.cluster.api_protocol import Object, Patch
from agent.cluster.event_correlation import BURST
from agent.cluster.event_writer import INSTANCE, NOTE, Events, bounded
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.event_notices import Notice, PodRef
from agent.testing.simapi import SimApiServer

from .fakes import Unasked

AT = 1_700_000_000.25
TIME = "2023-11-14T22:13:20.250000Z"
SICK = Notice("DeviceUnhealthy", "acme card GPU-0 is unhealthy: hot")
WEB = PodRef("shop", "web-0", "4a1c-uid")
REFUSED = Notice("AllocateRefused", "no such device", pod=WEB)
NODES, PODS = (f"/apis/events.k8s.io/v1/namespaces/{name}/events" for name in ("default", "shop"))


@dataclass
class FakeApi(Unasked):
    """Takes what it is sent, or fails as it is told to, call after call."""

    fails: list[ApiError | None] = field(default_factory=list)
    #: Raised whenever the list is used up.
    always: ApiError | None = None
    #: method, path, body
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    hangs: asyncio.Event | None = None
    #: Set by the first call that does not fail.
    took: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, path: str, body: Object) -> Object:
        return await self._take("POST", path, body)

    async def patch(self, path: str, body: Any, kind: Patch = "merge") -> Object:
        assert kind == "merge"
        return await self._take("PATCH", path, body)

    async def _take(self, method: str, path: str, body: Any) -> Object:
        self.calls.append((method, path, body))
        if self.hangs is not None:
            await self.hangs.wait()
        error = self.fails.pop(0) if self.fails else self.always
        if error is not None:
            raise error
        self.took.set()
        return {}

    @property
    def bodies(self) -> list[Any]:
        return [body for method, _, body in self.calls if method == "POST"]


def made(node: str = "node-1", **more: Any) -> Events:
    return Events(node, clock=lambda: AT, pauses=Pauses(0.001, 0.002), **more)


@asynccontextmanager
async def running(events: Events, api: Any, returns: Cell[int] | None = None) -> AsyncIterator[None]:
    task = asyncio.create_task(events.run(api, returns or Cell(0)))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def sent(api: FakeApi, *notices: Notice, **more: Any) -> Events:
    """Tell these one after the other, and wait until all came through or were refused."""
    events = made(**more)
    async with running(events, api):
        for it in notices:
            before = sum(events.counts.values())
            events.add(it)
            await eventually(partial(_has_grown, events, before))
        await eventually(lambda: events.counts["sent"] + events.counts["refused"] >= len(notices))
    return events


def _has_been_called(api: FakeApi, times: int) -> bool:
    return len(api.calls) == times


def _has_grown(events: Events, before: int) -> bool:
    return sum(events.counts.values()) > before


# What is sent


async def test_a_notice_about_the_node_is_an_event_in_default_that_kubectl_describe_finds() -> None:
    api = FakeApi()

    await sent(api, SICK, instance="xpu-agent-x7f2")

    ((method, path, body),) = api.calls
    name = body["metadata"].pop("name")
    assert (method, path) == ("POST", NODES)
    assert name.startswith("node-1.")
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "default"},
        "eventTime": TIME,
        "reportingController": "xpu-agent.io/agent",
        "reportingInstance": "xpu-agent-x7f2",
        "action": "WithdrawDevice",
        "reason": "DeviceUnhealthy",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"},
        "note": "acme card GPU-0 is unhealthy: hot",
        "type": "Warning",
    }


async def test_a_notice_about_a_pod_is_an_event_in_its_namespace() -> None:
    api = FakeApi()

    await sent(api, REFUSED, structs.replace(REFUSED, pod=PodRef("shop", "db-0")))

    assert [path for _, path, _ in api.calls] == [PODS, PODS]
    assert [body["regarding"] for body in api.bodies] == [
        {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "4a1c-uid"},
        {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "db-0"},
    ]


async def test_a_notice_that_comes_again_changes_the_series_of_its_event_and_nothing_else() -> None:
    api = FakeApi()

    events = await sent(api, SICK, SICK, SICK)

    name = api.bodies[0]["metadata"]["name"]
    assert api.calls[1:] == [
        ("PATCH", f"{NODES}/{name}", {"series": {"count": count, "lastObservedTime": TIME}})
        for count in (2, 3)
    ]
    assert events.counts == {"sent": 3}


async def test_an_event_that_has_expired_is_made_anew_with_its_series() -> None:
    api = FakeApi(fails=[None, NotFound(404, "NotFound", "")])

    await sent(api, SICK, SICK)

    first, anew = api.bodies
    assert [it[0] for it in api.calls] == ["POST", "PATCH", "POST"]
    assert anew["metadata"]["name"] != first["metadata"]["name"]
    assert anew["series"] == {"count": 2, "lastObservedTime": TIME}


async def test_notices_that_come_before_the_server_are_one_write_where_they_are_one_event() -> None:
    api, events = FakeApi(), made()
    for _ in range(5):
        events.add(SICK)

    async with running(events, api):
        await eventually(lambda: events.counts["sent"])

    assert [it["series"]["count"] for it in api.bodies] == [5]


# Strangers' words


HOSTILE = {
    "a path": PodRef("shop/../../kube-system", "web"),
    "a query": PodRef("shop?x", "web"),
    "nothing": PodRef("", ""),
    "a line": PodRef("shop", "web\nx"),
    "a line's end": PodRef("shop\n", "web"),
    "capitals": PodRef("shop", "WEB"),
    "too long": PodRef("s" * 64, "web"),
    "a dot at the end": PodRef("shop", "web."),
}


@pytest.mark.parametrize("pod", HOSTILE.values(), ids=HOSTILE)
async def test_a_pod_of_a_name_that_no_pod_has_leads_to_the_node_and_to_no_other_path(pod: PodRef) -> None:
    api = FakeApi()

    await sent(api, structs.replace(REFUSED, pod=pod))

    ((_, path, body),) = api.calls
    assert path == NODES
    assert body["regarding"]["kind"] == "Node"


async def test_a_uid_that_is_none_is_left_out() -> None:
    api = FakeApi()

    await sent(api, structs.replace(REFUSED, pod=structs.replace(WEB, uid="x" * 1000)))

    assert "uid" not in api.bodies[0]["regarding"]


@given(st.text(max_size=3000), st.integers(4, 1500))
def test_a_note_is_printable_and_within_its_bytes(text: str, limit: int) -> None:
    note = bounded(text, limit)

    assert len(note.encode()) <= limit
    assert note.isprintable()
    if text.isprintable() and len(text.encode()) <= limit:
        assert note == text


@pytest.mark.parametrize(
    "text", ["\x1b[31mred\x07", "é" * 5000, "a\u202eb", "\ud800" * 600, "x" * 10_000_000]
)
async def test_whatever_a_vendor_says_is_a_note_that_the_server_takes(text: str) -> None:
    api = FakeApi()

    await sent(api, structs.replace(SICK, message=text))

    note = api.bodies[0]["note"]
    assert len(note.encode()) <= NOTE
    assert note.isprintable()


@pytest.mark.parametrize("node", ["n" * 253, "node.example.com", "Not A Node", "a-" * 126 + "b", "ü" * 200])
async def test_an_event_has_a_name_and_an_instance_that_fit_whatever_the_node_is_called(node: str) -> None:
    api = FakeApi()

    await sent(api, SICK, node=node)

    (body,) = api.bodies
    name = body["metadata"]["name"]
    assert len(name) <= 253
    assert all(part and part.strip("-") == part for part in name.split("."))
    assert len(body["reportingInstance"].encode()) <= INSTANCE


# Bounds


async def test_of_too_many_events_that_wait_the_oldest_make_room_and_are_counted() -> None:
    api, events = FakeApi(), made(waiting=3)
    for number in range(5):
        events.add(structs.replace(REFUSED, pod=PodRef("shop", f"web-{number}")))

    async with running(events, api):
        await eventually(lambda: events.counts["sent"] == 3)

    assert [it["regarding"]["name"] for it in api.bodies] == ["web-2", "web-3", "web-4"]
    assert events.counts["dropped"] == 2


async def test_what_an_object_may_not_write_any_more_is_counted_and_not_sent() -> None:
    events = await sent(FakeApi(), *[structs.replace(SICK, message=f"{number}") for number in range(BURST)])

    events.add(SICK)

    assert events.counts["suppressed"] == 1
    assert not events._waiting


# Faults on the wire


FAULTS = {
    "away": ApiAway("connection refused"),
    "busy": Busy(429, "TooManyRequests", "", None),
    "busy for a moment": Busy(429, "TooManyRequests", "", 0.001),
    "a token that is not taken now": Forbidden(401, "Unauthorized", ""),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_an_event_that_could_not_be_sent_is_sent_later_once(fault: ApiError) -> None:
    api = FakeApi(fails=[fault, fault, None])

    events = await sent(api, SICK)

    assert len({it["metadata"]["name"] for it in api.bodies}) == 1
    assert events.counts == {"sent": 1, "retried": 2}


async def test_the_server_is_left_alone_for_as_long_as_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []

    def pause(seconds: float) -> anyio.CancelScope:
        paused.append(seconds)
        return anyio.CancelScope(deadline=-math.inf)

    monkeypatch.setattr("agent.cluster.server_restart.anyio.move_on_after", pause)
    api = FakeApi(fails=[Busy(429, "", "", 30.0), Busy(429, "", "", 1e9), Busy(429, "", "", -5.0)])
    events = made()
    events.add(SICK)
    async with running(events, api):
        await api.took.wait()

    assert paused[:2] == [30.0, 600.0]
    assert 0 < paused[2] <= 0.002


async def test_a_server_that_is_back_is_written_to_at_once_however_long_the_pause() -> None:
    api, returns = FakeApi(fails=[ApiAway("connection refused")] * 3), Cell(0)
    events = Events("node-1", pauses=Pauses(3600.0, 3600.0))
    events.add(SICK)
    async with running(events, api, returns):
        for tries in range(1, 4):
            await eventually(partial(_has_been_called, api, tries))
            returns.set(tries)
        await eventually(lambda: events.counts["sent"])


async def test_a_server_that_came_back_while_it_was_asked_in_vain_is_asked_again() -> None:
    returns, hangs = Cell(0), asyncio.Event()
    api = FakeApi(fails=[ApiAway("no answer in time")], hangs=hangs)
    events = Events("node-1", pauses=Pauses(3600.0, 3600.0))
    events.add(SICK)
    async with running(events, api, returns):
        await eventually(lambda: api.calls)
        returns.set(1)
        hangs.set()
        await eventually(lambda: events.counts["sent"])


async def test_after_a_write_that_came_through_pauses_begin_anew() -> None:
    pauses = Pauses(0.001, 1000.0, jitter=lambda: 1.0)
    events = Events("node-1", pauses=pauses)
    api = FakeApi(fails=[ApiAway("connection refused")] * 3)
    async with running(events, api):
        events.add(SICK)
        await eventually(lambda: events.counts["sent"])

    assert pauses.next() == 0.001


async def test_while_the_server_is_away_it_is_said_once_and_so_is_its_return() -> None:
    api = FakeApi(fails=[ApiAway("connection refused")] * 4)

    with capture_logs() as logged:
        await sent(api, SICK)

    assert [it["event"] for it in logged] == [
        "events wait, the API server does not take them now",
        "events are written again",
    ]


async def test_telling_never_waits_for_a_server_that_hangs() -> None:
    api, events = FakeApi(hangs=asyncio.Event()), made(waiting=2)

    async with running(events, api):
        events.add(SICK)
        await eventually(lambda: api.calls)
        for number in range(10):
            events.add(structs.replace(REFUSED, pod=PodRef("shop", f"web-{number}")))

    assert len(api.calls) == 1
    assert events.counts["dropped"] == 8


async def test_an_event_that_came_through_although_its_answer_was_lost_is_not_sent_twice() -> None:
    api = FakeApi(fails=[ApiAway("timed out"), Conflict(409, "AlreadyExists", "")])

    events = await sent(api, SICK)

    first, second = api.bodies
    assert first["metadata"]["name"] == second["metadata"]["name"]
    assert events.counts["sent"] == 1


async def test_what_is_forbidden_is_said_once_and_the_next_event_is_tried_nevertheless() -> None:
    api = FakeApi(fails=[Forbidden(403, "Forbidden", "cannot create resource")] * 3)

    with capture_logs() as logged:
        events = await sent(api, *[structs.replace(SICK, message=f"{number}") for number in range(4)])

    assert [it["event"] for it in logged] == ["event refused", "events are written again"]
    assert logged[0]["error"] == "403 Forbidden: cannot create resource"
    assert events.counts == {"refused": 3, "sent": 1}


GONE = {
    "not there": NotFound(404, "NotFound", 'namespaces "shop" not found'),
    "ending": Forbidden(
        403, "Forbidden", "unable to create new content in namespace shop because it is being terminated"
    ),
}


@pytest.mark.parametrize("fault", GONE.values(), ids=GONE)
async def test_a_pod_whose_namespace_is_gone_is_no_trouble(fault: ApiRefused) -> None:
    with capture_logs() as logged:
        events = await sent(FakeApi(fails=[fault]), REFUSED)

    assert [it for it in logged if it["log_level"] != "debug"] == []
    assert events.counts == {"refused": 1}


async def test_an_event_that_the_server_finds_wrong_holds_up_no_other() -> None:
    api = FakeApi(fails=[ApiRefused(422, "Invalid", "note: too long"), None])

    with capture_logs() as logged:
        events = await sent(api, SICK, REFUSED)

    assert logged[0] == {
        "event": "event refused",
        "error": "422 Invalid: note: too long",
        "log_level": "warning",
    }
    assert events.counts == {"refused": 1, "sent": 1}


async def test_a_server_that_refuses_one_event_for_now_gets_the_others() -> None:
    api = FakeApi(fails=[ApiAway("503: webhook"), None, ApiAway("503: webhook"), None])

    events = made()
    events.add(SICK)
    events.add(REFUSED)
    async with running(events, api):
        await eventually(lambda: events.counts["sent"] == 2)

    assert [path for _, path, _ in api.calls] == [NODES, PODS, NODES, NODES]


async def test_events_outlast_an_outage_of_a_server_on_the_wire(tmp_path: Path) -> None:
    async with SimApiServer() as server:
        found = credentials.find(server.kubeconfig(tmp_path / "kubeconfig"), {})
        assert found is not None
        api = await open_api(found)
        events = made()
        try:
            async with running(events, api):
                events.add(SICK)
                await eventually(lambda: events.counts["sent"])
                await server.go_away()
                events.add(SICK)
                events.add(structs.replace(SICK, reason="DeviceHealthy", kind="Normal"))
                await eventually(lambda: events.counts["retried"])
                await server.come_back()
                await eventually(lambda: events.counts["sent"] >= 3)
        finally:
            await api.close()

        told = [it for it in server.objects if it["kind"] == "Event"]
        assert {it["reason"]: it.get("series", {}).get("count", 1) for it in told} == {
            "DeviceUnhealthy": 2,
            "DeviceHealthy": 1,
        }

"""The five calls of one resource: what the kubelet gets, and what a hostile client gets.

Numbers are those of the list of common plugin mistakes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from grpclib.client import UnaryUnaryMethod
from grpclib.const import Status
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.core.cell import Cell
from agent.core.errors import InvalidRequest, UnhealthyDevice, UnknownDevice, UnknownResource, VendorError
from agent.core.model import Resource
from agent.kubelet import device_plugin
from agent.kubelet.device_list import device_list, list_size
from agent.kubelet.device_plugin import DevicePlugin, PluginLimits
from agent.kubelet.kubelet_errors import KubeletError
from agent.kubelet.pb.deviceplugin.v1beta1 import (
    AllocateRequest,
    ContainerPreferredAllocationRequest,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    PreStartContainerRequest,
)
from agent.kubelet.pending_calls import PendingCalls
from agent.kubelet.requested_device_ids import preferred_request
from agent.kubelet.rpc import ServerChannel, SocketServer
from agent.vendor_api.agent import ContainerEdits

from .fakes import NAME, PLUGIN, FakeAnswers, Plugin, card, refused, resource
from .wire import Wire


@dataclass
class Served:
    plugin: DevicePlugin
    server: SocketServer
    cell: Cell[Resource]
    answers: FakeAnswers
    client: Plugin
    path: Path

    async def listen(self) -> Plugin:
        """Another client that reads the list stream."""
        client = Plugin(self.path)
        self._clients.append(client)
        self._tasks.append(asyncio.get_running_loop().create_task(client.listen()))
        return client

    def __post_init__(self) -> None:
        self._clients = [self.client]
        self._tasks: list[asyncio.Task[None]] = []

    async def close(self) -> None:
        await self.server.shutdown()
        for client in self._clients:
            client.read.set()
            client.close()
        for task in self._tasks:
            await task


@asynccontextmanager
async def served(path: Path, *cards: Any, **options: Any) -> AsyncIterator[Served]:
    cell = Cell(resource(*(cards or (card("a"), card("b")))))
    answers = FakeAnswers()
    limits = PluginLimits(**{"list_interval": 0.02, **options})
    async with anyio.create_task_group() as group:
        plugin = DevicePlugin(cell, answers, PendingCalls(group), limits=limits)
        server = SocketServer(plugin.methods())
        server.listen(path / "p.sock", group)
        client = Plugin(path / "p.sock")
        it = Served(plugin, server, cell, answers, client, path / "p.sock")
        try:
            with anyio.fail_after(120):
                yield it
        finally:
            await it.close()
        group.cancel_scope.cancel()


def preferred(*asked: tuple[list[str], list[str], int]) -> PreferredAllocationRequest:
    return PreferredAllocationRequest(
        container_requests=[
            ContainerPreferredAllocationRequest(
                available_deviceIDs=free, must_include_deviceIDs=must, allocation_size=size
            )
            for free, must, size in asked
        ]
    )


async def choices(it: Served, *asked: tuple[list[str], list[str], int]) -> list[list[str]]:
    answer = await it.client.call("GetPreferredAllocation", preferred(*asked), PreferredAllocationResponse)
    return [one.device_i_ds for one in answer.container_responses]


async def raw(it: Served, method: str, request: bytes) -> bytes:
    return await UnaryUnaryMethod(it.client.channel, f"{PLUGIN}/{method}", bytes, bytes)(request, timeout=30)


# ListAndWatch


async def test_each_change_sends_the_whole_list(plugins_dir: Path) -> None:
    # mistakes 8 and 9: never a delta, a failed device stays in as Unhealthy
    async with served(plugins_dir) as it:
        client = await it.listen()
        await eventually(lambda: client.lists)
        it.cell.set(resource(card("a", healthy=False), card("b")))

        await eventually(lambda: len(client.lists) == 2)
        assert client.healths() == {"a": "Unhealthy", "b": "Healthy"}


async def test_a_storm_of_changes_becomes_few_lists_that_end_with_the_last_state(plugins_dir: Path) -> None:
    # mistake 8
    async with served(plugins_dir, list_interval=0.1) as it:
        client = await it.listen()
        await eventually(lambda: client.lists)
        began = anyio.current_time()
        for number in range(201):
            it.cell.set(resource(card("a", healthy=number % 2 == 1), card(f"b{number}")))
            await anyio.lowlevel.checkpoint()

        await eventually(lambda: client.healths() == {"a": "Unhealthy", "b200": "Healthy"})
        assert len(client.lists) <= 3 + (anyio.current_time() - began) / 0.1


async def test_a_list_that_is_the_same_is_not_sent_again(plugins_dir: Path) -> None:
    # mistake 8
    async with served(plugins_dir, card("a"), card("b")) as it:
        client = await it.listen()
        await eventually(lambda: client.lists)
        it.cell.set(replace(it.cell.value, policy="distributed"))
        await eventually(lambda: it.plugin.delivered.value is it.cell.value)
        it.cell.set(resource(card("c")))
        await eventually(lambda: client.healths() == {"c": "Healthy"})

        assert len(client.lists) == 2
        await eventually(lambda: it.plugin.stats.lists == 2)


async def test_a_list_that_is_asked_for_again_is_sent_once_more_as_it_is(plugins_dir: Path) -> None:
    """The kubelet writes its checkpoint at each list that it receives, equal ones too."""
    async with served(plugins_dir) as it:
        client = await it.listen()
        await eventually(lambda: client.lists)

        it.plugin.repeat()
        await eventually(lambda: len(client.lists) == 2)
        it.cell.set(replace(it.cell.value, policy="distributed"))
        await eventually(lambda: it.plugin.delivered.value is it.cell.value)
        it.plugin.repeat()
        await eventually(lambda: len(client.lists) == 3)

        assert client.lists[0] == client.lists[1] == client.lists[2]
        await eventually(lambda: it.plugin.stats.lists == 3)


async def test_a_list_asked_for_by_many_at_once_is_one_list(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        client = await it.listen()
        await eventually(lambda: client.lists)

        for _ in range(100):
            it.plugin.repeat()
        await eventually(lambda: len(client.lists) == 2)
        it.cell.set(resource(card("c")))
        await eventually(lambda: client.healths() == {"c": "Healthy"})

        assert len(client.lists) == 3


async def test_a_list_asked_for_while_nobody_listens_is_the_next_streams_first(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        it.plugin.repeat()

        client = await it.listen()
        await eventually(lambda: client.lists)
        it.cell.set(resource(card("c")))
        await eventually(lambda: client.healths() == {"c": "Healthy"})

        assert len(client.lists) == 2


async def test_an_empty_list_is_sent(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        it.cell.set(resource())
        client = await it.listen()

        await eventually(lambda: client.lists)
        assert client.healths() == {}


async def test_a_slow_reader_gets_the_newest_list_and_holds_up_nobody(plugins_dir: Path) -> None:
    # mistake 6
    async with served(plugins_dir, card("u" * 50, count=100)) as it:
        client = await it.listen()
        await eventually(lambda: client.lists)
        client.read.clear()
        big = [card("u" * 50, count=20_000), card("a")]
        for number in range(20):
            it.cell.set(resource(*big, card(f"n{number}")))
            await anyio.lowlevel.checkpoint()
            await it.client.allocate(["a"])
        client.read.set()

        await eventually(lambda: "n19" in client.healths())
        assert len(client.lists) < 20


async def test_a_list_that_can_not_be_encoded_leaves_the_last_one_and_the_stream(plugins_dir: Path) -> None:
    # mistake 3
    async with served(plugins_dir) as it:
        client = await it.listen()
        await eventually(lambda: client.lists)
        it.cell.set(resource(card("\ud800")))  # no text that could be sent
        await eventually(lambda: it.plugin.stats.lists_failed)
        it.cell.set(resource(card("fine")))

        await eventually(lambda: client.healths() == {"fine": "Healthy"})
        assert not client.ended.is_set()


async def test_a_second_stream_is_refused_and_the_first_goes_on(plugins_dir: Path) -> None:
    # mistake 5: the kubelet asks once per registration, and never again
    async with served(plugins_dir) as it:
        first = await it.listen()
        await eventually(lambda: first.lists)
        with capture_logs() as logs:
            for _ in range(3):
                second = await it.listen()
                await second.ended.wait()
        it.cell.set(resource(card("new")))

        await eventually(lambda: first.healths() == {"new": "Healthy"})
        assert "one is served at a time" in second.refusal
        assert (second.lists, it.plugin.live.value) == ([], True)
        assert (it.plugin.stats.streams, it.plugin.stats.streams_refused) == (1, 3)
        assert [(one["event"], one["log_level"]) for one in logs] == [("a second list stream", "warning")]


async def test_a_stream_after_the_end_of_the_first_is_served(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        first = await it.listen()
        await eventually(lambda: first.lists)
        first.close()
        await it.plugin.live.until(False)

        second = await it.listen()
        await eventually(lambda: second.lists)


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_stream_of_a_stranger_ends_for_the_kubelets_where_the_two_can_be_told_apart(
    plugins_dir: Path, is_known: bool
) -> None:
    async with served(plugins_dir) as it:
        with closing(ServerChannel(it.path)) as channel:
            it.plugin.kubelet = channel.peer if is_known else None  # this process
        async with Wire.to(it.path, by_another_process=True) as stranger:
            stranger.ask(f"{PLUGIN}/ListAndWatch", bytes(5))
            await it.plugin.live.until(True)
            kubelet = await it.listen()
            if is_known:
                await eventually(lambda: kubelet.lists)
                assert "one is served at a time" in (await stranger.status())["grpc-message"]
                it.cell.set(resource(card("new")))
                await eventually(lambda: kubelet.healths() == {"new": "Healthy"})
            else:
                await kubelet.ended.wait()
                assert "one is served at a time" in kubelet.refusal
            assert it.plugin.live.value


async def test_a_stream_that_the_client_ends_is_noticed(plugins_dir: Path) -> None:
    # mistake 4
    async with served(plugins_dir) as it:
        client = await it.listen()
        await it.plugin.live.until(True)
        await eventually(lambda: client.lists)
        client.close()

        await it.plugin.live.until(False)


async def test_a_reader_that_leaves_in_the_middle_of_a_list_is_noticed(plugins_dir: Path) -> None:
    # mistake 4
    async with served(plugins_dir, card("u" * 50, count=50_000)) as it:
        client = await it.listen()
        client.read.clear()
        await it.plugin.live.until(True)
        client.close()
        await it.plugin.live.until(False)

        again = await it.listen()
        await eventually(lambda: len(again.healths()) == 50_000)


async def test_a_list_of_exactly_the_limit_is_sent_and_a_longer_one_is_not(plugins_dir: Path) -> None:
    # mistake 7
    fits = resource(card("a", healthy=False, count=100))
    async with served(plugins_dir, list_bytes=list_size(fits)) as it:
        it.cell.set(fits)
        client = await it.listen()
        await eventually(lambda: len(client.healths()) == 100)
        await eventually(lambda: it.plugin.stats.list_bytes == list_size(fits))

        it.cell.set(resource(card("a", healthy=True, count=101)))
        await eventually(lambda: set(client.healths().values()) == {"Healthy"})
        assert len(client.healths()) == 100
        assert it.plugin.stats.lists_too_long == 1


async def test_a_card_that_is_gone_leaves_a_list_that_is_too_long_as_well(plugins_dir: Path) -> None:
    fits = resource(card("a", count=10), card("b", count=10))
    async with served(plugins_dir, list_bytes=list_size(fits)) as it:
        it.cell.set(fits)
        client = await it.listen()
        await eventually(lambda: len(client.healths()) == 20)
        it.cell.set(resource(card("a", count=1000)))

        await eventually(lambda: len(client.healths()) == 10)


async def test_a_list_that_never_fitted_is_not_sent(plugins_dir: Path) -> None:
    async with served(plugins_dir, card("a", count=1000), list_bytes=100) as it:
        client = await it.listen()
        await eventually(lambda: it.plugin.stats.lists_too_long)
        assert not it.plugin.can_list()
        it.cell.set(resource(card("a")))

        await eventually(lambda: client.healths() == {"a": "Healthy"})
        assert len(client.lists) == 1


async def test_the_end_of_the_server_ends_the_stream(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        client = await it.listen()
        await eventually(lambda: client.lists)
        await it.server.shutdown()

        await eventually(client.ended.is_set)
        assert not it.plugin.live.value


# Allocate and PreStartContainer


async def test_each_container_gets_its_answer(plugins_dir: Path) -> None:
    # mistake 11: one answer per container, in order, whatever the order of the IDs
    async with served(plugins_dir) as it:
        answer = await it.client.allocate(["b", "a"], ["c"])

        assert [one.envs["IDS"] for one in answer.container_responses] == ["b,a", "c"]


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (UnknownDevice(NAME, "x"), Status.NOT_FOUND, "unknown device: x"),
        (UnhealthyDevice(NAME, "x", "lost"), Status.FAILED_PRECONDITION, "device x is unhealthy: lost"),
        (UnknownResource(NAME), Status.FAILED_PRECONDITION, "not served here"),
        (InvalidRequest(NAME, "two cards"), Status.INVALID_ARGUMENT, "invalid request: two cards"),
        (TimeoutError("vendor is slow"), Status.DEADLINE_EXCEEDED, "vendor is slow"),
        (VendorError("simulated: prepare: not open"), Status.UNAVAILABLE, "prepare: not open"),
        (ValueError("a bug – äöü"), Status.INTERNAL, "ValueError: a bug – äöü"),
    ],
)
async def test_a_refusal_keeps_its_words(
    plugins_dir: Path, error: Exception, status: Status, text: str
) -> None:
    async with served(plugins_dir) as it:
        it.answers.error = error
        with refused(status) as words:
            await it.client.allocate(["x"])
        assert text in words[0]
        with refused(status) as words:
            await it.client.call("PreStartContainer", PreStartContainerRequest(devices_ids=["x"]))
        assert text in words[0]
        stats = it.plugin.stats
        assert (stats.allocations_failed, stats.pre_starts_failed) == (1, 1)


async def test_an_allocation_survives_a_client_that_hangs_up(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        it.answers.gate = asyncio.Event()
        call = it.client.call("Allocate", AllocateRequest.parse(b"\x0a\x03\x0a\x01a"))
        waiting = asyncio.get_running_loop().create_task(call)
        await eventually(lambda: it.answers.asked)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        it.answers.gate.set()

        await eventually(lambda: it.answers.finished == 1)
        assert it.answers.cancelled == 0


async def test_an_allocation_that_hangs_is_ended_by_the_agents_own_deadline(plugins_dir: Path) -> None:
    # mistake 6: the kubelet has none, and admits no other pod meanwhile
    async with served(plugins_dir, allocate=0.05) as it:
        it.answers.gate = asyncio.Event()
        with refused(Status.DEADLINE_EXCEEDED) as words:
            await it.client.allocate(["a"])

        assert "not done within 0.05 s" in words[0]
        await eventually(lambda: it.answers.cancelled == 1)


async def test_the_list_goes_out_while_an_allocation_waits(plugins_dir: Path) -> None:
    # mistake 6
    async with served(plugins_dir) as it:
        it.answers.gate = asyncio.Event()
        client = await it.listen()
        waiting = asyncio.get_running_loop().create_task(it.client.allocate(["a"]))
        await eventually(lambda: it.answers.asked)
        it.cell.set(resource(card("new")))
        await eventually(lambda: client.healths() == {"new": "Healthy"})

        it.answers.gate.set()
        assert (await waiting).container_responses


async def test_an_answer_for_other_containers_than_asked_never_reaches_the_kubelet(
    plugins_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # mistake 11: an answer without containers leaks the devices
    async def nothing(*args: object) -> list[ContainerEdits]:
        return []

    async with served(plugins_dir) as it:
        monkeypatch.setattr(it.answers, "allocate", nothing)
        with refused(Status.INTERNAL) as words:
            await it.client.allocate(["a"])
        assert "0 answers for 1 containers" in words[0]


async def test_an_allocation_for_no_container_is_refused(plugins_dir: Path) -> None:
    # mistake 11
    async with served(plugins_dir) as it:
        with refused(Status.INVALID_ARGUMENT) as words:
            await it.client.allocate()
        assert "names no container" in words[0]
        assert it.answers.asked == []


async def test_a_container_without_ids_is_for_the_answers_to_judge(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        await it.client.allocate([])

        assert it.answers.asked == [((),)]


@pytest.mark.parametrize("method", ["Allocate", "PreStartContainer"])
@pytest.mark.parametrize(
    "request_", [b"\x0a\x03\x0a\x05a", b"\x0a\x04\x0a\x02\xff\xfe", b"\x0a\x02\xff\xfe\xff"]
)
async def test_bytes_that_are_no_request_are_refused(plugins_dir: Path, method: str, request_: bytes) -> None:
    async with served(plugins_dir) as it:
        if method == "PreStartContainer":
            request_ = request_[:-1] if request_[-1:] == b"\xff" else request_[2:]
        with refused(Status.INVALID_ARGUMENT) as words:
            await raw(it, method, request_)
        assert "undecodable" in words[0]


async def test_a_container_is_started_with_what_it_was_given(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        await it.client.call("PreStartContainer", PreStartContainerRequest(devices_ids=["b", "a"]))

        assert it.answers.started == [("b", "a")]


# GetPreferredAllocation


async def test_a_preference_is_passed_on(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        it.answers.choose = lambda free, must, n: [*must, *(one for one in free if one not in must)][:n]

        assert await choices(it, (["a", "b", "c"], ["c"], 2), (["a"], [], 1)) == [["c", "a"], ["a"]]


@pytest.mark.parametrize(
    "choice",
    [
        ["a", "x"],  # not available
        ["a"],  # too few
        ["a", "b", "c"],  # too many
        ["a", "a"],  # one twice
        ["b", "c"],  # without the required one
    ],
)
async def test_a_preference_that_is_no_choice_becomes_none(plugins_dir: Path, choice: list[str]) -> None:
    # mistake 10
    async with served(plugins_dir) as it:
        it.answers.choose = lambda free, must, n: choice

        assert await choices(it, (["a", "b", "c"], ["a"], 2)) == [[]]
        assert it.plugin.stats.preferred_empty == 1


async def test_a_preference_that_raises_leaves_the_choice_to_the_kubelet(plugins_dir: Path) -> None:
    # mistake 10: an error would fail the pod
    def broken(*args: object) -> list[str]:
        raise KeyError("bug")

    async with served(plugins_dir) as it:
        it.answers.choose = broken

        assert await choices(it, (["a"], [], 1), (["b"], [], 1)) == [[], []]


async def test_a_preference_asked_for_in_garbage_is_none(plugins_dir: Path) -> None:
    # mistake 10
    async with served(plugins_dir) as it:
        assert await raw(it, "GetPreferredAllocation", b"\x0a\xff") == b""


async def test_a_preference_among_very_many_is_found_beside_the_event_loop(plugins_dir: Path) -> None:
    many = [f"GPU-{n}" for n in range(30_000)]
    threads: set[int] = set()

    def spied(free: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        threads.add(threading.get_ident())
        return free[:size]

    async with served(plugins_dir) as it:
        it.answers.choose = spied

        assert await choices(it, (many, [], 2)) == [many[:2]]
        assert threading.get_ident() not in threads


@pytest.mark.parametrize(("number", "beside"), [(2_000, False), (30_000, True)])
async def test_only_very_many_ids_are_decoded_beside_the_event_loop(
    plugins_dir: Path, monkeypatch: pytest.MonkeyPatch, number: int, beside: bool
) -> None:
    many = [f"GPU-00000000-0000-0000-0000-000000000000::{n}" for n in range(number)]
    threads: set[int] = set()

    def spied(request: bytes) -> object:
        threads.add(threading.get_ident())
        return preferred_request(request)

    monkeypatch.setattr(device_plugin, "preferred_request", spied)
    async with served(plugins_dir) as it:
        it.answers.choose = lambda free, must, n: free[:n]

        assert await choices(it, (many, [], 2)) == [many[:2]]

    assert (threading.get_ident() not in threads) == beside


async def test_more_required_ids_than_asked_for_may_be_the_preference(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        it.answers.choose = lambda free, must, n: must

        assert await choices(it, (["a", "b", "c"], ["c", "a"], 1)) == [["c", "a"]]


# What a start and a whole life cost


async def test_nothing_fails_while_a_thousand_calls_come_and_go(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it:
        client = await it.listen()
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(_twenty, it)
        assert it.plugin.stats.allocations == 1000
        assert it.plugin.stats.allocations_failed == 0
        assert not client.ended.is_set()


async def _twenty(it: Served) -> None:
    for _ in range(20):
        await it.client.allocate(["a"])


async def test_large_lists_leave_the_event_loop_free(
    plugins_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are encoded in another thread: the loop must not need to take turns with it."""
    threads: set[int] = set()

    def spied(it: Resource) -> bytes:
        threads.add(threading.get_ident())
        return device_list(it)

    monkeypatch.setattr(device_plugin, "device_list", spied)
    async with served(plugins_dir, card("u" * 40, count=58_000)) as it:
        client = await it.listen()
        await eventually(lambda: len(client.healths()) == 58_000)

        assert threading.get_ident() not in threads


async def test_a_plugin_path_that_is_taken_is_an_error_not_a_theft(plugins_dir: Path) -> None:
    async with served(plugins_dir) as it, anyio.create_task_group() as group:
        with pytest.raises(KubeletError, match="cannot serve"):
            SocketServer(it.plugin.methods()).listen(it.path, group)

        assert (await it.client.allocate(["a"])).container_responses

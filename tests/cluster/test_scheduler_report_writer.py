"""The node's Device at the API server: one write for each change, and none against a koordlet."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from schedulers.koordinator import cards as of_node
from support.waiting import eventually

from agent.cluster import own_node, repeated_writes
from agent.cluster.api_client import open_api
from agent.cluster.credentials import find
from agent.cluster.object_record import ObjectRecord
from agent.cluster.own_node import OwnNode
from agent.cluster.reflector import FollowTiming, Reflector
from agent.cluster.scheduler_report_follower import SchedulerReportFollower
from agent.cluster.scheduler_report_state import SchedulerReportState
from agent.cluster.scheduler_report_timing import SchedulerReportTiming
from agent.config import Config, ConfigState, ReportSettings
from agent.core.cell import Cell
from agent.core.errors import SchedulerError
from agent.core.model import Health, Plan
from agent.daemon.publishing.wanted_scheduler_report import WantedSchedulerReport, WantedSchedulerReportTiming
from agent.host.scheduler_report_file import ReportFileWriter
from agent.scheduler_api.node_report import (
    LinkedCards,
    ModeQuestion,
    NodeReport,
    PublishedReport,
    Report,
    ReportedCard,
    ShownReport,
)
from agent.schedulers.koordinator.node_report import NODE_REPORT
from agent.schedulers.koordinator.report_mode import NOT_ASKED, choice
from agent.testing.simapi import SimApiServer
from agent.testing.simapi.api_resources import WELL_KNOWN
from agent.vendor_api.agent import State

from .koordlets import Koordlet, cards, from_files, pod

NODE = "node-1"
DEVICES, VERSION = NODE_REPORT.object.path, NODE_REPORT.object.api_path
DEVICE = next(it for it in WELL_KNOWN if it.kind == "Device")
GIB = 1 << 30
#: Seconds that a koordlet has here to take the Device over.
HANDOVER = 0.05
QUICK = FollowTiming(shortest=0.01, longest=0.1, refused=0.1)


def reported(count: int = 2, **card: Any) -> Report:
    made = (ReportedCard(f"GPU-{it}", it, memory=48 * GIB, pcie="pci0000:3a", numa=0) for it in range(count))
    its = [replace(it, **card) if it.minor == 0 else it for it in made]
    return Report("nvidia", tuple(its), "A40", "570.1")


class Clock:
    """Seconds that stand still until they are set on, and how often they were asked for."""

    def __init__(self) -> None:
        self.now = time.time()
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now


@dataclass
class Here:
    """A server with the node, and what looks at it and writes its Device."""

    server: SimApiServer
    exchange: SchedulerReportState
    koordinator: SchedulerReportFollower
    returns: Cell[int]
    clock: Clock
    #: Devices that were noted as ours, and those with nothing of ours any more.
    noted: list[str]
    forgotten: list[str]

    def tell(self, report: Report | None, mode: Any = "device", **more: Any) -> None:
        self.exchange.published.set(PublishedReport(mode, report, **more))

    async def looks_again(self) -> None:
        """Return once the server was asked anew, so that what was to be done by now is done."""
        asked = len(self.server.requests)
        self.server.end_watches()
        await self.server.wait(lambda it: len(it.requests) > asked + 1)

    async def passes(self, seconds: float) -> None:
        """Return once it was judged by then whether a koordlet reports."""
        self.clock.now += seconds
        asked = self.clock.asked
        await eventually(lambda: self.clock.asked > asked + 2)  # once for each look and for what comes next

    async def sees(self, *health: bool) -> None:
        """Return once it was judged with these cards in the Device."""

        def holds() -> bool:
            shown = self.exchange.shown.value
            cards = shown.report.cards if shown is not None and shown.report else ()
            return shown is not None and [it.healthy for it in cards] == list(health)

        await eventually(holds)

    @property
    def device(self) -> Any:
        return self.server.find("Device", NODE)

    def health(self) -> list[bool]:
        return [it["health"] for it in self.device["spec"].get("devices", ())] if self.device else []

    def shown(self, **its: Any) -> Callable[[], bool]:
        def holds() -> bool:
            shown = self.exchange.shown.value
            return shown is not None and all(getattr(shown, key) == it for key, it in its.items())

        return holds

    def written(self) -> list[str]:
        verbs = {"create", "update", "patch", "delete"}
        return [it.verb for it in self.server.requests if it.verb in verbs and it.path.startswith(DEVICES)]


@asynccontextmanager
async def looking(
    tmp_path: Path, *, kind: bool = True, before: Any = None, reporting: NodeReport = NODE_REPORT
) -> AsyncIterator[Here]:
    resources = [it for it in WELL_KNOWN if kind or it.kind != "Device"]
    async with SimApiServer(resources, bookmark_every=0.5) as server:
        server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        for it in before or ():
            server.put_object(it)
        access = find(server.kubeconfig(tmp_path / "kubeconfig"), {})
        assert access is not None
        api = await open_api(access)
        own: Cell[OwnNode | None] = Cell(None)
        labels: Cell[Mapping[str, str] | None] = Cell(None)
        exchange, returns, clock = SchedulerReportState(reporting), Cell(0), Clock()
        noted: list[str] = []
        forgotten: list[str] = []
        exchange.looks.set(True)
        nodes = Reflector(api, own_node.NODES, own_node.query(NODE), own_node.own_node, QUICK)
        timing = SchedulerReportTiming(
            between_writes=0.01,
            kind_missing=0.05,
            look=0.02,
            handover=HANDOVER,
            away=(0.01, 0.05),
            refused=(0.01, 0.05),
            clock=clock,
            wall=Clock(),
        )
        record = ObjectRecord(note=noted.append, forget=forgotten.append)
        koordinator = SchedulerReportFollower(api, NODE, exchange, own, QUICK, record, timing)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(nodes.run)
                group.start_soon(own_node.follow, nodes.cell, NODE, own, labels)
                group.start_soon(koordinator.run, returns)
                yield Here(server, exchange, koordinator, returns, clock, noted, forgotten)
                group.cancel_scope.cancel()
        finally:
            await api.close()


async def test_what_is_told_becomes_the_node_s_device_and_each_change_one_write(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        owner = here.device["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"]) == ("Node", NODE)
        assert here.device["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "nvidia"

        here.tell(reported(healthy=False, status="False", reason="Xid79", message="fell off the bus"))
        await eventually(lambda: here.health() == [False, True])
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        assert here.written() == ["create", "update", "update"]
        await eventually(lambda: here.koordinator.writes == 3)  # it counts a write after it is done


async def test_while_nothing_changes_nothing_is_written(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        await eventually(here.shown(has_kind=True, program=""))

        for _ in range(3):
            here.server.end_watches()
            asked = len(here.server.requests)
            await here.server.wait(lambda it, asked=asked: len(it.requests) > asked + 1)  # type: ignore[misc]
            here.exchange.published.touch()

        assert here.written() == ["create"]


async def test_what_others_have_in_it_stays(tmp_path: Path) -> None:
    nic = {"type": "rdma", "id": "0000:01:00.0", "minor": 0, "health": True}
    labels = {"theirs": "1"}
    metadata = {"name": NODE, "labels": labels, "annotations": labels, "uid": "u"}
    there = {"apiVersion": VERSION.removeprefix("/apis/"), "kind": "Device", "metadata": metadata}
    async with looking(tmp_path, before=[{**there, "spec": {"devices": [nic]}}]) as here:
        here.tell(reported())
        await eventually(lambda: len(here.health()) == 3)

        assert nic in here.device["spec"]["devices"]
        assert here.device["metadata"]["labels"].items() >= labels.items()
        assert here.device["metadata"]["annotations"].items() >= labels.items()


async def test_while_it_is_not_told_by_a_device_or_not_known_at_all_none_is_written(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        await eventually(here.shown(has_kind=True, report=None))
        for telling in (
            PublishedReport("feed", reported()),
            PublishedReport("none"),
            PublishedReport("device", None),
        ):
            here.exchange.published.set(telling)
            asked = len(here.server.requests)
            here.server.end_watches()
            await here.server.wait(lambda it, asked=asked: len(it.requests) > asked + 1)  # type: ignore[misc]

        assert here.device is None
        assert here.written() == []


async def test_an_outage_loses_nothing_and_is_caught_up_with_in_one_write(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        await here.server.go_away()
        here.tell(reported(healthy=False, status="False", reason="Xid79"))
        await eventually(lambda: here.koordinator.writer and here.koordinator.writer.delayed)
        assert not here.koordinator.error
        here.tell(reported(3, healthy=False, status="False", reason="Xid48"))
        await here.server.come_back()
        here.returns.set(1)

        await eventually(lambda: here.health() == [False, True, True])
        assert here.written() == ["create", "update"]
        await eventually(lambda: here.koordinator.writer and not here.koordinator.writer.delayed)


async def test_a_write_of_another_between_is_kept_and_ours_comes_after_it(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        theirs = here.device
        theirs["metadata"]["labels"]["theirs"] = "1"
        here.server.put_object(theirs)
        here.tell(reported(3))

        await eventually(lambda: here.health() == [True, True, True])
        assert here.device["metadata"]["labels"]["theirs"] == "1"


@pytest.mark.parametrize("fault", ["busy", "broken", "forbidden"])
async def test_a_server_that_does_not_take_it_is_tried_again(tmp_path: Path, fault: str) -> None:
    async with looking(tmp_path) as here:
        await eventually(here.shown(has_kind=True))
        here.server.forbid("create", DEVICES)
        here.tell(reported())
        await eventually(lambda: "403" in here.koordinator.error)
        if fault == "busy":
            here.server.be_busy(2, retry_after=0)
        if fault == "broken":
            here.server.be_broken(2)
        here.server.permit("create", DEVICES)

        await eventually(lambda: here.health() == [True, True])
        await eventually(lambda: not here.koordinator.error)


async def test_a_device_that_somebody_deletes_is_made_again(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        here.server.delete_object("Device", NODE)

        await eventually(lambda: here.health() == [True, True])


async def test_a_node_that_is_made_anew_owns_it_and_none_is_made_without_a_node(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        here.server.delete_object("Node", NODE)
        # As the garbage collector does it.
        here.server.delete_object("Device", NODE)
        here.server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        new: Any = here.server.find("Node", NODE)

        def owned() -> bool:
            owners = here.device["metadata"]["ownerReferences"] if here.device else []
            return [it["uid"] for it in owners] == [new["metadata"]["uid"]]

        await eventually(owned)


async def test_where_there_are_no_devices_nothing_is_asked_but_whether_there_are_by_now(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path, kind=False) as here:
        await eventually(here.shown(has_kind=False))
        assert not [it for it in here.server.requests if it.path == DEVICES]

        here.server.serve(DEVICE)
        here.tell(reported())
        await eventually(here.shown(has_kind=True))
        await eventually(lambda: here.health() == [True, True])

        here.server.unserve(DEVICE.group, DEVICE.name)
        here.server.end_watches()
        await eventually(here.shown(has_kind=False))

        here.server.serve(DEVICE)
        await eventually(lambda: here.health() == [True, True])


async def test_nobody_looks_where_nobody_wants_to_know(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        await eventually(here.shown(has_kind=True))
        here.exchange.looks.set(False)
        await eventually(lambda: here.exchange.shown.value is None and here.server.watchers == 1)

        here.exchange.looks.set(True)
        await eventually(here.shown(has_kind=True))


# Beside a koordlet


HERE = "koordlet koordinator-system/koordlet-x runs here with Accelerators=true"
OVERWROTE = "a koordlet overwrote this node's Device"
WRITES = "a koordlet writes this node's Device"
SICK: Any = {"healthy": False, "status": "False", "reason": "Xid79"}


def of(report: Report) -> list[dict[str, Any]]:
    """As a koordlet reports what our file says."""
    return [{**it, "health": card.healthy} for it, card in zip(cards(9), report.cards, strict=False)]


async def test_a_koordlet_s_pod_shows_that_it_reports_until_it_is_gone_and_wrote_nothing(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as here:
        await eventually(here.shown(program=""))
        here.server.put_object(pod(NODE))
        await eventually(here.shown(program=HERE))

        here.server.delete_object("Pod", "koordlet-x", "koordinator-system")
        await eventually(here.shown(program=""))


async def test_a_koordlet_s_pod_that_never_writes_counts_for_a_minute_and_then_we_write(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path, before=[pod(NODE)]) as here:
        here.tell(reported(), "feed")
        await eventually(here.shown(program=HERE))
        await here.passes(59)
        assert here.shown(program=HERE, silent="")()

        await here.passes(1)
        await eventually(here.shown(program="", silent=HERE))
        chosen = choice(ModeQuestion("auto", here.exchange.shown.value, api=True)) or NOT_ASKED
        assert chosen.mode == "device"
        assert chosen.why == f"{HERE}, and has not updated the Device for a minute"

        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        here.tell(reported(**SICK))
        await eventually(lambda: here.health() == [False, True])


async def test_a_card_that_falls_sick_after_koordlet_has_gone_is_sick_in_the_device_within_a_minute(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path, before=[pod(NODE)]) as here:
        here.tell(reported(), "feed")
        Koordlet(here.server, NODE).report(of(reported()))
        await here.sees(True, True)
        here.server.delete_object("Pod", "koordlet-x", "koordinator-system")
        # It may be a rollout: while the Device says what the file says, nobody has to write it.
        await eventually(here.shown(program=WRITES))
        await here.passes(3600)
        assert here.shown(program=WRITES)()

        here.tell(reported(**SICK), "feed")
        await here.passes(0)
        await here.passes(59)
        assert here.shown(program=WRITES)()
        await here.passes(1)
        await eventually(here.shown(program=""))

        here.tell(reported(**SICK))
        await eventually(lambda: here.health() == [False, True])


async def test_a_koordlet_that_comes_back_after_it_had_gone_counts_with_its_first_write(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path, before=[pod(NODE)]) as here:
        here.tell(reported(), "feed")
        await eventually(here.shown(program=HERE))
        await here.passes(60)
        await eventually(here.shown(program=""))
        here.tell(reported())
        await here.sees(True, True)
        await here.passes(0)
        assert here.shown(program="")()

        koordlet = Koordlet(here.server, NODE)
        koordlet.report([])  # as at every start of it
        await eventually(here.shown(program=HERE))
        here.tell(reported(), "feed")
        koordlet.report(of(reported()))
        await here.sees(True, True)
        await here.passes(3600)

        assert here.shown(program=HERE)()
        assert here.written() == ["create"]


async def test_a_koordlet_that_comes_goes_and_comes_back_is_found_out_and_no_sick_card_stays_healthy(
    tmp_path: Path,
) -> None:
    infos = tmp_path / "infos"
    infos.mkdir()
    settings = ReportSettings(mode="auto", device_infos_dir=str(infos))
    config = Cell(ConfigState(Config(report=settings), "test"))
    snapshot, plan = Cell(of_node.node(of_node.cards(3))), Cell[Plan]({})
    broken = Health(State.UNHEALTHY, "xid-79", "fell off the bus")

    def fail(*indices: int) -> None:
        sick = (of_node.card(it, health=broken) for it in indices)
        snapshot.set(of_node.node([*sick, *(of_node.card(it) for it in range(3) if it not in indices)]))

    def fed() -> list[bool]:
        return [it["health"] for it in from_files(infos) or ()]

    async with looking(tmp_path) as here, anyio.create_task_group() as group:
        koordlet = Koordlet(here.server, NODE)
        reporting = WantedSchedulerReport(
            here.exchange, config, snapshot, plan, timing=WantedSchedulerReportTiming(settle=0.01)
        )
        file = ReportFileWriter(NODE_REPORT, here.exchange.published, 0.02, elsewhere=here.exchange.elsewhere)
        group.start_soon(reporting.run)
        group.start_soon(file.run)
        await eventually(lambda: here.health() == [True, True, True])

        here.server.put_object(pod(NODE))
        await eventually(lambda: fed() == [True, True, True])
        koordlet.report([])
        await here.sees()
        await here.passes(3)
        koordlet.report(from_files(infos) or [])
        fail(0)
        await eventually(lambda: fed() == [False, True, True])
        koordlet.report(from_files(infos) or [])
        await here.sees(False, True, True)
        await here.passes(3600)
        assert here.written() == ["create"]

        here.server.delete_object("Pod", "koordlet-x", "koordinator-system")
        fail(0, 1)
        await eventually(lambda: fed() == [False, False, True])
        await here.passes(0)
        await here.passes(59)
        assert reporting.seen("").mode == "feed"
        await here.passes(1)
        await eventually(lambda: here.health() == [False, False, True])
        assert reporting.seen("").mode == "device"
        fail(0, 1, 2)  # nobody has to be waited for any more, and the file is kept for who comes back
        await eventually(lambda: here.health() == [False, False, False])
        await eventually(lambda: fed() == [False, False, False])

        here.server.put_object(pod(NODE))
        koordlet.report([])
        await eventually(lambda: reporting.seen("").mode == "feed")
        koordlet.report(from_files(infos) or [])
        fail(2)
        await eventually(lambda: fed() == [True, True, False])
        koordlet.report(from_files(infos) or [])
        await here.sees(True, True, False)
        await here.passes(3600)
        assert here.health() == [True, True, False]
        assert here.written() == ["create", "update", "update"]
        group.cancel_scope.cancel()


async def test_a_start_of_koordlet_that_empties_the_device_for_seconds_changes_nothing(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path, before=[pod(NODE)]) as here:
        koordlet = Koordlet(here.server, NODE)
        koordlet.report(of(reported()))
        here.tell(reported(), "feed")
        await here.sees(True, True)
        for _ in range(3):
            koordlet.report([])
            await here.sees()
            await here.passes(6)
            koordlet.report(of(reported()))
            await here.sees(True, True)
            await here.passes(60)
            assert here.shown(program=HERE)()
        assert here.written() == []


async def test_the_minute_of_a_koordlet_does_not_run_while_the_api_server_is_away(tmp_path: Path) -> None:
    async with looking(tmp_path, before=[pod(NODE)]) as here:
        koordlet = Koordlet(here.server, NODE)
        koordlet.report(of(reported()))
        here.tell(reported(), "feed")
        await here.sees(True, True)
        await here.server.go_away()
        mirror = here.koordinator.writer._mirror  # type: ignore[union-attr]
        await eventually(lambda: bool(mirror.value.error))
        here.tell(reported(**SICK), "feed")
        await here.passes(3600)
        await here.server.come_back()
        await eventually(lambda: not mirror.value.error)
        await here.passes(0)
        assert here.shown(program=HERE)()

        koordlet.report(of(reported(**SICK)))
        await here.sees(False, True)
        await here.passes(3600)
        assert here.shown(program=HERE)()


async def test_cards_for_which_other_files_answer_do_not_make_a_koordlet_silent(tmp_path: Path) -> None:
    async with looking(tmp_path, before=[pod(NODE)]) as here:
        here.exchange.elsewhere.set(frozenset({"GPU-0", "GPU-7"}))
        here.tell(reported(**SICK), "feed")
        theirs = [*of(reported()), {**cards(8)[7], "health": False}]
        Koordlet(here.server, NODE).report(theirs)
        await here.sees(True, True, False)
        await here.passes(3600)
        assert here.shown(program=HERE)()

        here.exchange.elsewhere.set(frozenset({"GPU-7"}))
        await here.passes(0)
        await here.passes(60)
        await eventually(here.shown(program=""))


async def test_another_node_s_koordlet_and_one_without_the_gate_do_not_count(tmp_path: Path) -> None:
    before = [
        pod("node-2"),
        {**pod(NODE, "Accelerators=false"), "metadata": {**pod(NODE)["metadata"], "name": "other"}},
    ]
    async with looking(tmp_path, before=before) as here:
        await eventually(here.shown(has_kind=True, program="", silent=""))


async def test_a_koordlet_that_is_not_fed_counts_for_as_long_as_its_pod_is_here(tmp_path: Path) -> None:
    """As beside `device` by name, or where its directory is not here: nobody knows what it should say."""
    async with looking(tmp_path, before=[pod(NODE)]) as here:
        here.tell(None, "none")
        Koordlet(here.server, NODE).report(cards())
        await here.sees(True)
        await here.passes(3600)
        assert here.shown(program=HERE)()

        here.server.delete_object("Pod", "koordlet-x", "koordinator-system")
        await eventually(here.shown(program=WRITES))
        await here.passes(60)
        await eventually(here.shown(program=""))


async def test_a_koordlet_that_overwrites_and_is_not_fed_is_left_alone_at_once_and_for_good(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        koordlet = Koordlet(here.server, NODE)

        koordlet.report(cards(1))
        await eventually(here.shown(overwritten=True, program=OVERWROTE))
        await here.passes(3600)

        for _ in range(20):  # a minute of its loop
            asked = len(here.server.requests)
            here.server.end_watches()
            await here.server.wait(lambda it, asked=asked: len(it.requests) > asked)  # type: ignore[misc]
            koordlet.report(cards(1))
        assert koordlet.writes == 1
        assert here.written() == ["create"]
        assert here.shown(program=OVERWROTE)()


async def test_once_the_pod_of_a_koordlet_that_overwrote_is_gone_the_device_is_ours_again(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        Koordlet(here.server, NODE).report(cards(1))
        await eventually(here.shown(overwritten=True))
        here.server.put_object(pod(NODE))
        await eventually(here.shown(program=HERE))
        await here.passes(3600)
        assert here.shown(program=HERE)()

        here.server.delete_object("Pod", "koordlet-x", "koordinator-system")
        await eventually(here.shown(program=OVERWROTE))
        await here.passes(60)

        await eventually(here.shown(program="", overwritten=False))
        await eventually(lambda: here.health() == [True, True])


async def test_a_koordlet_that_took_all_cards_away_and_is_fed_has_a_minute_to_bring_them_back(
    tmp_path: Path,
) -> None:
    """Its write owns the status alone, and the next one does not even have a new time."""
    async with looking(tmp_path) as here:
        koordlet = Koordlet(here.server, NODE)
        koordlet.report([])
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        (its,) = (it for it in here.device["metadata"]["managedFields"] if it["manager"] == "koordlet")

        koordlet.report([])
        await eventually(here.shown(overwritten=True))
        assert its["time"] in {it["time"] for it in here.device["metadata"]["managedFields"]}
        here.tell(reported(), "feed")
        await here.passes(0)
        await here.passes(59)
        assert here.written() == ["update"]

        await here.passes(1)
        await eventually(here.shown(program="", overwritten=False))
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])


async def test_a_koordlet_that_is_handed_the_device_has_not_overwritten_it(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        here.server.put_object(pod(NODE))
        await eventually(here.shown(program=HERE))
        here.tell(reported(), "feed")

        Koordlet(here.server, NODE).report(of(reported(**SICK)))
        await here.sees(False, True)

        assert here.shown(program=HERE, overwritten=False)()
        here.server.delete_object("Pod", "koordlet-x", "koordinator-system")
        here.server.delete_object("Device", NODE)
        await eventually(here.shown(program=""))
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])


async def test_who_else_changes_the_cards_is_put_right_though_a_koordlet_wrote_here_once(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as here:
        Koordlet(here.server, NODE).report([])
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        for spoilt in (cards(1), [*cards(2), {"type": "rdma", "id": "nic", "minor": 0, "health": True}]):
            here.server.put_object({**here.device, "spec": {"devices": spoilt}}, manager="kubectl-edit")
            await eventually(lambda: here.health()[:2] == [True, True] and "topology" in str(here.device))

        await here.looks_again()
        assert not here.exchange.shown.value or not here.exchange.shown.value.overwritten


def is_ours(here: Here) -> bool:
    return bool(here.device) and here.health() == [True, True] and "topology" in str(here.device)


async def undo(here: Here, manager: str) -> None:
    """Return once what somebody did is undone."""
    before = here.koordinator.writes
    here.server.put_object({**here.device, "spec": {"devices": cards(1)}}, manager=manager)
    await eventually(lambda: is_ours(here) and here.koordinator.writes > before)


async def test_who_changes_the_cards_again_and_again_is_named_and_written_over_more_and_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_writes, "LASTING", 0.0)
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.koordinator.writes == 1)
        writer = here.koordinator.writer
        assert writer is not None

        for _ in range(3):
            assert not here.koordinator.error
            await undo(here, "gitops")

        assert here.koordinator.error.startswith(
            "gitops changes this node's Device as often as the agent writes it"
        )
        assert not writer.overwritten.value
        here.tell(reported(2, healthy=False, status="False", reason="Xid79"))
        await eventually(lambda: here.health() == [False, True])


async def test_edits_by_hand_that_are_written_over_at_once_are_no_failure(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.koordinator.writes == 1)

        for _ in range(5):
            await undo(here, "kubectl-edit")

            assert not here.koordinator.error


async def test_a_device_that_somebody_deletes_while_it_is_written_is_made_again_and_nothing_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.koordinator.writes == 1)
        note = here.noted.append
        written = here.written

        def meanwhile(name: str) -> None:  # between what is read and what is written
            if here.device is not None:
                here.server.delete_object("Device", NODE)
            note(name)

        writer = here.koordinator.writer
        assert writer is not None
        monkeypatch.setattr(writer, "_record", ObjectRecord(note=meanwhile))
        here.tell(reported(**SICK))
        await eventually(lambda: here.health() == [False, True] or bool(here.koordinator.error))

        assert not here.koordinator.error
        assert written() == ["create", "update", "create"]


GROUPS = "scheduling.koordinator.sh/gpu-partitions"
PAIR = (LinkedCards((0, 1), "NVLink"),)
ONES = '{"1":[{"minors":[0],"gpuLinkType":"NVLink","allocationScore":1}]}'


def annotated(device: Any, value: str) -> Any:
    labels = {**device["metadata"].get("labels", {}), "node.koordinator.sh/gpu-partition-policy": "Honor"}
    return {**device, "metadata": {**device["metadata"], "annotations": {GROUPS: value}, "labels": labels}}


async def test_groups_of_cards_that_an_operator_wrote_stay_whoever_is_told_of_other_links(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as here:
        here.tell(replace(reported(), links=PAIR))
        await eventually(lambda: here.health() == [True, True])
        here.server.put_object(annotated(here.device, ONES), manager="kubectl-edit")
        await here.looks_again()

        here.tell(replace(reported(**SICK), links=PAIR))
        await eventually(lambda: here.health() == [False, True])

        metadata = here.device["metadata"]
        assert metadata["annotations"] == {GROUPS: ONES}
        assert metadata["labels"]["node.koordinator.sh/gpu-partition-policy"] == "Honor"
        assert here.written() == ["create", "update"]


@pytest.mark.parametrize("whose", ["xpu-agent", "koordlet"])
async def test_groups_of_cards_that_we_or_a_koordlet_wrote_follow_the_links(
    tmp_path: Path, whose: str
) -> None:
    there = {"apiVersion": VERSION.removeprefix("/apis/"), "kind": "Device", "metadata": {"name": NODE}}
    async with looking(tmp_path) as here:
        here.server.put_object(annotated({**there, "spec": {"devices": cards(2)}}, ONES), manager=whose)

        here.tell(replace(reported(), links=PAIR))
        await eventually(lambda: is_ours(here))

        assert '"minors":[0,1]' in here.device["metadata"]["annotations"][GROUPS]


async def test_a_watch_that_lags_does_not_have_us_see_a_koordlet_who_wrote_before_us(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        Koordlet(here.server, NODE).report(cards(3))
        before = here.device
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        writer = here.koordinator.writer
        assert writer is not None
        await eventually(lambda: writer.writes == 1)  # it hears of its write after it is done

        assert not writer.yields(before)
        Koordlet(here.server, NODE).report(cards(3))
        assert writer.yields(here.device)


async def test_a_device_that_was_overwritten_and_deleted_is_ours_again_at_once(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        Koordlet(here.server, NODE).report([])
        await eventually(here.shown(overwritten=True))

        here.server.delete_object("Device", NODE)

        await eventually(here.shown(overwritten=False))
        await eventually(lambda: here.health() == [True, True])


async def test_who_may_not_list_pods_knows_a_koordlet_by_its_hand(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.exchange.looks.set(False)
        await eventually(lambda: here.exchange.shown.value is None)
        here.server.forbid("list", "/api/v1/pods")
        here.exchange.looks.set(True)
        await eventually(here.shown(has_kind=True, program="", refused=""))

        Koordlet(here.server, NODE).report(cards())

        await eventually(here.shown(program=WRITES))
        await here.passes(60)
        await eventually(here.shown(program=""))


async def test_who_may_not_see_devices_is_told_which_right_is_missing(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.exchange.looks.set(False)
        await eventually(lambda: here.exchange.shown.value is None)
        here.server.forbid("list", DEVICES)
        here.exchange.looks.set(True)

        await eventually(lambda: "403" in (here.exchange.shown.value or ShownReport()).refused)

        chosen = choice(ModeQuestion("device", here.exchange.shown.value, api=True))
        assert chosen is not None
        assert chosen.trouble
        assert "allow get, list, watch, create and update" in chosen.why


# No Device of ours any more


NOBODY: Any = {"report": None, "mode": "none", "withdraw_object": True}


async def test_a_device_that_nobody_wants_any_more_goes(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        assert here.noted == [NODE]
        assert here.forgotten == []

        here.tell(**NOBODY)

        await eventually(lambda: here.device is None)
        await eventually(lambda: here.forgotten == [NODE])
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])


async def test_where_it_is_told_by_a_file_a_koordlet_gets_a_while_to_take_the_device_over(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        here.tell(reported(), "feed", withdraw_object=True)
        koordlet = Koordlet(here.server, NODE)
        koordlet.report(cards(1))

        await eventually(lambda: here.forgotten == [NODE])

        assert here.health() == [True]
        assert not koordlet.report(cards(1))


async def test_without_a_koordlet_that_takes_it_over_it_goes(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        here.tell(reported(), "feed", withdraw_object=True)

        await eventually(lambda: here.device is None)


async def test_what_others_have_in_it_is_all_that_stays(tmp_path: Path) -> None:
    nic = {"type": "rdma", "id": "0000:01:00.0", "minor": 0, "health": True}
    metadata = {"name": NODE, "labels": {"theirs": "1"}, "annotations": {"theirs": "2"}}
    there = {"apiVersion": VERSION.removeprefix("/apis/"), "kind": "Device", "metadata": metadata}
    async with looking(tmp_path, before=[{**there, "spec": {"devices": [nic]}}]) as here:
        here.tell(reported())
        await eventually(lambda: len(here.health()) == 3)
        # They write their part again: the list is theirs then, our cards in it, too.
        here.server.put_object(
            {**here.device, "spec": {"devices": [*here.device["spec"]["devices"]]}}, "nics"
        )

        here.tell(**NOBODY)

        await eventually(lambda: here.forgotten == [NODE])
        assert here.device["spec"] == {"devices": [nic]}
        assert here.device["metadata"]["labels"] == {"theirs": "1"}
        assert here.device["metadata"]["annotations"] == {"theirs": "2"}


@pytest.mark.parametrize("whose", ["koordlet", "somebody"])
async def test_the_cards_of_others_are_not_ours_to_take_away(tmp_path: Path, whose: str) -> None:
    there = {"apiVersion": VERSION.removeprefix("/apis/"), "kind": "Device", "metadata": {"name": NODE}}
    async with looking(tmp_path) as here:
        here.server.put_object({**there, "spec": {"devices": cards(2)}}, manager=whose)

        here.tell(**NOBODY)

        await eventually(lambda: here.forgotten == [NODE])
        assert here.written() == []


async def test_a_device_that_may_not_be_deleted_is_told_with_the_right_that_is_missing(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        here.server.forbid("delete", DEVICES)

        here.tell(**NOBODY)
        await eventually(lambda: "allow get, update and delete" in here.koordinator.error)
        here.server.permit("delete", DEVICES)

        await eventually(lambda: here.device is None and not here.koordinator.error)


async def test_an_outage_puts_it_off(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])

        await here.server.go_away()
        here.tell(**NOBODY)
        await here.server.come_back()

        await eventually(lambda: here.device is None)


async def test_who_may_not_even_see_devices_has_none_to_take_back(tmp_path: Path) -> None:
    async with looking(tmp_path) as here:
        here.server.forbid("*", DEVICES)

        here.tell(**NOBODY)

        await eventually(lambda: here.forgotten == [NODE])
        assert not here.koordinator.error


# A plugin that fails


class Faulty:
    """A function of a report's object that fails while it is broken."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.is_broken = False
        changed: dict[str, Any] = {function: self}
        self.reporting = replace(NODE_REPORT, object=replace(NODE_REPORT.object, **changed))

    def __call__(self, *arguments: Any) -> Any:
        if self.is_broken:
            raise SchedulerError("acme", self.function, "KeyError: 'spec'")
        return getattr(NODE_REPORT.object, self.function)(*arguments)


@pytest.mark.parametrize("function", ["wanted", "judge", "report", "listed", "is_of_program"])
async def test_a_plugin_that_fails_costs_no_card_in_the_object_and_is_seen_until_it_works(
    tmp_path: Path, function: str
) -> None:
    faulty = Faulty(function)
    async with looking(tmp_path, reporting=faulty.reporting) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        faulty.is_broken = True

        here.tell(reported(healthy=False))
        here.server.end_watches()

        await eventually(
            lambda: here.koordinator.error == f"acme: its plugin fails in {function}: KeyError: 'spec'"
        )
        assert len(here.health()) == 2
        faulty.is_broken = False
        await eventually(lambda: here.health() == [False, True])
        await eventually(lambda: here.koordinator.error == "")


async def test_a_pod_that_the_plugin_fails_to_read_hides_no_other_pod(tmp_path: Path) -> None:
    def shows(document: Any) -> str | None:
        if document["metadata"]["name"].startswith("hostile"):
            raise SchedulerError("acme", "shows_program", "TypeError: no text")
        return NODE_REPORT.object.shows_program(document)

    reporting = replace(NODE_REPORT, object=replace(NODE_REPORT.object, shows_program=shows))
    hostile = pod(NODE)
    hostile["metadata"]["name"] = "hostile"
    async with looking(tmp_path, reporting=reporting, before=[hostile, pod(NODE)]) as here:
        await eventually(lambda: here.exchange.shown.value is not None and here.exchange.shown.value.program)


@pytest.mark.parametrize("function", ["is_of_agent", "withdrawn"])
async def test_cards_stay_in_the_object_and_in_the_record_where_the_plugin_cannot_take_them_out(
    tmp_path: Path, function: str
) -> None:
    faulty = Faulty(function)
    async with looking(tmp_path, reporting=faulty.reporting) as here:
        here.tell(reported())
        await eventually(lambda: here.health() == [True, True])
        faulty.is_broken = True

        here.tell(**NOBODY)

        await eventually(lambda: "still has our cards: acme: its plugin fails" in here.koordinator.error)
        assert here.health() == [True, True]
        assert here.forgotten == []
        faulty.is_broken = False
        await eventually(lambda: here.device is None)
        await eventually(lambda: here.forgotten == [NODE])

"""What the agent shows of use, from the samples of vendors that answer, hang, and leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from core.usage.cards_in_use import CARD, GIB, OTHER_CARD, card, device, held, moment, pod, process
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.config import Config, IdleSettings, UsageSettings
from agent.core.attribution.scheduler_promises import Promises
from agent.core.errors import SamplingEnded, VendorTimeout
from agent.core.model import VendorState
from agent.core.usage.card_accounts import Accounts, accounts
from agent.core.usage.minute_history import UsageHistory
from agent.core.usage.usage_report import ContainerUse, SamplingStatus, Unattributed, VendorSample
from agent.daemon.usage import current_accounts
from agent.daemon.usage.usage_sampler import UsageSampler
from agent.vendor_api.agent import ProcessUsage

UID = "0f0e1d2c-3b4a-5968-7786-95a4b3c2d1e0"
NOON = 1_800_000_000.0
VENDORS = ("acme", "other")


class Vendor:
    """A vendor's process: answers with a sample, raises an error, or hangs while `answers` is not set."""

    def __init__(self, *processes: ProcessUsage, used: int = 4 * GIB, uuid: str = CARD) -> None:
        self.answer: VendorSample | Exception = VendorSample((card(used, uuid),), processes)
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def sample(self) -> VendorSample:
        self.asked += 1
        await self.answers.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Node:
    """A sampler with vendors, processes, allocations and a clock that a test sets."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.now = NOON
        self.vendors: dict[str, Vendor] = {}
        self.promises: Promises = moment()
        self.config = Config(usage=UsageSettings(enabled=True, proc_dir=proc))
        self.logs: tuple[str, ...] = ()
        self.logs_read = 0
        self.sampler = UsageSampler(
            lambda: self.vendors,
            lambda: self.promises,
            lambda: self.config,
            lambda: self.now,
            UsageHistory(),
            self.log_directories,
        )

    def log_directories(self) -> tuple[str, ...]:
        self.logs_read += 1
        return self.logs

    def has(self, pid: int, uid: str = UID, started: int = 1) -> None:
        directory = self.proc / str(pid)
        directory.mkdir()
        (directory / "cgroup").write_text(f"0::/kubepods/pod{uid}/{'ab' * 32}")
        (directory / "stat").write_text(f"{pid} (python3) S {'0 ' * 18}{started} 0")

    def wants(self, idle: IdleSettings | None = None) -> None:
        """The config has a sample each minute, and an alarm where `idle` says so."""
        usage = UsageSettings(enabled=True, interval=60.0, proc_dir=self.proc, idle=idle or IdleSettings())
        self.config = replace(self.config, usage=usage)

    async def round(self, seconds: float = 5.0) -> None:
        """One round of samples, so many seconds after the last one."""
        self.now += seconds
        for name, vendor in self.sampler.begin().items():
            await self.sampler.sample(name, vendor)

    @property
    def containers(self) -> Mapping[str, ContainerUse]:
        return {it.pod: it for it in self.sampler.report().containers}

    @property
    def alarms(self) -> list[str]:
        return [it.reason for it in self.sampler.alarms]

    @property
    def status(self) -> SamplingStatus:
        (status,) = self.sampler.report().sampling
        return status


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def of(name: str) -> Promises:
    """The pod of this name has the card, and the uid of the processes."""
    owner = replace(held(name), owner=replace(held(name).owner, uid=UID))  # type: ignore[type-var]
    return moment(owner)


async def test_a_sample_shows_each_containers_use_with_the_time_of_the_sample(node: Node) -> None:
    node.has(7)
    node.promises = of("p")
    node.vendors["acme"] = Vendor(process(7, GIB, 0.25))
    assert node.sampler.report().containers == ()
    await node.round()
    use = node.containers["p"]
    assert (use.memory, use.utilization, use.active_at) == (GIB, 0.25, NOON + 5)
    assert node.status == SamplingStatus("acme", NOON + 5, tells_processes=True)
    report = node.sampler.report()
    assert [(it.pid, it.name, it.pod) for it in report.processes] == [(7, "python3", "p")]
    assert report.interval == 5.0
    node.now += 2
    assert node.sampler.report().now == NOON + 7


async def test_a_containers_use_ends_with_its_allocation_and_not_with_the_next_sample(node: Node) -> None:
    node.has(7)
    node.promises = of("p")
    node.vendors["acme"] = Vendor(process(7, GIB))
    await node.round()
    node.promises = moment(pods=[replace(pod("p"), uid=UID)])
    assert node.containers == {}
    (of_card,) = node.sampler.report().cards
    assert of_card.unattributed[Unattributed.UNKNOWN_POD] == GIB
    await node.round()
    assert node.containers["p"].resource == ""


async def test_a_vendor_whose_samples_stay_away_is_shown_for_three_intervals(node: Node) -> None:
    node.has(7)
    node.promises = of("p")
    node.vendors["acme"] = vendor = Vendor(process(7, GIB, 0.0))
    await node.round()
    vendor.answer = VendorTimeout("acme", "sample", 2.0)
    await node.round()
    await node.round()
    assert node.containers["p"].memory == GIB
    assert (node.status.at, node.status.ended) == (NOON + 5, False)
    assert node.status.error == "acme: sample did not return within 2 s"
    vendor.answer = SamplingEnded("acme", "a change", "3 samples were late")
    await node.round()
    assert node.containers == {}
    assert node.sampler.report().cards == ()
    assert node.status.ended
    vendor.answer = VendorSample((card(GIB),), ())
    await node.round()
    assert node.containers["p"].memory == 0
    assert node.status == SamplingStatus("acme", node.now, tells_processes=True)


async def test_what_a_vendor_said_whose_sampling_has_ended_is_seen_nowhere_and_that_of_others_stays(
    node: Node,
) -> None:
    node.wants(IdleSettings(event=True, after=60.0))
    of_other = replace(held("q", OTHER_CARD), vendor="other")
    devices = (device(CARD), device(OTHER_CARD, vendor="other"))
    states = dict.fromkeys(VENDORS, VendorState.OPEN)
    node.promises = moment(held("p"), of_other, devices=devices, states=states)
    node.vendors = {"acme": Vendor(), "other": Vendor(uuid=OTHER_CARD)}
    for _ in range(2):
        await node.round(60)
    assert node.containers.keys() == {"p", "q"}
    assert [it.pod for it in node.sampler.alarms] == ["p", "q"]
    minutes = node.sampler.history.of("ns", "p", "main", CARD)
    node.vendors["acme"].answer = SamplingEnded("acme", "a change", "3 samples were late")
    await node.round(60)
    report = node.sampler.report()
    assert report.sampled == {"other"}
    assert {it.vendor for it in report.cards} == {"other"}
    assert node.containers.keys() == {"q"}
    assert [it.pod for it in node.sampler.alarms] == ["q"]
    assert node.sampler.history.of("ns", "p", "main", CARD) == minutes


async def test_the_alarms_of_a_vendor_end_with_its_sampling(node: Node) -> None:
    node.wants(IdleSettings(event=True, after=60.0))
    node.promises = of("p")
    node.vendors["acme"] = vendor = Vendor()
    for _ in range(2):
        await node.round(60)
    assert node.alarms == ["IdleAccelerator"]
    vendor.answer = SamplingEnded("acme", "a change", "3 samples were late")
    await node.round(1)
    assert node.alarms == []


async def test_a_sample_speaks_of_now_for_three_intervals_and_of_no_later_time(node: Node) -> None:
    node.promises = of("p")
    node.vendors["acme"] = Vendor()
    await node.round()
    for seconds, shown in ((15.0, {"p"}), (0.5, set())):
        node.now += seconds
        assert node.containers.keys() == shown
        assert node.sampler.report().sampled == ({"acme"} if shown else set())


async def test_a_defect_costs_the_sample_and_not_the_agent(node: Node) -> None:
    node.has(7)
    node.promises = of("p")
    node.vendors["acme"] = vendor = Vendor(process(7, GIB))
    good = vendor.answer
    await node.round()
    vendor.answer = RuntimeError("generator raised StopIteration")
    with capture_logs() as logs:
        await node.round()
        await node.round()
    assert node.status.at == NOON + 5
    assert node.status.error == "acme: a defect of the agent: RuntimeError: generator raised StopIteration"
    assert [it["vendor"] for it in logs if it.get("exc_info")] == ["acme"]
    vendor.answer = good
    await node.round()
    assert (node.status.at, node.status.error) == (node.now, "")


async def test_a_defect_in_what_follows_a_sample_is_said_of_its_vendor(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defective(*of: Any) -> Accounts:
        raise KeyError("a pod")

    node.vendors["acme"] = Vendor()
    with monkeypatch.context() as defect, capture_logs() as logs:
        defect.setattr(current_accounts, "accounts", defective)
        await node.round()
        await node.round()
    assert node.status.error == "acme: a defect of the agent: KeyError: 'a pod'"
    assert [it["vendor"] for it in logs if it.get("exc_info")] == ["acme"]
    await node.round()
    assert (node.status.at, node.status.error) == (node.now, "")


async def test_a_defect_in_the_end_of_samples_ends_no_round_and_is_told_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defective(*of: Any) -> Accounts:
        raise KeyError("a pod")

    node.has(7)
    node.promises = of("p")
    node.vendors["acme"] = Vendor(process(7, GIB))
    await node.round()
    vendor = node.vendors.pop("acme")
    with monkeypatch.context() as defect, capture_logs() as logs:
        defect.setattr(current_accounts, "accounts", defective)
        await node.round()
        await node.round()
    assert [it["event"] for it in logs if it.get("exc_info")] == [
        "use of cards not ended, please report this with the log"
    ]
    node.vendors["acme"] = vendor
    await node.round()
    assert node.containers.keys() == {"p"}


async def test_the_sample_of_a_vendor_that_is_out_of_service_since_adds_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.vendors = {"acme": Vendor(), "other": Vendor(uuid=OTHER_CARD)}
    await node.round()
    node.vendors["acme"].answers.clear()
    asked = node.sampler.begin()
    async with anyio.create_task_group() as group:
        group.start_soon(node.sampler.sample, "acme", asked["acme"])
        await eventually(lambda: node.vendors["acme"].asked == 2)
        gone = node.vendors.pop("acme")
        node.sampler.begin()
        followed: list[Accounts] = []
        monkeypatch.setattr(node.sampler, "_follow", followed.append)
        gone.answers.set()
    assert followed == []


async def test_a_vendor_that_hangs_delays_no_other_and_is_asked_once(node: Node) -> None:
    node.config = replace(node.config, usage=replace(node.config.usage, interval=0.01))
    node.vendors = {"hung": Vendor(), "acme": Vendor()}
    node.promises = moment(states=dict.fromkeys(node.vendors, VendorState.OPEN))
    node.vendors["hung"].answers.clear()
    task = asyncio.create_task(node.sampler.run())
    try:
        await eventually(lambda: node.vendors["acme"].asked > 3)
        assert node.vendors["hung"].asked == 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_two_vendors_do_not_forget_each_others_processes(node: Node) -> None:
    node.has(7)
    node.has(8, "1f0e1d2c-3b4a-5968-7786-95a4b3c2d1e0")
    devices = (device(CARD), device("OTHER", vendor="other"))
    node.promises = moment(devices=devices, states=dict.fromkeys(VENDORS, VendorState.OPEN))
    node.logs = (f"ns_p_{UID}", "ns_q_1f0e1d2c-3b4a-5968-7786-95a4b3c2d1e0")
    node.vendors = {"acme": Vendor(process(7, GIB)), "other": Vendor(process(8, GIB, uuid="OTHER"))}
    for _ in range(3):
        await node.round()
    assert node.containers.keys() == {"p", "q"}
    assert node.logs_read == 2  # once for each vendor


async def test_a_vendor_without_methods_for_use_says_so(node: Node) -> None:
    node.promises = of("p")
    node.vendors["acme"] = vendor = Vendor()
    vendor.answer = VendorSample(None, None)
    await node.round()
    assert node.status == SamplingStatus("acme", node.now, tells_processes=False)
    assert (node.containers["p"].memory, node.containers["p"].utilization) == (None, None)


async def test_what_was_wrong_with_a_sample_is_in_the_status(node: Node) -> None:
    node.vendors["acme"] = vendor = Vendor()
    vendor.answer = VendorSample((card(GIB),), None, {"processes": "3 entries are left out"})
    await node.round()
    assert node.status.error == "processes: 3 entries are left out"
    assert node.status.tells_processes


async def test_a_device_that_the_vendor_does_not_list_is_shown_nowhere_and_said_at_the_second_sample(
    node: Node,
) -> None:
    node.has(7)
    node.promises = of("p")
    node.vendors["acme"] = Vendor(process(7, GIB), process(7, GIB, uuid="GPU-strange"))
    for error in ("", "processes: 1 entry is left out: GPU-strange is no device that the vendor lists"):
        await node.round()
        report = node.sampler.report()
        assert [it.usage.uuid for it in report.cards] == [it.uuid for it in report.processes] == [CARD]
        assert [it.uuid for it in report.containers] == [CARD]
        assert report.unknown["card"] == 1
        assert node.status.error == error


async def test_an_agent_that_does_not_see_the_hosts_pids_says_so(node: Node) -> None:
    node.vendors["acme"] = Vendor(process(7, GIB), process(8, GIB))
    await node.round()
    assert node.status.error == (
        f"none of the processes is in {node.proc}: the agent does not see the host's pids"
    )
    (of_card,) = node.sampler.report().cards
    assert of_card.unattributed[Unattributed.UNMEASURED] == 4 * GIB


async def test_processes_are_looked_for_where_the_config_has_them_now(node: Node, tmp_path: Path) -> None:
    node.promises = of("p")
    node.vendors["acme"] = Vendor(process(7, GIB))
    node.proc = tmp_path / "host"
    (node.proc / "self" / "ns").mkdir(parents=True)
    (node.proc / "self" / "ns" / "pid").symlink_to("pid:[4026531836]")
    node.has(7)
    await node.round()
    assert (node.containers["p"].processes, node.sampler.report().sees_node_pids) == (0, False)
    node.wants()
    await node.round()
    assert (node.containers["p"].processes, node.sampler.report().sees_node_pids) == (1, True)


async def test_a_vendor_that_is_not_open_is_not_asked_and_is_shown_only_if_it_was(node: Node) -> None:
    node.vendors["acme"] = vendor = Vendor()
    closed = moment(states={"acme": VendorState.UNAVAILABLE})
    node.promises = closed
    await node.round()
    assert (vendor.asked, node.sampler.report().sampling) == (0, ())
    node.promises = moment()
    await node.round()
    assert (vendor.asked, node.status.error) == (1, "")
    node.promises = closed
    await node.round()
    assert (vendor.asked, node.status.error) == (1, "acme: the vendor is not open")
    assert node.status.at == NOON + 10


async def test_a_vendor_out_of_service_is_shown_no_more(node: Node) -> None:
    node.has(7)
    node.promises = of("p")
    node.vendors["acme"] = Vendor(process(7, GIB))
    await node.round()
    node.vendors = {}
    assert node.containers == {}
    assert node.sampler.report().sampling == ()
    await node.round()
    node.vendors["acme"] = Vendor()
    assert node.sampler.report().sampling == ()


async def test_log_directories_are_read_only_for_a_pod_that_nothing_else_names(node: Node) -> None:
    node.has(7)
    node.promises = of("p")
    node.vendors["acme"] = Vendor(process(7, GIB))
    await node.round()
    assert node.logs_read == 0
    node.promises, node.logs = moment(), (f"ns_q_{UID}", "no pod", "ns_other_uid")
    await node.round()
    assert node.containers["q"].memory == GIB
    await node.round()
    assert node.logs_read == 1
    assert node.containers["q"].memory == GIB


async def test_a_pod_that_no_log_directory_names_is_looked_for_once(node: Node) -> None:
    node.has(7)
    node.vendors["acme"] = Vendor(process(7, GIB))
    await node.round()
    await node.round()
    assert node.logs_read == 1
    assert node.sampler.report().unknown["owner"] == 1


async def test_the_history_and_the_times_of_use_follow_the_samples(node: Node) -> None:
    node.wants()
    node.has(7)
    node.promises = of("p")
    node.vendors["acme"] = vendor = Vendor(process(7, GIB, 0.5))
    await node.round()
    vendor.answer = VendorSample((card(GIB),), (process(7, 2 * GIB, 0.0),))
    await node.round(60)
    minutes = node.sampler.history.of("ns", "p", "main", CARD)
    assert [(memory, utilization) for _, memory, utilization in minutes] == [(GIB, 0.5), (2 * GIB, 0.0)]
    assert node.containers["p"].active_at == NOON + 5


async def test_alarms_come_and_go_and_an_idle_one_only_where_the_config_wants_it(node: Node) -> None:
    node.wants()
    node.promises = of("p")
    node.vendors["acme"] = vendor = Vendor()
    for _ in range(31):
        await node.round(60)
    assert node.alarms == []
    node.wants(IdleSettings(event=True))
    await node.round(60)
    before = node.sampler.alarms
    assert node.alarms == ["IdleAccelerator"]
    await node.round(60)
    assert node.sampler.alarms == before
    node.has(7)
    vendor.answer = VendorSample((card(GIB),), (process(7, GIB, 0.1),))
    await node.round()
    assert node.alarms == []


async def test_an_alarm_ends_where_no_sample_comes_any_more(node: Node) -> None:
    node.wants(IdleSettings(event=True, after=60.0))
    node.promises = of("p")
    node.vendors["acme"] = vendor = Vendor()
    await node.round()
    await node.round(100)
    assert node.alarms == ["IdleAccelerator"]
    vendor.answer = VendorTimeout("acme", "sample", 2.0)
    await node.round(100)
    assert node.alarms == ["IdleAccelerator"]
    await node.round(100)
    assert node.alarms == []


async def test_a_sample_that_lacks_utilization_and_samples_that_stay_away_lose_no_time_of_use(
    node: Node,
) -> None:
    node.wants()
    node.has(7)
    node.promises = of("p")
    node.vendors["acme"] = vendor = Vendor(process(7, GIB, 0.5))
    await node.round()
    unknown, idle = (VendorSample((card(GIB),), (process(7, GIB, it),)) for it in (None, 0.0))
    for answer in (unknown, VendorTimeout("acme", "sample", 2.0), idle):
        vendor.answer = answer
        await node.round(300)
    assert node.containers["p"].active_at == NOON + 5


async def test_the_accounts_of_two_vendors_are_made_in_threads_alone_and_views_show_the_last_ones_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.promises = moment(states=dict.fromkeys(("acme", "other"), VendorState.OPEN))
    node.vendors = {"acme": Vendor(), "other": Vendor()}
    await node.round()
    last, made, may_end = node.sampler.report(), [], threading.Event()

    def slow(*of: Any) -> Accounts:
        made.append(threading.current_thread())
        if made[-1] is not threading.main_thread():
            may_end.wait(30)
        return accounts(*of)

    monkeypatch.setattr(current_accounts, "accounts", slow)
    try:
        async with anyio.create_task_group() as group:
            for name, vendor in node.sampler.begin().items():
                group.start_soon(node.sampler.sample, name, vendor)
            await eventually(lambda: made and all(it.asked == 2 for it in node.vendors.values()))
            assert node.sampler.report().cards is last.cards
            assert len(made) == 1
            node.promises = of("p")  # the ledger has changed
            assert node.sampler.report().cards is not last.cards
            assert made[1:] == [threading.main_thread()]
            may_end.set()
    finally:
        may_end.set()
    assert threading.main_thread() not in made[2:]


async def test_a_report_that_was_prepared_makes_no_accounts_on_the_loop(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.vendors["acme"] = Vendor()
    await node.round()
    made: list[threading.Thread] = []

    def noted(*of: Any) -> Accounts:
        made.append(threading.current_thread())
        return accounts(*of)

    monkeypatch.setattr(current_accounts, "accounts", noted)
    node.promises = of("p")  # the ledger has changed
    await node.sampler.prepare()
    assert node.containers.keys() == {"p"}
    assert len(made) == 1
    assert threading.main_thread() not in made


async def test_a_list_of_ten_thousand_processes_loses_nothing(node: Node) -> None:
    node.has(7)
    node.promises = of("p")
    strangers = [process(pid, 1, None) for pid in range(1000, 11_000)]
    node.vendors["acme"] = Vendor(process(7, GIB), *strangers)
    await node.round()
    assert node.containers["p"].memory == GIB
    assert node.status.error == ""

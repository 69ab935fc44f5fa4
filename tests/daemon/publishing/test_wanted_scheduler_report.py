"""What Koordinator is told follows config, devices and API server, and never a guess."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from schedulers.koordinator.cards import broken, card, node
from support.waiting import eventually

from agent.cluster.scheduler_report_state import SchedulerReportState
from agent.config import Config, ConfigState, ReportSettings, VendorSettings
from agent.core.cell import Cell
from agent.core.errors import SchedulerError
from agent.core.model import (
    AdvertisedDevice,
    IdRange,
    NodeSnapshot,
    Plan,
    Resource,
    VendorState,
    VendorStatus,
)
from agent.daemon.publishing.wanted_scheduler_report import (
    NOT_OFFERED,
    SLICED,
    ReportDirectory,
    WantedSchedulerReport,
    WantedSchedulerReportTiming,
    withheld,
)
from agent.scheduler_api.node_report import NodeReport, PublishedReport, Report, ReportedCard, ShownReport
from agent.schedulers.koordinator.node_report import NODE_REPORT
from agent.vendor_api.agent import FOREIGN_SLICES, ResourceRule, Sharing

ALONE = ShownReport(has_kind=True)
REPLICAS = ResourceRule("nvidia.com/gpu", sharing=Sharing("replicas", 4))


class Here:
    """A reporting, and the cells that it looks at."""

    def __init__(
        self,
        *,
        api: bool = True,
        said: Report | None = None,
        reporting: NodeReport = NODE_REPORT,
        **report: Any,
    ) -> None:
        self.there = True
        self.withheld: dict[str, str] = {}
        self.config = Cell(ConfigState(Config(report=ReportSettings(**report)), "test"))
        self.snapshot = Cell(NodeSnapshot())
        self.plan: Cell[Plan] = Cell({})
        self.asked: list[Path] = []

        def look(directory: Path, _: object) -> Report | None:
            self.asked.append(directory)
            return said

        self.reporting = WantedSchedulerReport(
            SchedulerReportState(reporting),
            self.config,
            self.snapshot,
            self.plan,
            api=api,
            withheld=lambda: self.withheld,
            timing=WantedSchedulerReportTiming(every=0.01),
            directory=ReportDirectory(look, lambda _: self.there),
        )
        self.exchange = self.reporting.state

    async def told(self, shown: ShownReport | None = ALONE) -> tuple[str, list[tuple[str, int, bool]]] | None:
        """The way, and the cards with minor and health."""
        self.exchange.shown.set(shown)
        await self.reporting.once()
        telling = self.exchange.published.value
        if telling is None:
            return None
        cards = telling.report.cards if telling.report else ()
        return telling.mode, [(it.uuid, it.minor, it.healthy) for it in cards]


def its(index: int) -> str:
    return card(index).uuid


async def test_nothing_is_told_before_the_vendors_and_the_api_server_have_spoken() -> None:
    here = Here()
    assert await here.told(None) is None
    assert here.exchange.looks.value
    assert await here.told() == ("device", [])

    here.snapshot.set(node([card(0), card(1)]))

    assert await here.told() == ("device", [(its(0), 0, True), (its(1), 1, True)])


async def test_what_is_told_stays_while_the_vendor_is_silent_and_the_way_while_the_api_server_is() -> None:
    here = Here()
    here.snapshot.set(node([card(0)]))
    before = await here.told()

    here.snapshot.set(node(metax=VendorState.STARTING))

    assert await here.told(None) == before
    assert await here.told() == before


@pytest.mark.parametrize(
    ("mode", "looks"), [("auto", True), ("device", True), ("feed", False), ("none", False)]
)
async def test_the_api_server_is_looked_at_only_where_it_decides(mode: Any, looks: bool) -> None:
    here = Here(mode=mode)
    await here.told(None)

    assert here.exchange.looks.value is looks
    assert not Here(mode=mode, api=False).exchange.looks.value


async def test_cards_keep_the_minors_that_an_earlier_agent_gave_them() -> None:
    here = Here(
        mode="feed",
        device_infos_dir="/d",
        said=Report("metax", (ReportedCard(its(1), 5), ReportedCard(its(0), 7))),
    )
    here.snapshot.set(node([card(0, minor=None), card(1, minor=None)]))

    assert await here.told(None) == ("feed", [(its(1), 5, True), (its(0), 7, True)])
    await here.told(None)
    assert here.asked == [Path("/d")]

    there = Here(mode="device")
    there.snapshot.set(here.snapshot.value)
    shown = replace(ALONE, report=Report("metax", (ReportedCard(its(0), 9),)))
    assert await there.told(shown) == ("device", [(its(1), 1, True), (its(0), 9, True)])


async def test_shares_that_look_like_cards_are_not_told_and_it_is_said_why() -> None:
    here = Here()
    config = replace(here.config.value.config, vendors={"nvidia": VendorSettings(resources=(REPLICAS,))})
    here.config.set(ConfigState(config, "test"))
    here.snapshot.set(node([card(0)]))

    assert await here.told() == ("none", [])
    telling = here.exchange.published.value or PublishedReport("none")
    assert telling.withdraw_object
    assert telling.withdraw_file
    seen = here.reporting.seen("")
    assert "nvidia.com/gpu counts replicas" in seen.why
    assert not seen.error


@pytest.mark.parametrize(("mode", "error"), [("auto", False), ("device", True), ("feed", True)])
async def test_shares_that_a_vendor_makes_of_its_own_settings_count_as_well(mode: Any, error: bool) -> None:
    here = Here(mode=mode)
    here.snapshot.set(node([card(0)]))
    here.plan.set({"nvidia.com/gpu": Resource("nvidia.com/gpu", "nvidia", REPLICAS, "distributed")})

    assert await here.told() == ("none", [])
    assert bool(here.reporting.seen("").error) == error

    here.plan.set({"nvidia.com/gpu": replace(here.plan.value["nvidia.com/gpu"], retired=True)})
    assert (await here.told() or ("",))[0] != "none"  # it ends by itself


@pytest.mark.parametrize(
    ("mode", "withdraw_file", "withdraw_object"),
    [("none", True, True), ("feed", False, True), ("auto", False, False), ("device", True, False)],
)
async def test_what_the_config_wants_no_more_is_taken_back(
    mode: Any, withdraw_file: bool, withdraw_object: bool
) -> None:
    here = Here(mode=mode)
    here.snapshot.set(node([card(0)]))
    await here.told()

    telling = here.exchange.published.value
    assert telling is not None
    assert (telling.withdraw_file, telling.withdraw_object) == (withdraw_file, withdraw_object)


async def test_an_error_counts_where_the_config_names_the_way() -> None:
    here = Here(mode="device")
    await here.told(ShownReport(has_kind=False))
    assert here.reporting.seen("").error.startswith("the API server has no Device objects")
    assert here.reporting.seen("").wanted

    by_itself = Here()
    await by_itself.told(ShownReport(has_kind=False))
    assert (by_itself.reporting.seen("").error, by_itself.reporting.seen("").wanted) == ("", False)


def test_cards_that_no_resource_offers_are_withheld_once_their_vendor_serves_any() -> None:
    snapshot = node([card(0), card(1), card(0, vendor="acme")])
    rule = ResourceRule("metax-tech.com/gpu")
    card_ = AdvertisedDevice(its(0), IdRange(its(0)), healthy=True)

    assert withheld(snapshot, {}) == {}
    plan = {rule.name: Resource(rule.name, "metax", rule, "distributed", (card_,))}
    assert withheld(snapshot, plan) == {its(1): NOT_OFFERED}
    assert withheld(snapshot, {rule.name: replace(plan[rule.name], retired=True)}) == {}


def test_a_card_on_which_others_made_slices_is_withheld_unless_a_resource_gives_it_out() -> None:
    foreign = replace(card(0), device=replace(card(0).device, attributes={FOREIGN_SLICES: "1"}))
    rule = ResourceRule("metax-tech.com/gpu")

    def plan(*, healthy: bool) -> Plan:
        its_card = AdvertisedDevice(its(0), IdRange(its(0)), healthy)
        return {rule.name: Resource(rule.name, "metax", rule, "distributed", (its_card,))}

    assert withheld(node([foreign]), plan(healthy=False)) == {its(0): SLICED}
    assert withheld(node([foreign]), plan(healthy=True)) == {}
    assert withheld(node([card(0)]), plan(healthy=False)) == {}


async def test_what_the_kubelet_does_not_hear_to_be_healthy_is_not_told_so_either() -> None:
    here = Here()
    here.snapshot.set(node([card(0)]))
    here.withheld = {"metax": "/var/run/cdi: no space left"}

    assert await here.told() == ("device", [(its(0), 0, False)])
    telling = here.exchange.published.value
    assert telling is not None
    assert telling.report is not None
    assert telling.report.cards[0].message == "/var/run/cdi: no space left"


async def test_nothing_is_told_while_the_config_is_awaited() -> None:
    here = Here()
    here.config.set(replace(here.config.value, waiting=True))
    here.snapshot.set(node([card(0)]))

    assert await here.told() is None
    assert not here.exchange.looks.value


@pytest.mark.parametrize(
    "after",
    [
        NodeSnapshot(),
        node(enflame=VendorState.OPEN),
        node([card(0, vendor="enflame")]),
    ],
)
async def test_cards_of_a_vendor_that_the_config_has_taken_out_of_service_are_taken_back(
    after: NodeSnapshot,
) -> None:
    here = Here(mode="device", vendor="metax")
    here.snapshot.set(node([card(0)]))
    await here.told()

    here.snapshot.set(after)

    for _ in range(2):
        assert await here.told() == ("none", [])
        telling = here.exchange.published.value
        assert telling is not None
        assert (telling.withdraw_file, telling.withdraw_object) == (True, True)
        assert "metax" in here.reporting.seen("").why
    here.snapshot.set(node([card(0)]))
    assert await here.told() == ("device", [(its(0), 0, True)])


async def test_cards_that_an_earlier_agent_told_stay_whoever_is_in_service() -> None:
    here = Here()
    told = replace(ALONE, report=Report("metax", (ReportedCard(its(0), 0),)))

    assert await here.told(told) == ("device", [])
    telling = here.exchange.published.value
    assert telling is not None
    assert (telling.withdraw_file, telling.withdraw_object) == (False, False)


async def test_a_chosen_vendor_that_is_not_here_is_said_where_others_have_cards() -> None:
    here = Here(vendor="metax")
    here.snapshot.set(node([card(0, vendor="enflame")]))
    await here.told()

    assert here.reporting.seen("").left_out == (
        "1 cards of enflame are not reported: report.vendor is 'metax', which is not in service here",
    )
    here.snapshot.set(NodeSnapshot())
    await here.told()
    assert here.reporting.seen("").left_out == ()
    here.snapshot.set(node([card(0), card(0, vendor="enflame")]))
    await here.told()
    (why,) = here.reporting.seen("").left_out
    assert "one vendor alone" in why


async def test_a_chosen_vendor_without_cards_is_said_where_others_have_some() -> None:
    here = Here(vendor="metax")
    others = node([card(0, vendor="enflame")])
    here.snapshot.set(replace(others, vendors=(*others.vendors, VendorStatus("metax", VendorState.OPEN))))
    await here.told()

    why = "1 cards of enflame are not reported: report.vendor is 'metax', which lists no cards"
    assert here.reporting.seen("").left_out == (why,)

    starting = VendorStatus("metax", VendorState.STARTING)
    here.snapshot.set(replace(others, vendors=(*others.vendors, starting)))
    await here.told()
    assert here.reporting.seen("").left_out == ()


async def test_cards_that_another_file_tells_are_not_counted_as_told() -> None:
    here = Here()
    here.snapshot.set(node([card(0), card(1), broken(2)]))
    await here.told()

    seen = here.reporting.seen("", {its(0): "another file lists it"})

    assert (seen.cards, seen.healthy, seen.left_out) == (2, 1, ("another file lists it",))


async def test_what_is_left_out_of_what_stands_is_said_once() -> None:
    here = Here(vendor="metax")
    both = node([card(0), card(0, vendor="enflame")])
    here.snapshot.set(both)
    await here.told()
    metax, enflame = (it for name in ("metax", "enflame") for it in both.vendors if it.name == name)
    lost = replace(both, devices=both.of("enflame"), vendors=(replace(metax, reason="gone"), enflame))
    here.snapshot.set(lost)
    await here.told()

    (why,) = here.reporting.seen("").left_out
    assert why.startswith("1 cards of enflame are not reported")


async def test_a_device_that_may_not_be_seen_any_more_is_an_error_as_its_cards_stay() -> None:
    here = Here()
    here.snapshot.set(node([card(0)]))
    refused = ShownReport(has_kind=True, refused="403 Forbidden")
    assert await here.told(refused) == ("none", [])
    assert not here.reporting.seen("").error

    await here.told()
    await here.told(refused)

    assert "403 Forbidden" in here.reporting.seen("").error


async def test_beside_a_koordlet_whose_directory_is_not_here_nothing_fails_until_it_comes() -> None:
    here = Here(device_infos_dir="/infos")
    here.there = False
    here.snapshot.set(node([card(0)]))
    here.exchange.shown.set(ShownReport(has_kind=True, program="koordlet x runs here"))
    async with anyio.create_task_group() as group:
        group.start_soon(here.reporting.run)
        await eventually(lambda: here.reporting.seen("").mode == "none")
        assert "koordlet's directory /infos does not exist" in here.reporting.seen("").why
        assert not here.reporting.seen("").error

        here.there = True
        await eventually(lambda: here.reporting.seen("").mode == "feed")
        # One that was there and is gone is an error of who keeps the file.
        here.there = False
        here.plan.touch()
        await here.reporting.once()
        assert here.reporting.seen("").mode == "feed"
        group.cancel_scope.cancel()


@pytest.mark.parametrize("function", ["choose", "report", "passed_over", "is_served"])
async def test_where_the_plugin_fails_the_last_report_stays_and_the_fault_is_seen(function: str) -> None:
    faults = {function: False}

    def works_or_fails(*arguments: Any) -> Any:
        if faults[function]:
            raise SchedulerError("acme", function, "KeyError: 'spec'")
        return getattr(NODE_REPORT, function)(*arguments)

    changed: dict[str, Any] = {function: works_or_fails}
    here = Here(reporting=replace(NODE_REPORT, **changed))
    here.snapshot.set(node([card(0)]))
    before = await here.told()
    faults[function] = True
    here.snapshot.set(node() if function == "is_served" else node([broken(0)]))

    assert await here.told() == before
    assert here.reporting.seen("").error == f"acme: its plugin fails in {function}: KeyError: 'spec'"

    faults[function] = False
    await here.told()
    assert here.reporting.seen("").error == ""

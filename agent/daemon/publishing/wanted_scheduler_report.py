"""The report of the node's cards to a scheduler, and its mode: from config, devices and the API server."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from msgspec import Struct

from agent.cluster.scheduler_report_state import SchedulerReportState
from agent.config import ConfigState, ReportSettings
from agent.config.validation import replicas_as_cards
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever, set_on_change
from agent.core.errors import SchedulerError
from agent.core.model import NodeSnapshot, Plan
from agent.core.publishing.agent_status import SchedulerReport
from agent.core.publishing.node_cards import node_cards
from agent.host import scheduler_report_file
from agent.scheduler_api.node_cards import NodeCards
from agent.scheduler_api.node_report import (
    Mode,
    ModeChoice,
    ModeQuestion,
    PublishedReport,
    Report,
    ReportFile,
)
from agent.vendor_api.agent import FOREIGN_SLICES

log = structlog.get_logger()

#: Why a card is withheld from the scheduler.
NOT_OFFERED = "no resource offers it as a whole"
SLICED = "slices that this agent did not make lie on it"


def withheld(
    snapshot: NodeSnapshot, plan: Plan, vendors: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """The cards that no pod gets as a whole, uuid to the reason.

    A card is withheld if the config offers other cards of its vendor and not this one, if slices of others
    lie on it, or if its vendor gives out nothing (`vendors`: vendor to the reason).
    """
    unserved = vendors or {}
    served = {it.vendor for it in plan.values() if not it.retired and it.cards}
    offered = {card.uuid for it in plan.values() for card in it.cards}
    healthy = {card.uuid for it in plan.values() for card in it.cards if card.healthy}
    whole = [it for it in snapshot.devices if it.vendor in served and it.device.parent is None]
    unoffered = {it.uuid: NOT_OFFERED for it in whole if it.uuid not in offered}
    sliced = {
        status.uuid: SLICED
        for status in whole
        if FOREIGN_SLICES in status.device.attributes and status.uuid in offered - healthy
    }
    of_unserved = {it.uuid: unserved[it.vendor] for it in snapshot.devices if it.vendor in unserved}
    return unoffered | sliced | of_unserved


class WantedSchedulerReportTiming(Struct, frozen=True):
    """Seconds from a change to the report, and between looks for the directory while it is missing."""

    settle: float = 0.1
    every: float = 5.0


class ReportDirectory(Struct, frozen=True):
    """How the directory of the report's file is read: the agent's own report in it, and whether it exists."""

    read: Callable[[Path, ReportFile], Report | None] = scheduler_report_file.report_in
    exists: Callable[[Path], bool] = Path.is_dir


class WantedSchedulerReport:
    """Keeps `SchedulerReportState.published`, for the follower of the object and the writer of the file."""

    def __init__(
        self,
        state: SchedulerReportState,
        config: Cell[ConfigState],
        snapshot: Cell[NodeSnapshot],
        plan: Cell[Plan],
        *,
        api: bool = True,
        withheld: Callable[[], Mapping[str, str]] = dict,
        timing: WantedSchedulerReportTiming | None = None,
        directory: ReportDirectory | None = None,
    ) -> None:
        """`api`: whether the agent has an API server.

        `withheld`: vendors that give out nothing, with the reason; the plan changes with it.
        """
        self.state = state
        self._reporting = state.reporting
        self._config = config
        self._snapshot = snapshot
        self._plan = plan
        self._api = api
        self._withheld = withheld
        self._timing = timing or WantedSchedulerReportTiming()
        self._directory = directory or ReportDirectory()
        self._changed = asyncio.Event()
        self._choice = ModeChoice("none", "")
        #: The last report, also one of an earlier agent.
        self._last: Report | None = None
        #: The last report of this agent.
        self._own_last: Report | None = None
        #: The mode of that report.
        self._last_mode: Mode = "none"
        #: Whether the report's directory is needed and missing.
        self._missing = False
        #: A sentence for each vendor that the config passes over.
        self._passed_over: tuple[str, ...] = ()
        #: How the scheduler's plugin fails; empty while the plugin works.
        self._fault = ""
        #: Mode and directory for which an earlier report was looked for.
        self._looked: tuple[str, str] | None = None

    async def run(self) -> None:
        """Keep the published report, for ever."""
        async with anyio.create_task_group() as group:
            cells = self._config, self._snapshot, self._plan, self.state.shown
            group.start_soon(for_ever, set_on_change, self._changed, *cells)
            while True:
                with anyio.move_on_after(self._timing.every if self._missing else math.inf):
                    await self._changed.wait()
                await anyio.sleep(self._timing.settle)  # many changes of health become one report
                self._changed.clear()
                await self.once()

    async def once(self) -> None:
        """Publish what follows from all that decides. The last report stays where the plugin fails."""
        try:
            await self._look()
        except SchedulerError as exc:
            self._fault = str(exc)
        else:
            self._fault = ""

    async def _look(self) -> None:
        if self._config.value.waiting:
            return
        settings = self._config.value.config.report
        self.state.looks.set(self._api and settings.mode in ("auto", "device"))
        shares = self._shares()
        missing = await self._missing_directory(settings)
        chosen = self._reporting.choose(
            ModeQuestion(settings.mode, self.state.shown.value, self._api, shares, missing)
        )
        if chosen is not None:
            self._missing = bool(missing)
            if chosen.mode != "none":
                await self._read_last(chosen.mode, settings.device_infos_dir)
            self._publish(chosen, settings, unwanted=bool(shares))

    async def _missing_directory(self, settings: ReportSettings) -> str:
        """The report's directory, where mode `auto` needs it and it does not exist.

        A directory that disappears while the report is published there is an error, and changes no mode.
        """
        shown = self.state.shown.value
        if settings.mode != "auto" or self._last_mode == "feed" or not (shown and shown.program):
            return ""
        look = partial(self._directory.exists, Path(settings.device_infos_dir))
        exists = await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
        return "" if exists else settings.device_infos_dir

    def _publish(self, chosen: ModeChoice, settings: ReportSettings, *, unwanted: bool) -> None:
        """Publish in the chosen mode. `unwanted`: a resource of shares forbids every report."""
        snapshot, now = self._snapshot.value, None
        cards = node_cards(snapshot)
        passed_over = self._reporting.passed_over(cards, settings.vendor)
        if chosen.mode != "none":
            less = withheld(snapshot, self._plan.value, self._withheld())
            now = self._reporting.report(cards, settings.vendor, self._last, less)
            self._last = now or self._last
            if now is None and self._own_last and not self._is_served(cards, settings, self._own_last):
                why = f"vendor {self._own_last.vendor}, which has the reported cards, is out of service"
                chosen, unwanted = ModeChoice("none", why), True
            # Without a new report the last one stays, perhaps of an earlier agent.
            now = now if now or unwanted else self._standing(chosen.mode)
        withdraw_file = unwanted or settings.mode in ("none", "device")
        withdraw_object = unwanted or settings.mode in ("none", "feed")
        if now is not None:
            self._own_last, self._last_mode = now, chosen.mode
        elif withdraw_object:
            self._last_mode = "none"
        self._passed_over = _new_sentences(passed_over, now.left_out if now else ())
        self._choose(chosen)
        directory = settings.device_infos_dir
        self.state.published.set(PublishedReport(chosen.mode, now, directory, withdraw_file, withdraw_object))

    def _is_served(self, cards: NodeCards, settings: ReportSettings, last: Report) -> bool:
        return self._reporting.is_served(cards, settings.vendor, last)

    def _standing(self, mode: Mode) -> Report | None:
        """The report that is published in this mode already."""
        before = self.state.published.value
        return before.report if before is not None and before.mode == mode else None

    async def _read_last(self, mode: str, directory: str) -> None:
        """Read once the report that an earlier agent published: cards keep their minors."""
        if self._last is not None or self._looked == (mode, directory):
            return
        shown = self.state.shown.value
        self._looked = mode, directory
        if mode == "feed":
            look = partial(self._directory.read, Path(directory), self._reporting.file)
            self._last = await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
        if self._last is None and shown is not None:
            self._last = shown.report

    def seen(self, error: str, left_out: Mapping[str, str] | None = None) -> SchedulerReport:
        """The report as the agent's status shows it.

        `error`: why the file is not written. `left_out`: uuid of each card that another file lists, to the
        sentence with the reason.
        """
        published, wanted = self.state.published.value, self._config.value.config.report.mode
        report, elsewhere = published.report if published is not None else None, left_out or {}
        cards = [it for it in report.cards if it.uuid not in elsewhere] if report else []
        shown = self.state.shown.value
        return SchedulerReport(
            scheduler=self._reporting.scheduler,
            node_program=self._reporting.program,
            kind=self._reporting.object.kind,
            mode=published.mode if published is not None else "",
            why=self._choice.why,
            vendor=report.vendor if report else "",
            cards=len(cards),
            healthy=sum(card.healthy for card in cards),
            left_out=(*(report.left_out if report else ()), *self._passed_over, *elsewhere.values()),
            overwritten=shown is not None and shown.overwritten,
            error=self._fault or (self._choice.why if self._choice.trouble or self._stays_unseen else error),
            wanted=wanted in ("feed", "device"),
        )

    @property
    def _stays_unseen(self) -> bool:
        """Whether cards stay in an object that the agent may no longer read."""
        shown = self.state.shown.value
        refused = shown is not None and bool(shown.refused)
        return refused and self._choice.mode == "none" and self._last_mode == "device"

    def _choose(self, chosen: ModeChoice) -> None:
        if chosen != self._choice:
            how = f"how the cards are reported to {self._reporting.scheduler}"
            log.info(how, mode=chosen.mode, why=chosen.why)
        self._choice = chosen

    def _shares(self) -> str:
        """A resource that counts shares of cards, where the scheduler takes its devices for whole cards."""
        whole_cards = self._reporting.whole_cards
        of_config = (rule.name for _, _, rule in replicas_as_cards(self._config.value.config, whole_cards))
        return next(of_config, "") or _shared(self._plan.value, whole_cards)


def _new_sentences(sentences: Iterable[str], known_sentences: Iterable[str]) -> tuple[str, ...]:
    """The sentences that start, up to the colon, as none of the known sentences does."""
    known = {it.partition(":")[0] for it in known_sentences}
    return tuple(it for it in sentences if it.partition(":")[0] not in known)


def _shared(plan: Plan, whole_cards: Iterable[str]) -> str:
    """A resource of the plan with shares that a vendor made of its own settings, as NVIDIA's time-slicing."""
    named = (plan[name] for name in sorted(set(whole_cards).intersection(plan)))
    return next((it.name for it in named if it.rule.sharing.kind != "exclusive" and not it.retired), "")

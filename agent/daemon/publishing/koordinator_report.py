"""What Koordinator is told of the cards, and which way: config, devices and what the API server shows in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import structlog

from agent.cluster.koordinator_exchange import Exchange
from agent.config import Config, ConfigState, ReportSettings
from agent.config.validation import replicas_as_cards
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.model import NodeSnapshot, Plan
from agent.core.publishing.agent_status import SchedulerReport
from agent.core.publishing.node_cards import node_cards
from agent.host import device_infos_directory
from agent.schedulers.common.resource_names import WHOLE_CARDS
from agent.schedulers.koordinator.report import Report, is_served, passed_over, report
from agent.schedulers.koordinator.report_mode import Mode, ModeChoice, Telling, choice
from agent.vendor_api.agent import FOREIGN_SLICES

log = structlog.get_logger()

NOT_OFFERED = "no resource offers it as a whole"
SLICED = "slices that this agent did not make lie on it"


#: Until it is looked again for koordlet's directory, seconds.
EVERY = 5.0


def withheld(
    snapshot: NodeSnapshot, plan: Plan, vendors: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """The cards that nobody gets, and why: the config gives them to nobody, though others of the vendor, or
    others made slices there, or nothing of the vendor is given out (`vendors`, with the reason).
    """
    unwell = vendors or {}
    served = {it.vendor for it in plan.values() if not it.retired and it.cards}
    offered = {card.uuid for it in plan.values() for card in it.cards}
    well = {card.uuid for it in plan.values() for card in it.cards if card.healthy}
    whole = [it for it in snapshot.devices if it.vendor in served and it.device.parent is None]
    unoffered = {it.uuid: NOT_OFFERED for it in whole if it.uuid not in offered}
    sliced = {
        it.uuid: SLICED
        for it in whole
        if FOREIGN_SLICES in it.device.attributes and it.uuid in offered - well
    }
    return unoffered | sliced | {it.uuid: unwell[it.vendor] for it in snapshot.devices if it.vendor in unwell}


class Reporting:
    """Keeps what is told in the exchange as config and devices are. Whoever tells it reads it there."""

    def __init__(
        self,
        config: Cell[ConfigState],
        snapshot: Cell[NodeSnapshot],
        plan: Cell[Plan],
        *,
        api: bool = True,
        settle: float = 0.1,
        every: float = EVERY,
        withheld: Callable[[], Mapping[str, str]] = dict,
        exchange: Exchange | None = None,
        said: Callable[[Path], Report | None] = device_infos_directory.said,
        is_there: Callable[[Path], bool] = Path.is_dir,
    ) -> None:
        """`api`: whether there is an API server. `settle`: seconds after a change, and `every` between looks
        for koordlet's directory where it lacks. `withheld`: the vendors of which nothing is given out, with
        the reason; the plan follows it. `said`: what our file in that directory says.
        """
        self._config = config
        self._snapshot = snapshot
        self._plan = plan
        self._api = api
        self._settle = settle
        self._every = every
        self._withheld = withheld
        self._said = said
        self._is_there = is_there
        self._news = asyncio.Event()
        self.exchange = exchange or Exchange()
        self._choice = ModeChoice("none", "")
        #: What was told last, and which way.
        self._last: Report | None = None
        #: What this agent told last.
        self._told: Report | None = None
        #: The way by which this agent told of cards last.
        self._way: Mode = "none"
        #: Whether koordlet's directory would be needed and is not here.
        self._missing = False
        #: A sentence for each thing that keeps all from being told.
        self._passed_over: tuple[str, ...] = ()
        self._looked: tuple[str, str] | None = None

    async def run(self) -> None:
        """Follow what decides for ever."""
        async with anyio.create_task_group() as group:
            for cell in (self._config, self._snapshot, self._plan, self.exchange.shown):
                group.start_soon(for_ever, self._hear, cell)
            while True:
                with anyio.move_on_after(self._every if self._missing else math.inf):
                    await self._news.wait()
                await anyio.sleep(self._settle)  # a storm of health is one look
                self._news.clear()
                await self.once()

    async def once(self) -> None:
        """Look at all that decides, and say what follows."""
        if self._config.value.waiting:
            return  # nobody knows yet what is wanted
        settings = self._config.value.config.report
        self.exchange.looks.set(self._api and settings.mode in ("auto", "device"))
        shares = _shares(self._config.value.config) or _shared(self._plan.value)
        missing = await self._lacks(settings)
        chosen = choice(
            settings.mode, self.exchange.shown.value, api=self._api, shares=shares, missing=missing
        )
        if chosen is not None:
            self._missing = bool(missing)
            if chosen.mode != "none":
                await self._look_back(chosen.mode, settings.device_infos_dir)
            self._tell(chosen, settings, unwanted=bool(shares))

    async def _lacks(self, settings: ReportSettings) -> str:
        """koordlet's directory, where all hangs on it and it is not here. To lose it later is an error."""
        shown = self.exchange.shown.value
        if settings.mode != "auto" or self._way == "feed" or not (shown and shown.koordlet):
            return ""
        look = partial(self._is_there, Path(settings.device_infos_dir))
        there = await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
        return "" if there else settings.device_infos_dir

    def _tell(self, chosen: ModeChoice, settings: ReportSettings, *, unwanted: bool) -> None:
        """Put it into the exchange. `unwanted`: for a reason of our own nobody is to be told of any cards."""
        snapshot, now = self._snapshot.value, None
        cards = node_cards(snapshot)
        if chosen.mode != "none":
            less = withheld(snapshot, self._plan.value, self._withheld())
            now = report(cards, settings.vendor, before=self._last, withheld=less)
            self._last = now or self._last
            if now is None and self._told and not is_served(cards, settings.vendor, self._told):
                why = f"{self._told.vendor}, whose cards were told, is not in service any more"
                chosen, unwanted = ModeChoice("none", why), True
            # Without one, what an earlier agent told stands: this one does not know better yet.
            now = now if now or unwanted else self._standing(chosen.mode)
        no_file = unwanted or settings.mode in ("none", "device")
        no_device = unwanted or settings.mode in ("none", "feed")
        if now is not None:
            self._told, self._way = now, chosen.mode
        elif no_device:
            self._way = "none"
        self._passed_over = _unsaid(passed_over(cards, settings.vendor), now.left_out if now else ())
        self._choose(chosen)
        self.exchange.telling.set(Telling(chosen.mode, now, settings.device_infos_dir, no_file, no_device))

    def _standing(self, mode: Mode) -> Report | None:
        """What is told this way already."""
        before = self.exchange.telling.value
        return before.report if before is not None and before.mode == mode else None

    async def _look_back(self, mode: str, directory: str) -> None:
        """Know once what was told before, also by an earlier agent: cards keep their minors."""
        if self._last is not None or self._looked == (mode, directory):
            return
        shown = self.exchange.shown.value
        self._looked = mode, directory
        if mode == "feed":
            self._last = await self._in_file(directory)
        if self._last is None and shown is not None:
            self._last = shown.told

    async def _in_file(self, directory: str) -> Report | None:
        return await anyio.to_thread.run_sync(partial(self._said, Path(directory)), abandon_on_cancel=True)

    def seen(self, error: str, left_out: Mapping[str, str] | None = None) -> SchedulerReport:
        """How it stands. `error` is what keeps those from it who tell it by a file, and `left_out` has the
        cards that others tell there, by their uuids, each with the sentence that says so.
        """
        telling, wants = self.exchange.telling.value, self._config.value.config.report.mode
        told, elsewhere = telling.report if telling is not None else None, left_out or {}
        cards = [it for it in told.cards if it.uuid not in elsewhere] if told else []
        mode = telling.mode if telling is not None else ""
        shown = self.exchange.shown.value
        return SchedulerReport(
            scheduler="Koordinator",
            node_program="koordlet",
            mode=mode,
            why=self._choice.why,
            vendor=told.vendor if told else "",
            cards=len(cards),
            healthy=sum(it.healthy for it in cards),
            left_out=(*(told.left_out if told else ()), *self._passed_over, *elsewhere.values()),
            overwritten=shown is not None and shown.overwritten,
            error=self._choice.why if self._choice.trouble or self._stands else error,
            wanted=wants in ("feed", "device"),
        )

    @property
    def _stands(self) -> bool:
        """Whether cards stay told in a Device that we may not even see any more."""
        shown = self.exchange.shown.value
        refused = shown is not None and bool(shown.refused)
        return refused and self._choice.mode == "none" and self._way == "device"

    async def _hear(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._news.set()

    def _choose(self, chosen: ModeChoice) -> None:
        if chosen != self._choice:
            log.info("how Koordinator is told of the cards", mode=chosen.mode, why=chosen.why)
        self._choice = chosen


def _unsaid(sentences: Iterable[str], said: Iterable[str]) -> tuple[str, ...]:
    """Those that say what nobody says yet, whatever reason is given."""
    known = {it.partition(":")[0] for it in said}
    return tuple(it for it in sentences if it.partition(":")[0] not in known)


def _shares(config: Config) -> str:
    return next((rule.name for _, _, rule in replicas_as_cards(config)), "")


def _shared(plan: Plan) -> str:
    """The same of what vendors make of their own settings, as of NVIDIA's time-slicing."""
    named = (plan[name] for name in sorted(WHOLE_CARDS.intersection(plan)))
    return next((it.name for it in named if it.rule.sharing.kind != "exclusive" and not it.retired), "")

"""What Koordinator is told of the cards, and which way: config, devices and what the API server shows in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import structlog

from agent import deviceinfos
from agent.config import Config, ConfigState
from agent.config.rules import WHOLE_CARDS, replicas_as_cards
from agent.core.cell import Cell
from agent.core.koordinator.mode import Choice, Exchange, Telling, choice
from agent.core.koordinator.report import Report, report
from agent.core.model import NodeSnapshot, Plan
from agent.core.view import Reported

log = structlog.get_logger()

WHOLE = "no resource offers it as a whole"


def withheld(snapshot: NodeSnapshot, plan: Plan) -> Mapping[str, str]:
    """The cards that the config gives to nobody, of vendors that offer something."""
    served = {it.vendor for it in plan.values() if not it.retired and it.cards}
    offered = {card.uuid for it in plan.values() for card in it.cards}
    return {
        it.uuid: WHOLE
        for it in snapshot.devices
        if it.vendor in served and it.device.parent is None and it.uuid not in offered
    }


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
        exchange: Exchange | None = None,
        said: Callable[[Path], Report | None] = deviceinfos.said,
    ) -> None:
        """`api`: whether there is an API server. `settle`: seconds after a change. `said`: what our file in
        that directory says.
        """
        self._config = config
        self._snapshot = snapshot
        self._plan = plan
        self._api = api
        self._settle = settle
        self._said = said
        self._news = asyncio.Event()
        self.exchange = exchange or Exchange()
        self._choice = Choice("none", "")
        #: What was told last, and which way.
        self._last: Report | None = None
        self._looked: tuple[str, str] | None = None
        #: Whether it was read at the start what our file says.
        self._read = False

    async def run(self) -> None:
        """Follow what decides for ever."""
        async with anyio.create_task_group() as group:
            for cell in (self._config, self._snapshot, self._plan, self.exchange.shown):
                group.start_soon(self._hear, cell)
            while True:
                await self._news.wait()
                await anyio.sleep(self._settle)  # a storm of health is one look
                self._news.clear()
                await self.once()

    async def once(self) -> None:
        """Look at all that decides, and say what follows."""
        if self._config.value.waiting:
            return  # nobody knows yet what is wanted
        config = self._config.value.config
        asks, directory = config.report.mode, config.report.device_infos_dir
        if asks == "auto" and not self._read:
            self._read = True
            self.exchange.said.set(await self._in_file(directory))
        self.exchange.looks.set(self._api and asks in ("auto", "device"))
        shown = self.exchange.shown.value
        shares = _shares(config) or _shared(self._plan.value)
        chosen = choice(asks, shown, api=self._api, shares=shares)
        if chosen is None:
            return
        self._choose(chosen)
        if chosen.mode == "none":
            unwanted = asks == "none"
            gone = unwanted or bool(shares)
            self.exchange.telling.set(Telling("none", None, directory, withdrawn=unwanted, no_device=gone))
            return
        await self._look_back(chosen.mode, directory)
        snapshot = self._snapshot.value
        less = withheld(snapshot, self._plan.value)
        now = report(snapshot, config.report.vendor, before=self._last, withheld=less)
        self._last = now or self._last
        before = self.exchange.telling.value
        if now is None and before is not None and before.mode == chosen.mode:
            now = before.report
        # Without one, what an earlier agent told stands: this one does not know better yet.
        self.exchange.telling.set(Telling(chosen.mode, now, directory, no_device=asks == "feed"))

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

    def seen(self, error: str, left_out: tuple[str, ...] = ()) -> Reported:
        """How it stands; `error` is what keeps those from it who tell it by a file."""
        telling, wants = self.exchange.telling.value, self._config.value.config.report.mode
        told = telling.report if telling is not None else None
        mode = telling.mode if telling is not None else ""
        shown = self.exchange.shown.value
        return Reported(
            mode=mode,
            why=self._choice.why,
            vendor=told.vendor if told else "",
            cards=len(told.cards) if told else 0,
            healthy=sum(it.healthy for it in told.cards) if told else 0,
            left_out=(*(told.left_out if told else ()), *left_out),
            overwritten=shown is not None and shown.overwritten,
            error=self._choice.why if self._choice.trouble else error,
            wanted=wants in ("feed", "device"),
        )

    async def _hear(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._news.set()

    def _choose(self, chosen: Choice) -> None:
        if chosen != self._choice:
            log.info("cards are told to Koordinator", mode=chosen.mode, why=chosen.why)
        self._choice = chosen


def _shares(config: Config) -> str:
    return next((rule.name for _, _, rule in replicas_as_cards(config)), "")


def _shared(plan: Plan) -> str:
    """The same of what vendors make of their own settings, as of NVIDIA's time-slicing."""
    named = (plan[name] for name in sorted(WHOLE_CARDS.intersection(plan)))
    return next((it.name for it in named if it.rule.sharing.kind == "replicas" and not it.retired), "")

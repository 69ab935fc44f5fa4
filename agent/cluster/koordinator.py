"""What the API server shows of Koordinator: whether it is there, and whether a koordlet reports here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio
import structlog

from agent.cluster import koordlet, node, pods
from agent.cluster.api import Api, Object
from agent.cluster.devices import DEVICES, VERSION, DeviceWriter
from agent.cluster.errors import ApiError, NotFound
from agent.cluster.fields import text
from agent.cluster.node import OwnNode
from agent.cluster.reflector import Following, Mirror, Reflector
from agent.cluster.withdrawal import Withdrawal
from agent.core.cell import Cell
from agent.core.koordinator.device import told
from agent.core.koordinator.mode import Shown
from agent.core.koordinator.report import Report
from agent.core.pauses import Pauses
from agent.exchange import Exchange

log = structlog.get_logger()

#: Seconds: so long a koordlet that wrote still counts as one that writes, and one that is gone as one that
#: comes back, as in a rollout.
FRESH, LINGER = 60.0, 300.0


class Koordinator:
    """Looks at what it shows while that is wanted, and has the Device written."""

    def __init__(
        self,
        api: Api,
        node_name: str,
        exchange: Exchange,
        own: Cell[OwnNode | None],
        following: Following | None = None,
        *,
        every: float = 300.0,
        linger: float = LINGER,
        fresh: float = FRESH,
        look: float = 15.0,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        writer: Callable[..., DeviceWriter] = DeviceWriter,
        withdrawal: Callable[..., Withdrawal] = Withdrawal,
        note: Callable[[str], object] = lambda _: None,
        forget: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Seconds: `every` how often it is looked whether there are Devices by now, `look` whether a koordlet
        has been silent for long enough. `clock` is in Unix seconds. `note` is told the Device's name before
        it is written, and `forget` once it has nothing of ours.
        """
        self._api = api
        self._node_name = node_name
        self._exchange = exchange
        self._own = own
        self._following = following
        self._every = every
        self._linger = linger
        self._fresh = fresh
        self._look = look
        self._clock = clock
        self._jitter = jitter
        self._made = writer
        self._note = note
        self._withdrawal = withdrawal(api, node_name, exchange.telling, forget=forget)
        self._pauses = Pauses(1.0, min(60.0, every), jitter)
        #: When the koordlet that is shown was last seen, monotonic seconds, and in which words.
        self._koordlet: tuple[float, str] | None = None
        #: Whether its pod was seen since it undid what we wrote.
        self._met = False
        #: Since when there is no Device that a koordlet overwrote, monotonic seconds.
        self._absent: float | None = None
        #: When a koordlet's Device last said what our file says, monotonic seconds.
        self._followed: float | None = None
        self.writer: DeviceWriter | None = None
        self._writes = 0

    @property
    def writes(self) -> int:
        """How often the Device was written since the start."""
        return self._writes + (self.writer.writes if self.writer else 0)

    @property
    def error(self) -> str:
        """Why the API server refuses the Device; empty while it does not."""
        return (self.writer.error if self.writer else "") or self._withdrawal.error

    async def run(self, returns: Cell[int]) -> None:
        """Look for ever, while somebody wants to know. `returns` counts the server's comings back."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._withdrawal.run, returns)
            group.start_soon(self._look_on, returns)

    async def _look_on(self, returns: Cell[int]) -> None:
        looks = self._exchange.looks
        while True:
            await looks.until(True)
            async with anyio.create_task_group() as group:
                group.start_soon(self._see, returns)
                await looks.until(False)
                group.cancel_scope.cancel()
            self._exchange.shown.set(None)

    async def _see(self, returns: Cell[int]) -> None:
        while True:
            pause = self._pauses.next()
            try:
                if await self._is_there():
                    self._pauses.reset()
                    await self._follow(returns)
                    continue
                self._exchange.shown.set(Shown(kind=False))
                pause = self._every * (0.5 + self._jitter() / 2)
            except ApiError as exc:
                log.debug("not known whether the API server has Device objects", error=str(exc))
            before = returns.value
            with anyio.move_on_after(pause):
                await returns.other_than(before)

    async def _is_there(self) -> bool:
        """Whether the API server has Device objects."""
        try:
            served = (await self._api.get(VERSION)).get("resources")
        except NotFound:
            return False
        return any(isinstance(it, dict) and it.get("name") == "devices" for it in served or ())

    async def _follow(self, returns: Cell[int]) -> None:
        """Follow this node's Device and koordlet, until there are no Devices any more."""
        devices = Reflector(self._api, DEVICES, node.query(self._node_name), _whole, self._following)
        koordlets = Reflector(
            self._api, pods.PODS, koordlet.query(self._node_name), koordlet.shown, self._following
        )
        self.writer = writer = self._made(
            self._api, self._node_name, self._exchange.telling, self._own, devices.cell, note=self._note
        )
        news = anyio.Event()

        async def hear(cell: Cell[Any]) -> None:
            async for _ in cell.watch():
                news.set()

        try:
            async with anyio.create_task_group() as group:
                for loop in (devices.run, koordlets.run, partial(writer.run, returns)):
                    group.start_soon(loop)
                for cell in (devices.cell, koordlets.cell, writer.overwritten):
                    group.start_soon(hear, cell)
                while not await self._is_gone(devices.cell.value):
                    self._judge(devices.cell.value, koordlets.cell.value, writer)
                    with anyio.move_on_after(self._look):
                        await news.wait()
                    news = anyio.Event()
                group.cancel_scope.cancel()
        finally:
            self._writes, self.writer = self._writes + writer.writes, None

    async def _is_gone(self, devices: Mirror[Object]) -> bool:
        """Whether what went wrong with the list is that there are no Devices any more."""
        if not devices.error or devices.refused:
            return False
        try:
            return not await self._is_there()
        except ApiError:
            return False

    def _judge(self, devices: Mirror[Object], koordlets: Mirror[str], writer: DeviceWriter) -> None:
        """Say what is shown, once enough of it is known."""
        # Who may not list pods knows of a koordlet by its hand alone.
        if not (devices.synced or devices.refused) or not (koordlets.synced or koordlets.refused):
            return
        its = devices.objects.get(self._node_name)
        writer.yields(its)
        sign = self._sign(its, koordlets, writer)
        # A koordlet that is seen not to report has left it so before.
        emptied = koordlet.keeps(its) and told(its) is None and not koordlets.objects
        refused = devices.error if devices.refused else ""
        self._exchange.shown.set(
            Shown(True, refused, sign, writer.overwritten.value, emptied and not sign, told(its))
        )

    def _sign(self, device: Object | None, koordlets: Mirror[str], writer: DeviceWriter) -> str:
        now = anyio.current_time()
        if words := next((it for it in sorted(koordlets.objects.values()) if it), ""):
            self._koordlet, self._met = (now, words), writer.overwritten.value
            return words
        if self._koordlet is not None and now - self._koordlet[0] < self._linger:
            return self._koordlet[1]
        seen_to_go = self._met and koordlets.synced and not koordlets.error
        if seen_to_go or self._stays_away(device, writer, now):
            self._met = False
            writer.forgive()  # who overwrote us was here, and is gone
        if writer.overwritten.value:
            return "a koordlet overwrote this node's Device"
        wrote = koordlet.hand(device)
        if wrote is not None and abs(self._clock() - wrote) < self._fresh:
            return "a koordlet has just written this node's Device"
        return "a koordlet tells what our file says" if self._is_fed(device, now) else ""

    def _stays_away(self, device: Object | None, writer: DeviceWriter, now: float) -> bool:
        """Whether the Device that a koordlet overwrote was deleted, and no koordlet has made it again."""
        if device is not None or not writer.overwritten.value:
            self._absent = None
            return False
        self._absent = now if self._absent is None else self._absent
        return now - self._absent >= self._fresh

    def _is_fed(self, device: Object | None, now: float) -> bool:
        """Whether a koordlet tells what our file says: it would undo what we wrote.

        One that does not follow the file any more is gone.
        """
        telling, its = self._exchange.telling.value, told(device)
        ours = self._exchange.said.value if telling is None else telling.report
        if (telling is not None and telling.mode != "feed") or not (ours and its and koordlet.keeps(device)):
            self._followed = None
        elif _health(ours) == _health(its):
            self._followed = now
        return self._followed is not None and now - self._followed < self._fresh


def _health(report: Report) -> Mapping[str, bool]:
    return {it.uuid: it.healthy for it in report.cards}


def _whole(device: Object) -> Object | None:
    return device if text(device, "kind") in ("Device", "") else None

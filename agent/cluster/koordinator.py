"""What the API server shows of Koordinator: whether it is there, and whether a koordlet reports here."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

import anyio
import structlog

from agent.cluster import own_node, pods
from agent.cluster.api import Api, Object
from agent.cluster.api_errors import ApiError, NotFound
from agent.cluster.koordinator_device_writer import DEVICES, VERSION, DeviceWriter
from agent.cluster.koordinator_exchange import Exchange
from agent.cluster.koordinator_withdrawal import Withdrawal
from agent.cluster.object_fields import text
from agent.cluster.own_node import OwnNode
from agent.cluster.reflector import FollowTimings, MirroredObjects, Reflector
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.schedulers.koordinator import koordlet_signs as koordlet
from agent.schedulers.koordinator.device_object import told
from agent.schedulers.koordinator.report import Report
from agent.schedulers.koordinator.report_mode import Shown
from agent.schedulers.koordinator.reporting_koordlet import KoordletObservation, KoordletStanding

log = structlog.get_logger()


class Koordinator:
    """Looks at what it shows while that is wanted, and has the Device written."""

    def __init__(
        self,
        api: Api,
        node_name: str,
        exchange: Exchange,
        own: Cell[OwnNode | None],
        following: FollowTimings | None = None,
        *,
        every: float = 300.0,
        look: float = 15.0,
        clock: Callable[[], float] = anyio.current_time,
        jitter: Callable[[], float] = random.random,
        writer: Callable[..., DeviceWriter] = DeviceWriter,
        withdrawal: Callable[..., Withdrawal] = Withdrawal,
        note: Callable[[str], object] = lambda _: None,
        forget: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Seconds: `every` how often it is looked whether there are Devices by now, `look` whether there are
        still. `clock`: seconds that only go on, by which a koordlet may be silent. `note` is told the name of
        the Device before it is written, and `forget` once it has nothing of ours.
        """
        self._api = api
        self._node_name = node_name
        self._exchange = exchange
        self._own = own
        self._following = following
        self._every = every
        self._look = look
        self._clock = clock
        self._jitter = jitter
        self._made = writer
        self._note = note
        self._withdrawal = withdrawal(api, node_name, exchange.telling, forget=forget)
        self._pauses = Pauses(1.0, min(60.0, every), jitter)
        #: Whether a koordlet counts as the one that reports here, and whether its pod was seen since it does.
        self._standing, self._met = KoordletStanding(), False
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
            group.start_soon(for_ever, self._withdrawal.run, returns)
            group.start_soon(for_ever, self._look_on, returns)

    async def _look_on(self, returns: Cell[int]) -> None:
        looks = self._exchange.looks
        while True:
            await looks.until(True)
            async with anyio.create_task_group() as group:
                group.start_soon(for_ever, self._see, returns)
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
        devices = Reflector(self._api, DEVICES, own_node.query(self._node_name), _whole, self._following)
        koordlets = Reflector(
            self._api, pods.PODS, koordlet.query(self._node_name), koordlet.shown, self._following
        )
        self.writer = writer = self._made(
            self._api, self._node_name, self._exchange.telling, self._own, devices.cell, note=self._note
        )
        news, self._standing, self._met = anyio.Event(), KoordletStanding(), False

        async def hear(cell: Cell[Any]) -> None:
            async for _ in cell.watch():
                news.set()

        try:
            async with anyio.create_task_group() as group:
                for loop in (devices.run, koordlets.run, partial(writer.run, returns)):
                    group.start_soon(for_ever, loop)
                ours = self._exchange.telling, self._exchange.elsewhere
                for cell in (devices.cell, koordlets.cell, writer.overwritten, *ours):
                    group.start_soon(for_ever, hear, cell)
                while not await self._is_gone(devices.cell.value):
                    self._judge(devices.cell.value, koordlets.cell.value, writer)
                    with anyio.move_on_after(min(self._look, self._standing.ends(self._clock()))):
                        await news.wait()
                    news = anyio.Event()
                group.cancel_scope.cancel()
        finally:
            self._writes, self.writer = self._writes + writer.writes, None

    async def _is_gone(self, devices: MirroredObjects[Object]) -> bool:
        """Whether what went wrong with the list is that there are no Devices any more."""
        if not devices.error or devices.refused:
            return False
        try:
            return not await self._is_there()
        except ApiError:
            return False

    def _judge(
        self, devices: MirroredObjects[Object], koordlets: MirroredObjects[str], writer: DeviceWriter
    ) -> None:
        """Say what is shown, once enough of it is known."""
        # Who may not list pods knows of a koordlet by its hand alone.
        if not (devices.synced or devices.refused) or not (koordlets.synced or koordlets.refused):
            return
        its = devices.objects.get(self._node_name)
        pod = next((it for it in sorted(koordlets.objects.values()) if it), "")
        telling = self._exchange.telling.value
        if telling is not None and telling.mode == "device":
            writer.yields(its)
        may_be_here = bool(pod) or (writer.overwritten.value and not self._met)
        shows = None if devices.error else self._shows(its, may_be_here=may_be_here)
        before = self._standing
        self._standing = before.after(
            KoordletObservation(bool(pod), koordlet.written(its), shows), self._clock()
        )
        counts = self._standing.counts
        self._met = counts and (bool(pod) or self._met)
        if before.counts and not counts and (writer.overwritten.value or self._standing.stopped is not None):
            writer.forgive()  # what it did before is over
        does = "overwrote" if writer.overwritten.value else "writes"
        self._exchange.shown.set(
            Shown(
                kind=True,
                refused=devices.error if devices.refused else "",
                koordlet=(pod or f"a koordlet {does} this node's Device") if counts else "",
                overwritten=writer.overwritten.value,
                silent="" if counts else pod,
                told=told(its),
            )
        )

    def _shows(self, device: Object | None, *, may_be_here: bool) -> bool | None:
        """Whether the Device shows what the sources of a koordlet say; None while nobody knows.

        Where it is not fed nobody knows its sources: what it wrote is what they say, for as long as it may be
        here: its pod is, or it undid what we wrote and no pod of it was seen to go.
        """
        telling = self._exchange.telling.value
        if telling is None or telling.mode != "feed":
            return koordlet.keeps(device) and may_be_here
        if telling.report is None:
            return None
        elsewhere, its = self._exchange.elsewhere.value, told(device)
        return _health(telling.report, elsewhere) == (_health(its, elsewhere) if its else {})


def _health(report: Report, elsewhere: Set[str]) -> Mapping[str, bool]:
    return {it.uuid: it.healthy for it in report.cards if it.uuid not in elsewhere}


def _whole(device: Object) -> Object | None:
    return device if text(device, "kind") in ("Device", "") else None

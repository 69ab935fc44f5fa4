"""Follows what the API server shows of a scheduler that gets reports, and has the node's object written."""

from __future__ import annotations

import asyncio
import math
from functools import partial

import anyio
import structlog

from agent.cluster import own_node, pods
from agent.cluster.api_errors import ApiError, NotFound
from agent.cluster.api_protocol import Api, Object
from agent.cluster.object_fields import text
from agent.cluster.object_record import ObjectRecord
from agent.cluster.own_node import OwnNode
from agent.cluster.reflector import FollowTiming, MirroredObjects, Reflector
from agent.cluster.scheduler_report_state import SchedulerReportState
from agent.cluster.scheduler_report_timing import SchedulerReportTiming
from agent.cluster.scheduler_report_withdrawal import SchedulerReportWithdrawal
from agent.cluster.scheduler_report_writer import SchedulerReportWriter
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever, set_on_change
from agent.core.errors import SchedulerError
from agent.scheduler_api.node_report import ObjectLook, ObjectVerdict, ShownReport

log = structlog.get_logger()


class SchedulerReportFollower:
    """Looks at the node's object and at the scheduler's program while `SchedulerReportState.looks` is set."""

    def __init__(
        self,
        api: Api,
        node_name: str,
        state: SchedulerReportState,
        own: Cell[OwnNode | None],
        following: FollowTiming | None,
        record: ObjectRecord,
        timing: SchedulerReportTiming | None = None,
    ) -> None:
        """`record` notes the object's name before the first write, and forgets the name of an object without
        cards of the node.
        """
        self._api = api
        self._node_name = node_name
        self._kind = state.reporting.object
        self._state = state
        self._own = own
        self._following = following
        self._record = record
        self._timing = timing = timing or SchedulerReportTiming()
        self._withdrawal = SchedulerReportWithdrawal(
            api, node_name, self._kind, state.published, timing, record
        )
        self._pauses = Pauses(1.0, min(60.0, timing.kind_missing), timing.jitter)
        self._verdict = ObjectVerdict()
        self.writer: SchedulerReportWriter | None = None
        self._writes = 0
        #: How the scheduler's plugin fails to judge; empty while the plugin works.
        self._fault = ""

    @property
    def writes(self) -> int:
        """How often the object was written since the start."""
        return self._writes + (self.writer.writes if self.writer else 0)

    @property
    def error(self) -> str:
        """Why the API server refuses the object, or how the plugin fails; empty while nothing is wrong."""
        return (self.writer.error if self.writer else "") or self._withdrawal.error or self._fault

    async def run(self, returns: Cell[int]) -> None:
        """Follow, for ever. `returns` counts how often the API server was away and came back."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._withdrawal.run, returns)
            group.start_soon(for_ever, self._look_on, returns)

    async def _look_on(self, returns: Cell[int]) -> None:
        looks = self._state.looks
        while True:
            await looks.until(True)
            async with anyio.create_task_group() as group:
                group.start_soon(for_ever, self._see, returns)
                await looks.until(False)
                group.cancel_scope.cancel()
            self._state.shown.set(None)

    async def _see(self, returns: Cell[int]) -> None:
        while True:
            pause = self._pauses.next()
            try:
                if await self._has_kind():
                    self._pauses.reset()
                    await self._follow(returns)
                    continue
                self._state.shown.set(ShownReport(has_kind=False))
                pause = self._timing.kind_missing * (0.5 + self._timing.jitter() / 2)
            except ApiError as exc:
                unknown = f"not known whether the API server has {self._kind.kind} objects"
                log.debug(unknown, error=str(exc))
            before = returns.value
            with anyio.move_on_after(pause):
                await returns.other_than(before)

    async def _has_kind(self) -> bool:
        try:
            served = (await self._api.get(self._kind.api_path)).get("resources")
        except NotFound:
            return False
        return any(isinstance(it, dict) and it.get("name") == self._kind.plural for it in served or ())

    async def _follow(self, returns: Cell[int]) -> None:
        """Follow this node's object and the program's pods, until the API server has the kind no more."""
        objects = Reflector(
            self._api, self._kind.path, own_node.query(self._node_name), self._of_kind, self._following
        )
        programs = Reflector(
            self._api,
            pods.PODS,
            {**pods.query(self._node_name), "labelSelector": self._kind.programs},
            self._shows_program,
            self._following,
        )
        self.writer = writer = SchedulerReportWriter(
            self._api,
            self._node_name,
            self._state,
            self._own,
            objects.cell,
            self._timing,
            self._record,
        )
        changed, self._verdict = asyncio.Event(), ObjectVerdict()
        try:
            async with anyio.create_task_group() as group:
                for loop in (objects.run, programs.run, partial(writer.run, returns)):
                    group.start_soon(for_ever, loop)
                of_policy = self._state.published, self._state.elsewhere
                cells = objects.cell, programs.cell, writer.overwritten, *of_policy
                group.start_soon(for_ever, set_on_change, changed, *cells)
                while not await self._is_gone(objects.cell.value):
                    self._judge_or_keep(objects.cell.value, programs.cell.value, writer)
                    with anyio.move_on_after(min(self._timing.look, max(0.0, self._seconds_to_verdict()))):
                        await changed.wait()
                    changed.clear()
                group.cancel_scope.cancel()
        finally:
            self._writes, self.writer = self._writes + writer.writes, None

    def _shows_program(self, pod: Object) -> str | None:
        try:
            return self._kind.shows_program(pod)
        except SchedulerError:  # should the program write the object after all, the writer sees that
            return ""

    def _of_kind(self, document: Object) -> Object | None:
        return document if text(document, "kind") in (self._kind.kind, "") else None

    def _seconds_to_verdict(self) -> float:
        until = self._verdict.until
        return until if math.isinf(until) else until - self._timing.clock()

    async def _is_gone(self, objects: MirroredObjects[Object]) -> bool:
        """Whether the list failed because the API server has the kind no more."""
        if not objects.error or objects.refused:
            return False
        try:
            return not await self._has_kind()
        except ApiError:
            return False

    def _judge_or_keep(
        self, objects: MirroredObjects[Object], programs: MirroredObjects[str], writer: SchedulerReportWriter
    ) -> None:
        """Publish what is shown. What was shown before stays where the plugin fails."""
        try:
            self._judge(objects, programs, writer)
        except SchedulerError as exc:
            self._fault = str(exc)
        else:
            self._fault = ""

    def _judge(
        self, objects: MirroredObjects[Object], programs: MirroredObjects[str], writer: SchedulerReportWriter
    ) -> None:
        """Publish what is shown, once object and pods are known."""
        # Without the right to list pods only the object shows that the program is here.
        if not (objects.synced or objects.refused) or not (programs.synced or programs.refused):
            return
        document, published = objects.objects.get(self._node_name), self._state.published.value
        if published is not None and published.mode == "device":
            writer.yields(document)
        self._verdict = verdict = self._kind.judge(
            ObjectLook(
                document,
                failed=bool(objects.error),
                programs=tuple(it for it in sorted(programs.objects.values()) if it),
                overwritten=writer.overwritten.value,
                published=published,
                elsewhere=self._state.elsewhere.value,
                now=self._timing.clock(),
            ),
            self._verdict.memory,
        )
        if verdict.forgives:
            writer.forgive()
        self._state.shown.set(
            ShownReport(
                has_kind=True,
                refused=objects.error if objects.refused else "",
                program=verdict.program,
                overwritten=writer.overwritten.value,
                silent=verdict.silent,
                report=self._kind.report(document),
            )
        )

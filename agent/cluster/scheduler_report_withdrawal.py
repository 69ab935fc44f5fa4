"""Takes the node's cards out of its report object once the config no longer wants them published there.

An object that no agent keeps up would have a scheduler count cards that are broken or gone.
"""

from __future__ import annotations

import anyio
import anyio.to_thread
import structlog

from agent.cluster.api_errors import ApiAway, ApiError, Busy, Conflict, Forbidden, NotFound
from agent.cluster.api_protocol import Api
from agent.cluster.object_fields import text
from agent.cluster.object_record import ObjectRecord
from agent.cluster.scheduler_report_timing import SchedulerReportTiming
from agent.cluster.scheduler_report_writer import path
from agent.core.cell import Cell
from agent.core.errors import SchedulerError
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.node_report import PublishedReport, ReportObject

log = structlog.get_logger()


def needed_right(kind: ReportObject) -> str:
    """What an administrator has to allow, as a clause of an error."""
    return f"allow get, update and delete on {kind.name}"


async def withdraw(api: Api, node_name: str, kind: ReportObject, *, made: bool = False) -> bool:
    """Take our cards out of the node's object, and delete the object if nothing of others is left.

    `made`: the agent wrote such an object, even where the identity may not read it. Returns whether the
    object had cards that the agent wrote.

    Raises:
        ApiError: The API server refuses, or is away.
        SchedulerError: The scheduler's plugin fails; the object stays as it is.
    """
    try:
        return await _withdrawn(api, node_name, kind)
    except Conflict:  # the object has changed since the read
        return await _withdrawn(api, node_name, kind)
    except Forbidden:
        if made or await _is_seen(api, node_name, kind):
            raise
        return False  # an identity without the right to read objects has never written one
    except NotFound:
        return False


async def _withdrawn(api: Api, node_name: str, kind: ReportObject) -> bool:
    existing = await api.get(path(kind, node_name))
    if not kind.is_of_agent(existing):
        return False
    body = kind.withdrawn(existing)
    if body is not None:
        await api.put(path(kind, node_name), body)
        return True
    conditions = {key: text(part_of(existing, "metadata"), key) for key in ("uid", "resourceVersion")}
    await api.delete(path(kind, node_name), {"preconditions": conditions})
    return True


async def _is_seen(api: Api, node_name: str, kind: ReportObject) -> bool:
    try:
        await api.get(path(kind, node_name))
    except Forbidden:
        return False
    return True


class SchedulerReportWithdrawal:
    """Withdraws whenever `PublishedReport.withdraw_object` is set."""

    def __init__(
        self,
        api: Api,
        node_name: str,
        kind: ReportObject,
        published: Cell[PublishedReport | None],
        timing: SchedulerReportTiming,
        record: ObjectRecord,
    ) -> None:
        """`record` forgets the name of the object once the object has no card of the node."""
        self._api = api
        self._node_name = node_name
        self._kind = kind
        self._published = published
        self._handover = timing.handover
        self._pauses = timing.away_pauses()
        self._refusal_pauses = timing.refused_pauses()
        self._record = record
        #: Why the withdrawal fails: a refusal of the API server, or a fault of the plugin; empty otherwise.
        self.error = ""

    async def run(self, returns: Cell[int]) -> None:
        """Withdraw, for ever. `returns` counts how often the API server was away and came back."""
        while True:
            mode = await self._other_than("")
            async with anyio.create_task_group() as group:
                group.start_soon(self._withdraw, self._handover if mode == "feed" else 0.0, returns)
                await self._other_than(mode)
                group.cancel_scope.cancel()
            self.error = ""

    async def _other_than(self, mode: str) -> str:
        """Wait for another mode in which the object is to be withdrawn; empty: the object may stay."""
        while True:
            published = self._published.value
            now = str(published.mode) if published is not None and published.withdraw_object else ""
            if now != mode:
                return now
            await self._published.changed()

    async def _withdraw(self, delay: float, returns: Cell[int]) -> None:
        await anyio.sleep(delay)
        while True:
            before = returns.value
            pause = await self.once()
            if pause is None:
                return
            with anyio.move_on_after(pause):
                await returns.other_than(before)

    async def once(self) -> float | None:
        """Withdraw. Returns the seconds until the next try, None after success."""
        try:
            if await withdraw(self._api, self._node_name, self._kind):
                done = f"cards taken out of this node's {self._kind.kind}"
                log.info(done, node=self._node_name)
        except (ApiAway, Busy, Conflict):
            return self._pauses.next()
        except ApiError as exc:
            self._fail(f"{exc}; {needed_right(self._kind)}")
            return self._refusal_pauses.next()
        except SchedulerError as exc:
            self._fail(str(exc))
            return self._refusal_pauses.next()
        self.error = ""
        await anyio.to_thread.run_sync(self._record.forget, self._node_name)
        return None

    def _fail(self, why: str) -> None:
        error = f"the node's {self._kind.kind} still has our cards: {why}"
        if error != self.error:
            failed = f"{self._kind.kind} not withdrawn"
            log.error(failed, node=self._node_name, error=why)
        self.error = error

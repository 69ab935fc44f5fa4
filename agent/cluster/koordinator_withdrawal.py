"""Takes the node's cards out of its Device once nobody wants them told so.

What is left of a Device that nobody keeps up would have a scheduler count cards that are broken or gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio
import anyio.to_thread
import structlog

from agent.cluster.api import Api, Object
from agent.cluster.api_errors import ApiAway, ApiError, Busy, Conflict, Forbidden, NotFound
from agent.cluster.koordinator_device_writer import PAUSES, REFUSED, path
from agent.cluster.object_fields import text
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.managed_fields import OURS, UPDATE, entries
from agent.schedulers.koordinator.device_object import VENDOR, without_cards
from agent.schedulers.koordinator.koordlet_signs import grouped_by_hand, keeps
from agent.schedulers.koordinator.report_mode import Telling

log = structlog.get_logger()

#: Seconds that a koordlet gets to take the Device over from us, which it does at its first round.
HANDOVER = 60.0
MAY = "allow get, update and delete on devices.scheduling.koordinator.sh"


def is_ours(device: Object) -> bool:
    """Whether its cards are an agent's: it wrote them, or who wrote beside them left them as they were."""
    if keeps(device):
        return False
    its = [it for it in entries(device) if (it.manager, it.operation) == (OURS, UPDATE)]
    return any(it.owns("spec", "devices") or it.owns("metadata", "labels", VENDOR) for it in its)


async def withdraw(api: Api, node_name: str, *, made: bool = False) -> bool:
    """Take our cards out of the node's Device, and delete it where no others are in it.

    `made`: one was, though nobody may look. Returns whether something of ours was there.

    Raises:
        ApiError: The API server refuses, or is away.
    """
    try:
        return await _withdrawn(api, node_name)
    except Conflict:  # what was read has changed meanwhile
        return await _withdrawn(api, node_name)
    except Forbidden:
        if made or await _is_seen(api, node_name):
            raise
        return False  # who may not see Devices has never written one
    except NotFound:
        return False


async def _withdrawn(api: Api, node_name: str) -> bool:
    there = await api.get(path(node_name))
    if not is_ours(there):
        return False
    body = without_cards(there, groups_stay=grouped_by_hand(there))
    if body is not None:
        await api.put(path(node_name), body)
        return True
    conditions = {key: text(part_of(there, "metadata"), key) for key in ("uid", "resourceVersion")}
    await api.delete(path(node_name), {"preconditions": conditions})
    return True


async def _is_seen(api: Api, node_name: str) -> bool:
    try:
        await api.get(path(node_name))
    except Forbidden:
        return False
    return True


class Withdrawal:
    """Withdraws whenever it is told that no Device is to be ours."""

    def __init__(
        self,
        api: Api,
        node_name: str,
        telling: Cell[Telling | None],
        *,
        handover: float = HANDOVER,
        pauses: Pauses | None = None,
        refused: Pauses | None = None,
        jitter: Callable[[], float] = random.random,
        forget: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`handover`: seconds for a koordlet that is told by a file. `forget` is told the name of the Device
        that has nothing of ours any more.
        """
        self._api = api
        self._node_name = node_name
        self._telling = telling
        self._handover = handover
        self._pauses = pauses or Pauses(*PAUSES, jitter)
        self._patience = refused or Pauses(*REFUSED, jitter)
        self._forget = forget
        #: Why the API server refuses it; empty while it does not.
        self.error = ""

    async def run(self, returns: Cell[int]) -> None:
        """Follow what is to be told for ever. `returns` counts the server's comings back."""
        while True:
            way = await self._other_than("")
            async with anyio.create_task_group() as group:
                group.start_soon(self._withdraw, self._handover if way == "feed" else 0.0, returns)
                await self._other_than(way)
                group.cancel_scope.cancel()
            self.error = ""

    async def _other_than(self, way: str) -> str:
        """Wait until the way without a Device is another one; empty while there is to be one."""
        while True:
            telling = self._telling.value
            now = str(telling.mode) if telling is not None and telling.no_device else ""
            if now != way:
                return now
            await self._telling.changed()

    async def _withdraw(self, later: float, returns: Cell[int]) -> None:
        await anyio.sleep(later)
        while True:
            before = returns.value
            pause = await self.once()
            if pause is None:
                return
            with anyio.move_on_after(pause):
                await returns.other_than(before)

    async def once(self) -> float | None:
        """Withdraw; returns after how many seconds it is to be tried again, None where all is done."""
        try:
            if await withdraw(self._api, self._node_name):
                log.info("cards taken out of this node's Device", node=self._node_name)
        except (ApiAway, Busy, Conflict):
            return self._pauses.next()
        except ApiError as exc:
            self._refuse(str(exc))
            return self._patience.next()
        self.error = ""
        await anyio.to_thread.run_sync(self._forget, self._node_name)
        return None

    def _refuse(self, why: str) -> None:
        error = f"the node's Device still has our cards: {why}; {MAY}"
        if error != self.error:
            log.error("Device not withdrawn", node=self._node_name, error=why)
        self.error = error

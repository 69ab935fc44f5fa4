"""Frees locks that schedulers hold on this node, each only as it was when it was found to be over."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import structlog

from agent.cluster.api import Api
from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, Busy, Forbidden
from agent.cluster.node_lock_state import NodeLockState
from agent.cluster.own_node import path
from agent.core.allocation.node_locks import EXPIRES, Lock, freeing_patch
from agent.core.backoff import Pauses

log = structlog.get_logger()

#: What a refusal means.
WITHOUT_RIGHT = (
    f"schedulers end the lock {EXPIRES:g} s after they took it, and bind no pod of its kind until then; "
    "the chart lets the agent patch its Node where labels.output is not none"
)


class LockWriter:
    """Frees what is over for as long as it runs; one that cannot be freed now is tried again."""

    def __init__(self, api: Api, node_name: str, locks: NodeLockState, pauses: Pauses | None = None) -> None:
        self._api = api
        self._node_name = node_name
        self._locks = locks
        self._pauses = pauses or Pauses(0.1, 60.0)
        #: Why the API server refuses; empty while it does not.
        self.error = ""
        self.freed = 0

    async def run(self) -> None:
        over = self._locks.over
        while True:
            locks = over.value
            if not locks:
                self._tell("")  # who could not be freed has been by somebody else
            if await self._free(locks):
                with anyio.move_on_after(self._pauses.next()):
                    await over.other_than(locks)
                    self._pauses.reset()
            else:
                self._pauses.reset()
                await over.other_than(locks)

    async def _free(self, locks: Mapping[Lock, str]) -> bool:
        """Whether one is to be tried again."""
        left = False
        for it, why in locks.items():
            try:
                await self._api.patch(path(self._node_name), freeing_patch(it), "json")
            except Forbidden as exc:
                self._tell(f"{exc}; {WITHOUT_RIGHT}")
                left = True
            except (ApiAway, Busy) as exc:
                self._tell(str(exc))
                left = True
            except ApiRefused as exc:  # another one stands there by now, or none
                log.debug("lock is another one by now", lock=it.key, error=str(exc))
            except ApiError as exc:
                self._tell(str(exc))
                left = True
            else:
                self.freed += 1
                self._tell("")
                log.info("lock freed", lock=it.key, pod=f"{it.namespace}/{it.pod}", reason=why)
        return left

    def _tell(self, error: str) -> None:
        if error and error != self.error:
            log.warning("lock not freed, tried again", node=self._node_name, error=error)
        self.error = error

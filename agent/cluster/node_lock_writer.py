"""Frees expired scheduler locks on the Node, each only if it is still the lock that was found expired."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import structlog

from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, Busy, Forbidden
from agent.cluster.api_protocol import Api
from agent.cluster.node_lock_state import NodeLockState
from agent.cluster.own_node import path
from agent.core.allocation.node_lock_rules import EXPIRES, Lock, freeing_patch
from agent.core.backoff import Pauses

log = structlog.get_logger()

#: Follows the API server's text when it refuses.
WITHOUT_RIGHT = (
    f"schedulers end the lock {EXPIRES:g} s after they took it, and bind no pod of its kind until then; "
    "the chart lets the agent patch its Node where labels.output is not none"
)


class LockWriter:
    """Frees expired locks for as long as it runs, and retries those that cannot be freed now."""

    def __init__(self, api: Api, node_name: str, locks: NodeLockState, pauses: Pauses | None = None) -> None:
        self._api = api
        self._node_name = node_name
        self._locks = locks
        self._pauses = pauses or Pauses(0.1, 60.0)
        #: Why the API server refuses to free a lock; empty while it does not.
        self.error = ""
        self.freed = 0

    async def run(self) -> None:
        over = self._locks.over
        while True:
            locks = over.value
            if not locks:
                self._report("")  # a lock that could not be freed here was freed elsewhere
            if await self._free(locks):
                with anyio.move_on_after(self._pauses.next()):
                    await over.other_than(locks)
                    self._pauses.reset()
            else:
                self._pauses.reset()
                await over.other_than(locks)

    async def _free(self, locks: Mapping[Lock, str]) -> bool:
        """Free the locks; returns whether some must be tried again."""
        retry = False
        for lock, why in locks.items():
            try:
                await self._api.patch(path(self._node_name), freeing_patch(lock), "json")
            except Forbidden as exc:
                self._report(f"{exc}; {WITHOUT_RIGHT}")
                retry = True
            except (ApiAway, Busy) as exc:
                self._report(str(exc))
                retry = True
            except ApiRefused as exc:  # another lock has taken its place, or the lock is gone
                log.debug("lock is another one by now", lock=lock.key, error=str(exc))
            except ApiError as exc:
                self._report(str(exc))
                retry = True
            else:
                self.freed += 1
                self._report("")
                log.info("lock freed", lock=lock.key, pod=f"{lock.namespace}/{lock.pod}", reason=why)
        return retry

    def _report(self, error: str) -> None:
        if error and error != self.error:
            log.warning("lock not freed, tried again", node=self._node_name, error=error)
        self.error = error

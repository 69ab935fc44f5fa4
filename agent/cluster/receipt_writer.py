"""Writes receipts to pods: annotations that tell a scheduler that the pod has its devices."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import anyio
import structlog

from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, Busy, Forbidden, NotFound
from agent.cluster.api_protocol import Api
from agent.cluster.repeated_writes import LONGEST, QUIET
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.publishing.receipt_rules import OwedReceipt

log = structlog.get_logger()

#: Shortest and longest pause between two writes to one pod, in seconds; another client may undo a write.
AGAIN = (0.25, 60.0)
#: If so many pods are refused at once, the right is probably missing; then one is tried now and then.
DENIED = 3
#: Follows the API server's text when it refuses.
WITHOUT_RIGHT = "the chart's pods.receipts names the annotations that the agent may write to pods of its node"


def path(owed: OwedReceipt) -> str:
    return f"/api/v1/namespaces/{quote(owed.namespace, safe='')}/pods/{quote(owed.pod, safe='')}"


def patch(owed: OwedReceipt) -> Mapping[str, Any]:
    """A merge patch of the annotations alone, which the server accepts for the pod of this uid only."""
    return {"metadata": {"uid": owed.uid, "annotations": dict(owed.texts)}}


def _is_gone(exc: ApiError) -> bool:
    """Whether the pod is gone, or replaced by another of its name.

    A patch with another uid is invalid (seen on kube-apiserver 1.36), while such an update is a conflict.
    """
    of_uid = isinstance(exc, ApiRefused) and exc.status in (409, 422) and "uid" in exc.message.lower()
    return of_uid or isinstance(exc, NotFound)


@dataclass(slots=True)
class _Tried:
    """The last write that was tried for a pod; times in seconds of the loop's clock."""

    owed: OwedReceipt
    at: float
    #: When it is tried again: after the watch shows another value, and without that.
    again: float
    anyway: float
    pauses: Pauses
    #: Whether the pod has owed nothing since. If it owes again, another client undid the write.
    stood: bool = False


class ReceiptWriter:
    """Writes owed receipts for as long as it runs, each pod apart, so that none delays the others.

    While the server is away or refuses, the writer tries again with pauses.
    """

    def __init__(
        self,
        api: Api,
        owed: Cell[tuple[OwedReceipt, ...]],
        *,
        away: tuple[float, float] = (1.0, 60.0),
        refused: tuple[float, float] = (1.0, 60.0),
        again: tuple[float, float] = AGAIN,
        every: float = 300.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Pauses in seconds, shortest and longest: while the server is `away`, while it has `refused`, and
        between two writes to one pod (`again`). After `every` seconds a pod is written again although the
        watch does not show the first write.
        """
        self._api = api
        self._owed = owed
        self._away = Pauses(*away, jitter)
        self._denied = Pauses(*refused, jitter)
        self._again = again
        self._every = every
        self._jitter = jitter
        self._tried: dict[str, _Tried] = {}
        #: Why the server refuses a pod's receipt, by the pod's uid.
        self._refusals: dict[str, str] = {}
        #: No pod is tried before this time.
        self._rest_until = 0.0
        self._changed = anyio.Event()
        #: Why writes are delayed: the server is away, or busy; empty while they are not.
        self.delayed = ""
        self.writes = 0

    @property
    def error(self) -> str:
        """Why the API server refuses receipts; empty while it does not."""
        first = next(iter(self._refusals.values()), "")
        more = len(self._refusals) - 1
        return f"{first} (and {more} pods more)" if more > 0 else first

    @property
    def owed(self) -> int:
        """The number of pods without their receipt."""
        return len(self._owed.value)

    async def run(self, returns: Cell[int]) -> None:
        """Follow owed receipts, for ever. `returns` counts how often the server was away and came back."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._follow_owed)
            group.start_soon(for_ever, self._follow_returns, returns)
            while True:
                self._changed = anyio.Event()
                pause = await self.once()
                with anyio.move_on_after(pause):
                    await self._changed.wait()

    async def once(self) -> float:
        """Write what is due; returns the seconds until something is due if nothing changes."""
        self._forget()
        if (left := self._rest_until - anyio.current_time()) > 0:
            return left
        for owed in sorted(self._owed.value, key=self._last):
            if self._due(owed) > anyio.current_time():
                continue
            if (pause := await self._write(owed)) > 0:
                self._rest_until = anyio.current_time() + pause
                return pause
        now = anyio.current_time()
        return max(0.0, min((self._due(it) - now for it in self._owed.value), default=math.inf))

    async def _follow_owed(self) -> None:
        async for _ in self._owed.watch():
            self._changed.set()

    async def _follow_returns(self, returns: Cell[int]) -> None:
        async for _ in returns.watch():
            self._rest_until = 0.0
            self._away.reset()
            self._changed.set()

    def _forget(self) -> None:
        """Drop pods that owe nothing, once it is clear that no other client undoes their receipts."""
        owing, now = {it.uid for it in self._owed.value}, anyio.current_time()
        for uid in [*self._tried]:
            tried = self._tried[uid]
            tried.stood = tried.stood or uid not in owing
            if uid not in owing and now - tried.at > QUIET:
                del self._tried[uid]
        self._refusals = {uid: why for uid, why in self._refusals.items() if uid in owing}

    def _last(self, owed: OwedReceipt) -> float:
        """Sort key: pods that were never tried first, then those that have waited longest."""
        tried = self._tried.get(owed.uid)
        return tried.at if tried is not None else -math.inf

    def _due(self, owed: OwedReceipt) -> float:
        tried = self._tried.get(owed.uid)
        if tried is None:
            return -math.inf
        return tried.anyway if tried.owed == owed and not tried.stood else tried.again

    async def _write(self, owed: OwedReceipt) -> float:
        """Write one receipt; returns the seconds for which the server is left alone then."""
        tried = self._remember(owed)
        try:
            await self._api.patch(path(owed), patch(owed))
        except (ApiAway, Busy) as exc:
            tried.again = tried.anyway = tried.at  # as soon as the server answers again
            tried.pauses.reset()
            self._wait(str(exc))
            requested = exc.retry_after or 0.0 if isinstance(exc, Busy) else 0.0
            return max(self._away.next(), min(requested, LONGEST))
        except ApiError as exc:
            self._wait("")
            return self._drop(owed, exc) if _is_gone(exc) else self._refuse(tried, exc)
        self._wait("")
        self._written(owed)
        return 0.0

    def _drop(self, owed: OwedReceipt, exc: ApiError) -> float:
        """The pod needs no receipt any more; the watch will show that."""
        self._refusals.pop(owed.uid, None)
        log.debug("pod is gone or another one", pod=f"{owed.namespace}/{owed.pod}", error=str(exc))
        return 0.0

    def _remember(self, owed: OwedReceipt) -> _Tried:
        now = anyio.current_time()
        before = self._tried.get(owed.uid)
        pauses = before.pauses if before else Pauses(*self._again, self._jitter)
        self._tried[owed.uid] = tried = _Tried(owed, now, now + pauses.next(), now + self._every, pauses)
        return tried

    def _written(self, owed: OwedReceipt) -> None:
        self.writes += 1
        self._denied.reset()
        pod = f"{owed.namespace}/{owed.pod}"
        if self._refusals.pop(owed.uid, None) is not None:
            log.info("receipt written after earlier tries failed", pod=pod)
        log.debug("receipt written", pod=pod, keys=sorted(owed.texts))

    def _refuse(self, tried: _Tried, exc: ApiError) -> float:
        why = f"{exc}; {WITHOUT_RIGHT}" if isinstance(exc, Forbidden) else str(exc)
        owed = tried.owed
        if not self._refusals:
            log.error("receipts refused", pod=f"{owed.namespace}/{owed.pod}", error=why)
        self._refusals[owed.uid] = f"{owed.namespace}/{owed.pod}: {why}"
        tried.anyway = tried.again
        return self._denied.next() if len(self._refusals) >= DENIED else 0.0

    def _wait(self, why: str) -> None:
        if why and not self.delayed:
            log.warning("receipts wait for the API server", error=why)
        if self.delayed and not why:
            self._away.reset()
            log.info("receipts are written again")
        self.delayed = why

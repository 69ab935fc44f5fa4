"""Tells schedulers, by annotations of their pods, that these have their devices."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import anyio
import structlog

from agent.cluster.api import Api
from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, Busy, Forbidden, NotFound
from agent.cluster.upkeep import LONGEST, QUIET
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.publishing.receipt_rules import OwedReceipt

log = structlog.get_logger()

#: Seconds between two writes to one pod, which somebody may undo: the first, the longest.
AGAIN = (0.25, 60.0)
#: So many pods refused at once: most likely the right is missing, and one is tried now and then.
DENIED = 3
#: What a refusal means.
WITHOUT_RIGHT = "the chart's pods.receipts names the annotations that the agent may write to pods of its node"


def path(owed: OwedReceipt) -> str:
    return f"/api/v1/namespaces/{quote(owed.namespace, safe='')}/pods/{quote(owed.pod, safe='')}"


def patch(owed: OwedReceipt) -> Mapping[str, Any]:
    """A merge patch of nothing else, which the server takes for the pod of this uid alone."""
    return {"metadata": {"uid": owed.uid, "annotations": dict(owed.texts)}}


def _is_gone(exc: ApiError) -> bool:
    """Whether the pod is there no more, or another one of its name.

    A patch of another uid is invalid (seen on kube-apiserver 1.36), where an update of one is a conflict.
    """
    of_uid = isinstance(exc, ApiRefused) and exc.status in (409, 422) and "uid" in exc.message.lower()
    return of_uid or isinstance(exc, NotFound)


@dataclass(slots=True)
class _Tried:
    """What was last tried of a pod; seconds of the loop's clock."""

    owed: OwedReceipt
    at: float
    #: When it is tried again once the watch shows something else, and when although it does not.
    again: float
    anyway: float
    pauses: Pauses
    #: Whether it has owed nothing since: what it owes now somebody has undone.
    stood: bool = False


class ReceiptWriter:
    """Writes what is owed for as long as it runs, each pod for itself, so that none holds up the others.

    A server that is away, or that refuses, is tried again with pauses.
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
        """Seconds: pauses while the server is away, while it refuses, and between two writes to one pod;
        `every` until a pod is written to again that the watch does not show with what was written.
        """
        self._api = api
        self._owed = owed
        self._away = Pauses(*away, jitter)
        self._denied = Pauses(*refused, jitter)
        self._again = again
        self._every = every
        self._jitter = jitter
        self._tried: dict[str, _Tried] = {}
        #: Pods by uid to why the server does not take theirs.
        self._refusals: dict[str, str] = {}
        #: Until when nobody is tried.
        self._rest_until = 0.0
        self._news = anyio.Event()
        #: Why it waits: the server is away, or has too much to do.
        self.waits = ""
        self.writes = 0

    @property
    def error(self) -> str:
        """Why the API server refuses; empty while it does not."""
        first = next(iter(self._refusals.values()), "")
        more = len(self._refusals) - 1
        return f"{first} (and {more} pods more)" if more > 0 else first

    @property
    def owed(self) -> int:
        """How many pods lack theirs."""
        return len(self._owed.value)

    async def run(self, returns: Cell[int]) -> None:
        """Follow what is owed for ever. `returns` counts how often the server was away and came back."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._hear)
            group.start_soon(for_ever, self._come_back, returns)
            while True:
                self._news = anyio.Event()
                pause = await self.once()
                with anyio.move_on_after(pause):
                    await self._news.wait()

    async def once(self) -> float:
        """Write what is due; returns for how many seconds nothing is, if nothing changes."""
        self._forget()
        if (left := self._rest_until - anyio.current_time()) > 0:
            return left
        for it in sorted(self._owed.value, key=self._last):
            if self._due(it) > anyio.current_time():
                continue
            if (pause := await self._write(it)) > 0:
                self._rest_until = anyio.current_time() + pause
                return pause
        now = anyio.current_time()
        return max(0.0, min((self._due(it) - now for it in self._owed.value), default=math.inf))

    async def _hear(self) -> None:
        async for _ in self._owed.watch():
            self._news.set()

    async def _come_back(self, returns: Cell[int]) -> None:
        async for _ in returns.watch():
            self._rest_until = 0.0
            self._away.reset()
            self._news.set()

    def _forget(self) -> None:
        """Keep of those who lack nothing only what tells whether somebody undoes it again and again."""
        owing, now = {it.uid for it in self._owed.value}, anyio.current_time()
        for uid in [*self._tried]:
            it = self._tried[uid]
            it.stood = it.stood or uid not in owing
            if uid not in owing and now - it.at > QUIET:
                del self._tried[uid]
        self._refusals = {uid: why for uid, why in self._refusals.items() if uid in owing}

    def _last(self, owed: OwedReceipt) -> float:
        """Who was never tried comes first, and of the others who has waited longest."""
        tried = self._tried.get(owed.uid)
        return tried.at if tried is not None else -math.inf

    def _due(self, owed: OwedReceipt) -> float:
        tried = self._tried.get(owed.uid)
        if tried is None:
            return -math.inf
        return tried.anyway if tried.owed == owed and not tried.stood else tried.again

    async def _write(self, owed: OwedReceipt) -> float:
        """For how many seconds the server is to be left alone then."""
        tried = self._noted(owed)
        try:
            await self._api.patch(path(owed), patch(owed))
        except (ApiAway, Busy) as exc:
            tried.again = tried.anyway = tried.at  # as soon as the server is there
            tried.pauses.reset()
            self._wait(str(exc))
            asked = exc.retry_after or 0.0 if isinstance(exc, Busy) else 0.0
            return max(self._away.next(), min(asked, LONGEST))
        except ApiError as exc:
            self._wait("")
            return self._drop(owed, exc) if _is_gone(exc) else self._refuse(tried, exc)
        self._wait("")
        self._take(owed)
        return 0.0

    def _drop(self, owed: OwedReceipt, exc: ApiError) -> float:
        """Nobody waits for it any more; the watch will tell."""
        self._refusals.pop(owed.uid, None)
        log.debug("pod is gone or another one", pod=f"{owed.namespace}/{owed.pod}", error=str(exc))
        return 0.0

    def _noted(self, owed: OwedReceipt) -> _Tried:
        now = anyio.current_time()
        before = self._tried.get(owed.uid)
        pauses = before.pauses if before else Pauses(*self._again, self._jitter)
        self._tried[owed.uid] = tried = _Tried(owed, now, now + pauses.next(), now + self._every, pauses)
        return tried

    def _take(self, owed: OwedReceipt) -> None:
        self.writes += 1
        self._denied.reset()
        pod = f"{owed.namespace}/{owed.pod}"
        if self._refusals.pop(owed.uid, None) is not None:
            log.info("receipt taken at last", pod=pod)
        log.debug("receipt written", pod=pod, keys=sorted(owed.texts))

    def _refuse(self, tried: _Tried, exc: ApiError) -> float:
        why = f"{exc}; {WITHOUT_RIGHT}" if isinstance(exc, Forbidden) else str(exc)
        it = tried.owed
        if not self._refusals:
            log.error("receipts refused", pod=f"{it.namespace}/{it.pod}", error=why)
        self._refusals[it.uid] = f"{it.namespace}/{it.pod}: {why}"
        tried.anyway = tried.again
        return self._denied.next() if len(self._refusals) >= DENIED else 0.0

    def _wait(self, why: str) -> None:
        if why and not self.waits:
            log.warning("receipts wait for the API server", error=why)
        if self.waits and not why:
            self._away.reset()
            log.info("receipts are written again")
        self.waits = why

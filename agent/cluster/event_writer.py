"""Writes notices as Events (events.k8s.io/v1), one at a time, apart from all other writers.

The server's rules (pkg/apis/core/validation/events.go): eventTime, reportingController, reportingInstance,
action and reason are required; these and the note are limited in bytes; deprecated fields stay unset. An
Event about an object without a namespace is in `default`. Later, only the series of an Event may change.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from msgspec.structs import replace

from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.event_notices import Notice, PodRef
from agent.vendor_api.text import printable

from .api_errors import ApiAway, ApiError, ApiRefused, Busy, Conflict, Forbidden, NotFound
from .api_protocol import Api, Object
from .event_correlation import Correlator, Series
from .server_restart import pause_until_return

log = structlog.get_logger()

CONTROLLER = "xpu-agent.io/agent"
#: The server's limits, in bytes.
NOTE, INSTANCE = 1024, 128
NAME = 253
#: Series that wait for a write; above this, the oldest is dropped.
WAITING = 256
#: The shortest and the longest pause after a failed write, in seconds.
PAUSES = (1.0, 60.0)
#: The longest pause that the server's Retry-After is followed for, in seconds.
PATIENCE = 600.0

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAMESPACE = re.compile(rf"(?=.{{1,63}}\Z){_LABEL}\Z")
_SUBDOMAIN = re.compile(rf"(?=.{{1,{NAME}}}\Z){_LABEL}(\.{_LABEL})*\Z")
_UID = re.compile(r"[-0-9a-zA-Z_.:]{1,128}\Z")


class Events:
    """Takes notices at any time, and writes them while there is an API server."""

    def __init__(
        self,
        node: str,
        instance: str = "",
        *,
        clock: Callable[[], float] = time.time,
        pauses: Pauses | None = None,
        waiting: int = WAITING,
    ) -> None:
        """`instance` is this agent among others, such as its pod's name; `clock` gives Unix seconds."""
        self._node = node
        self._instance = bounded(instance or node, INSTANCE)
        self._clock = clock
        self._pauses = pauses or Pauses(*PAUSES)
        self._most = waiting
        self._correlator = Correlator()
        self._waiting: OrderedDict[Series, None] = OrderedDict()
        self._added = asyncio.Event()
        self._reported = ""
        #: Writes by outcome (`sent`, `refused`, `retried`), and notices `suppressed` or `dropped`.
        self.counts: Counter[str] = Counter()

    def add(self, notice: Notice) -> None:
        """Take a notice. Returns at once."""
        series, may_write = self._correlator.observe(_fit(notice), self._clock())
        if not may_write:
            self.counts["suppressed"] += 1
            return
        self._waiting.setdefault(series)
        if len(self._waiting) > self._most:
            self._waiting.popitem(last=False)
            self.counts["dropped"] += 1
        self._added.set()

    async def run(self, api: Api, returns: Cell[int]) -> None:
        """Write waiting series, for ever. `returns` counts how often the server was away and came back."""
        while True:
            while not self._waiting:
                self._added.clear()
                await self._added.wait()
            series, _ = self._waiting.popitem(last=False)
            before = returns.value
            try:
                await self._write(api, series)
            except ApiError as exc:
                if await pause_until_return(self._failed(series, exc), returns, before):
                    self._pauses.reset()
            else:
                self._sent()

    async def _write(self, api: Api, series: Series) -> None:
        if series.known and await self._patched(api, series):
            return
        count = series.count
        series.name = series.name or _new_name(series.notice.pod.name if series.notice.pod else self._node)
        try:
            await api.post(_path(series), self._body(series))
        except Conflict:  # an earlier try that seemed to fail has succeeded
            if count > 1:
                await self._patched(api, series)
        series.known = count

    async def _patched(self, api: Api, series: Series) -> bool:
        """Write the series of an existing Event; False if it is gone, as Events live for an hour."""
        count = series.count
        try:
            await api.patch(f"{_path(series)}/{series.name}", {"series": _series(series)}, "merge")
        except NotFound:
            series.known, series.name = 0, ""
            return False
        series.known = count
        return True

    def _body(self, series: Series) -> Object:
        notice = series.notice
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": _namespace(notice)},
            "eventTime": _micro_time(series.first),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": notice.action,
            "reason": notice.reason,
            "regarding": self._regarding(notice.pod),
            "note": bounded(notice.message, NOTE),
            "type": notice.kind,
        }
        return {**body, "series": _series(series)} if series.count > 1 else body

    def _regarding(self, pod: PodRef | None) -> Object:
        """The object reference. A Node's uid is its name, as the kubelet writes it and kubectl expects."""
        if pod is None:
            return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node}
        known = {"uid": pod.uid} if pod.uid else {}
        return {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": pod.namespace, **known}

    # Outcomes of a write

    def _sent(self) -> None:
        self.counts["sent"] += 1
        self._pauses.reset()
        if self._reported:
            log.info("events are written again")
        self._reported = ""

    def _failed(self, series: Series, exc: ApiError) -> float:
        """Handle a failed write; returns a pause in seconds. What may succeed later waits behind others."""
        if _not_yet(exc):
            self._put_back(series)
            self._report_once("events wait, the API server does not take them now", exc)
            requested = exc.retry_after if isinstance(exc, Busy) else None
            return max(self._pauses.next(), min(requested or 0.0, PATIENCE))
        self.counts["refused"] += 1
        if _is_gone(exc):
            log.debug("event not written, its namespace is gone", reason=series.notice.reason)
        else:
            self._report_once("event refused", exc)
        return 0.0

    def _put_back(self, series: Series) -> None:
        self.counts["retried"] += 1
        self._waiting.setdefault(series)

    def _report_once(self, what: str, exc: ApiError) -> None:
        """Log a failure once until a write succeeds: every Event would fail in the same way."""
        kind = f"{what}: {type(exc).__name__}"
        if kind != self._reported:
            log.warning(what, error=printable(str(exc)))
        self._reported = kind


def bounded(text: str, limit: int) -> str:
    """The text without control characters, in at most `limit` bytes; it may come from another program."""
    clean = printable(text[:limit])
    if len(encoded := clean.encode()) <= limit and len(text) <= limit:
        return clean
    return encoded[: limit - 3].decode(errors="ignore") + "…"


def _fit(notice: Notice) -> Notice:
    """The notice with a bounded text; about the node if the pod's name is not a possible one."""
    pod = notice.pod
    if pod is not None:
        named = _NAMESPACE.match(pod.namespace) and _SUBDOMAIN.match(pod.name)
        pod = replace(pod, uid=pod.uid if _UID.match(pod.uid) else "") if named else None
    return replace(notice, message=bounded(notice.message, NOTE), pod=pod)


def _not_yet(exc: ApiError) -> bool:
    """Whether the same write may succeed later."""
    return isinstance(exc, ApiAway | Busy) or (isinstance(exc, ApiRefused) and exc.status == 401)


def _is_gone(exc: ApiError) -> bool:
    """Whether the namespace is gone or going (403, NamespaceTerminating)."""
    ends = isinstance(exc, Forbidden) and "because it is being terminated" in exc.message
    return isinstance(exc, NotFound) or ends


def _namespace(notice: Notice) -> str:
    return notice.pod.namespace if notice.pod else "default"


def _path(series: Series) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{_namespace(series.notice)}/events"


def _series(series: Series) -> Object:
    return {"count": series.count, "lastObservedTime": _micro_time(series.last)}


def _new_name(of: str) -> str:
    """A unique name for an Event, which begins with its object's name."""
    mark = secrets.token_hex(8)
    begin = of[: NAME - len(mark) - 1]
    return f"{begin if _SUBDOMAIN.match(begin) else 'xpu-agent'}.{mark}"


def _micro_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

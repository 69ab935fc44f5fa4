"""One watch: which changes it shows, and as which events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from .api_resources import Json
from .object_store import Change
from .refusals import Refused
from .selection import Selection

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class Mark:
    """A bookmark: tells a client that asked for bookmarks how far the stream is."""

    version: int
    initial_end: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Ends the stream, after an ERROR if there is one."""

    error: Refused | None = None


WatchStep = Change | Mark | End


@dataclass(eq=False, slots=True)
class Watch:
    """The steps of one watch, in order. `bookmarks`: whether the client asked for bookmarks."""

    wanted: Selection
    bookmarks: bool = False
    _steps: asyncio.Queue[WatchStep] = field(default_factory=asyncio.Queue)

    def tell(self, step: WatchStep) -> None:
        self._steps.put_nowait(step)

    async def events(self) -> AsyncIterator[Json]:
        """The documents to send, until the end of the watch."""
        while True:
            step = await self._steps.get()
            if isinstance(step, Change):
                if (event := shown(step, self.wanted)) is not None:
                    yield event
            elif isinstance(step, Mark):
                if self.bookmarks:
                    yield bookmark(step, self.wanted)
            else:
                if step.error is not None:
                    yield {"type": "ERROR", "object": step.error.body}
                return


def shown(change: Change, wanted: Selection) -> Json | None:
    """The change as an event of this watch; None where the selection never matched.

    An object that begins to match is ADDED, an object that ceases to match is DELETED.
    """
    before, after = (_matching(it, change, wanted) for it in (change.old, change.new))
    if after is not None:
        return {"type": "MODIFIED" if before else "ADDED", "object": after}
    if before is None:
        return None
    metadata = {**before["metadata"], "resourceVersion": str(change.version)}
    return {"type": "DELETED", "object": {**before, "metadata": metadata}}


def bookmark(mark: Mark, wanted: Selection) -> Json:
    ends = {"annotations": {INITIAL_EVENTS_END: "true"}} if mark.initial_end else {}
    metadata = {"resourceVersion": str(mark.version), "creationTimestamp": None, **ends}
    resource = wanted.resource
    document = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return {"type": "BOOKMARK", "object": document}


def _matching(document: Json | None, change: Change, wanted: Selection) -> Json | None:
    if document is None or change.resource != wanted.resource:
        return None
    here = not wanted.namespace or document["metadata"].get("namespace") == wanted.namespace
    return document if here and wanted.holds(document) else None

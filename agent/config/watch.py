"""Follows the configuration: a change is taken in, a bad one keeps the last good one, also over a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from agent.config.given import Given
from agent.config.load import stated_dir, taken
from agent.config.node_labels import (
    CONFIG_LABEL,
    NOWHERE,
    Answers,
    Labels,
    LabelsUnknown,
    NodeLabels,
    remembered_labels,
    seen_labels,
)
from agent.config.overlay import with_flags
from agent.config.remembered import LastConfig, Remembered
from agent.config.settings import Config
from agent.config.source import DEFAULTS, Seen, Source
from agent.core.cell import Cell
from agent.core.errors import ConfigError

_NOTHING = Remembered()
_STAYS = "the configuration of before the restart stays in force"
_WAITS = "nothing is served until there is a good one"
_WAITS_FOR_LABELS = "nothing is served until it is"


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The configuration in force, the file that it is from, and why what stands there now is not it."""

    config: Config
    source: str
    error: str = ""
    #: Whether there was no good one yet: nothing is served until there is.
    waiting: bool = False
    #: Whether it waits for the Node's labels alone, which is nothing wrong with the config.
    labels_awaited: bool = False
    #: Which of a directory it is; empty for a single file, and for all defaults.
    name: str = ""
    #: The Node's labels that it was chosen and read by. With the name they are what a restart needs.
    labels: Answers = field(default_factory=dict)
    #: What the file held; it makes no configuration another.
    content: bytes = field(default=b"", compare=False, repr=False)
    #: When it was taken in, where that was before the last start.
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """What a look found, and what was known of the Node then."""

    seen: Seen
    labels: NodeLabels


class ConfigWatch:
    """Polls what the source has: it changes by atomic rename, by a swapped symlink above it, or in place."""

    def __init__(
        self,
        source: Source | Path | None,
        node_name: str,
        every: float = 2.0,
        *,
        flags: Sequence[Given] = (),
        vendors: Collection[str] | None = None,
        check: Callable[[Config], Config] = lambda config: config,
        settle: float = 0.1,
        labels: Cell[Labels | None] | None = None,
        recall: Callable[[Path], Remembered] = lambda state_dir: Remembered(),
    ) -> None:
        """Read the source. `check` may refuse what only others can judge, with a ConfigError, or warn of it.

        `labels`: those of the Node; None in the cell while nobody told them, no cell where nobody will.
        `recall`: what the agent with this state directory knew when it last ran; asked only if it is needed.

        Raises:
            ConfigError: It can not be used, and none was in force before. Of a directory a good one is
                awaited instead: whoever chooses there is not the one who starts the agent, and a start that
                fails for ever helps neither.
        """
        self._source = source if isinstance(source, Source) else Source(source)
        self._node_name = node_name
        self._every = every
        self._flags = flags
        self._vendors = vendors
        self._check = check
        self._settle = settle
        self._labels = labels
        self._known = NOWHERE if labels is None else remembered_labels({})
        self._recall = recall
        #: What was known before the start; it counts until something is in force.
        self._before = _NOTHING
        self._asked = asyncio.Event()
        #: Held from a look until what it found is published.
        self._turn = asyncio.Lock()
        self._taken = self._look()
        self.cell: Cell[ConfigState] = Cell(self._first())
        #: The state directory of the start: a later one is that of the next start.
        self._kept_in = self.cell.value.config.agent.state_dir

    def reload(self) -> None:
        """Look now, as SIGHUP asks."""
        self._asked.set()

    async def run(self) -> None:
        """Follow the source, and the Node's labels, for ever."""
        async with asyncio.TaskGroup() as group:
            if self._labels is not None:
                group.create_task(self._hear(self._labels))
            while True:
                await self._pause(self._every)
                await self.once()

    async def recall(self) -> None:
        """Go on from what the agent knew that served the node until now, while this one stood by."""
        async with self._turn:
            before = await asyncio.to_thread(self._recall, self._kept_in)
            self._before = before
            if self._known.rest == "awaited":
                self._known = remembered_labels(before.labels)
            await self._look_again(before)
            if self.cell.value.error:
                self.cell.set(await asyncio.to_thread(self._next, self._taken, before))

    async def once(self) -> None:
        """Look at the source; publish what changed."""
        async with self._turn:
            await self._look_again(self._before if self.cell.value.waiting else _NOTHING)

    async def _look_again(self, before: Remembered) -> None:
        found = await asyncio.to_thread(self._look)
        while found != self._taken:
            # A file edited in place is seen half-written; half a file may be a valid one.
            await asyncio.sleep(self._settle)
            again = await asyncio.to_thread(self._look)
            if again == found:
                state = await asyncio.to_thread(self._next, found, before)
                self._taken = found
                self.cell.set(state)
            found = again

    async def _hear(self, labels: Cell[Labels | None]) -> None:
        async for _ in labels.watch():
            self._asked.set()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        except TimeoutError:
            pass
        self._asked.clear()

    def _look(self) -> _Found:
        if self._labels is not None and self._labels.value is not None:
            self._known = seen_labels(self._labels.value)
        return _Found(self._source.look(self._known), self._known)

    def _good(self, found: _Found) -> ConfigState:
        config = taken(
            found.seen, self._node_name, vendors=self._vendors, flags=self._flags, labels=found.labels
        )
        asks = config.asks | ({CONFIG_LABEL} if self._source.is_directory else set())
        told, seen = found.labels.of(asks), found.seen
        return ConfigState(
            self._check(config), seen.source, name=seen.name, labels=told, content=seen.content
        )

    def _first(self) -> ConfigState:
        try:
            return self._good(self._taken)
        except ConfigError as error:
            waiting = self._waiting(error)
        self._before = before = self._recall(self._state_dir(waiting))
        if self._known.rest == "awaited":
            self._known = remembered_labels(before.labels)
            self._taken = self._look()
        try:
            return self._good(self._taken)
        except ConfigError as error:
            kept, why = self._as_before(before, error)
            if kept is not None:
                return kept
            if self._source.is_directory or isinstance(error, LabelsUnknown):
                return self._waiting(error, why)
            raise ConfigError(_joined(error, why)) from None

    def _waiting(self, error: ConfigError, why: str = "") -> ConfigState:
        """Nothing is served; where the agent keeps and shows what it knows is said all the same."""
        config = with_flags(Config(), self._flags)
        if isinstance(error, LabelsUnknown):
            with suppress(ConfigError):
                config = taken(self._taken.seen, self._node_name, flags=self._flags, labels=seen_labels({}))
        return ConfigState(
            config,
            self._taken.seen.source,
            _waits(error, why),
            waiting=True,
            labels_awaited=isinstance(error, LabelsUnknown),
        )

    def _state_dir(self, waiting: ConfigState) -> Path:
        """Where the agent kept what it knew; a file that can not be used may still tell it."""
        is_known = waiting.labels_awaited or any(it.flag == "state-dir" for it in self._flags)
        told = None if is_known else stated_dir(self._taken.seen)
        return told or waiting.config.agent.state_dir

    def _as_before(self, before: Remembered, error: ConfigError) -> tuple[ConfigState | None, str]:
        """What held when the agent last ran: a restart is no reason to lose it. Or why that does not."""
        why = before.trouble
        if isinstance(error, LabelsUnknown):  # nothing is wrong with what is there now
            why = ""
        elif before.last is not None:
            try:
                kept = self._last(before.last)
                return replace(kept, error=_joined(error, _stays(kept))), ""
            except ConfigError as refusal:
                why = f"the last good one, of {_time(before.last.since)}, is refused, too: {refusal}"
        if before.config and self._source.is_directory:
            with suppress(ConfigError):
                good = self._good(_Found(self._source.look_at(before.config), self._known))
                return replace(good, error=_joined(error, _STAYS)), ""
        return None, why

    def _last(self, last: LastConfig) -> ConfigState:
        """The last configuration that was in force, as this agent reads it."""
        return replace(self._good(_Found(last.seen, remembered_labels(last.labels))), since=last.since)

    def _next(self, found: _Found, before: Remembered) -> ConfigState:
        """What holds now. `before`: what the agent before this one knew."""
        look = found.seen
        try:
            if self._is_emptied(look):
                raise ConfigError(f"{look.source}: is empty now; write `version: v1` to mean all defaults")
            return self._good(found)
        except ConfigError as error:
            kept, why = self._as_before(before, error)
            if kept is not None:
                return kept
            now = self.cell.value
            return replace(now, error=_waits(error, why) if now.waiting else _joined(error, _stays(now)))

    def _is_emptied(self, look: Seen) -> bool:
        """Whether nothing stands there now, which is not what is in force.

        At the start it means all defaults, as in NVIDIA's programs. Later it is half a write or a slip, and
        to take it in would take every resource away.
        """
        if look.source == DEFAULTS or look.error or look.content.strip():
            return False
        return bool(self.cell.value.error) or look != self._taken.seen


def _waits(error: ConfigError, why: str = "") -> str:
    return _joined(error, why, _WAITS_FOR_LABELS if isinstance(error, LabelsUnknown) else _WAITS)


def _stays(state: ConfigState) -> str:
    of = f", of {_time(state.since)}," if state.since else ""
    return f"the last good configuration{of} stays in force"


def _time(since: datetime) -> str:
    return since.strftime("%Y-%m-%dT%H:%M:%SZ")


def _joined(*parts: object) -> str:
    return "; ".join(text for text in map(str, parts) if text)

"""Watches the configuration: takes in changes, and keeps the last good one, also over a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from agent.config.config_state import ConfigInput, ConfigReader, ConfigState
from agent.config.given_flags import GivenValue
from agent.config.known_labels import NOWHERE, Labels, LabelsUnknown, remembered_labels, seen_labels
from agent.config.remembered_config import LastConfig, RememberedConfig
from agent.config.settings import Config
from agent.config.source import DEFAULTS, ConfigSource, SourceContent
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.errors import ConfigError

_NOTHING = RememberedConfig()
#: Stands for the unknown last configuration before it is read: not empty.
_UNKNOWN = LastConfig("", "unknown", datetime.min)
_STAYS = "the configuration of before the restart stays in force"
_WAITS = "nothing is served until there is a good one"
_WAITS_FOR_LABELS = "nothing is served until it is"


class ConfigWatch:
    """Polls the source, which changes by atomic rename, by a swapped symlink above it, or in place.

    `check` may refuse a configuration with a ConfigError, or add warnings. `labels` are the Node's; the cell
    has None until they are known, and there is no cell without an API server. `recall` reads what an agent
    with the same state directory kept, and is called only if needed.

    Raises:
        ConfigError: The source cannot be used at the start, and no configuration was in force before. A
            directory of configurations does not raise: an operator chooses there later, so the agent waits.
    """

    def __init__(
        self,
        source: ConfigSource | Path | None,
        node_name: str,
        every: float = 2.0,
        *,
        flags: Sequence[GivenValue] = (),
        check: Callable[[Config], Config] = lambda config: config,
        settle: float = 0.1,
        labels: Cell[Labels | None] | None = None,
        recall: Callable[[Path], RememberedConfig] = lambda state_dir: RememberedConfig(),
    ) -> None:
        self._source = source if isinstance(source, ConfigSource) else ConfigSource(source)
        self._reading = ConfigReader(self._source, node_name, flags, check)
        self._every = every
        self._settle = settle
        self._labels = labels
        self._known = NOWHERE if labels is None else remembered_labels({})
        self._recall = recall
        #: What was kept before the start; used until a configuration is in force.
        self._recalled = _NOTHING
        self._look_requested = asyncio.Event()
        #: Held from a look at the source until its result is published.
        self._turn = asyncio.Lock()
        self._content = self._look()
        self.cell: Cell[ConfigState] = Cell(self._first())
        #: The state directory of this start; a changed setting takes effect at the next start.
        self._kept_in = self.cell.value.config.agent.state_dir

    def reload(self) -> None:
        """Look at the source now, as for SIGHUP."""
        self._look_requested.set()

    async def run(self) -> None:
        """Follow the source and the Node's labels, for ever."""
        async with asyncio.TaskGroup() as group:
            if self._labels is not None:
                group.create_task(for_ever(self._follow_labels, self._labels))
            while True:
                await self._pause(self._every)
                await self.once()

    async def recall(self) -> None:
        """Read what the agent that served the node until now has kept, after a standby."""
        async with self._turn:
            recalled = await asyncio.to_thread(self._recall, self._kept_in)
            self._recalled = recalled
            if self._known.rest == "awaited":
                self._known = remembered_labels(recalled.known)
            await self._look_again(recalled)
            if self.cell.value.error:
                self.cell.set(await asyncio.to_thread(self._next, self._content, recalled))

    async def once(self) -> None:
        """Look at the source, and publish what changed."""
        async with self._turn:
            await self._look_again(self._recalled if self.cell.value.waiting else _NOTHING)

    async def _look_again(self, recalled: RememberedConfig) -> None:
        found = await asyncio.to_thread(self._look)
        while found != self._content:
            # A file edited in place may be read half-written, and half a file may be valid.
            await asyncio.sleep(self._settle)
            again = await asyncio.to_thread(self._look)
            if again == found:
                state = await asyncio.to_thread(self._next, found, recalled)
                self._content = found
                self.cell.set(state)
            found = again

    async def _follow_labels(self, labels: Cell[Labels | None]) -> None:
        async for _ in labels.watch():
            self._look_requested.set()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._look_requested.wait()
        except TimeoutError:
            pass
        self._look_requested.clear()

    def _look(self) -> ConfigInput:
        if self._labels is not None and self._labels.value is not None:
            self._known = seen_labels(self._labels.value)
        return ConfigInput(self._source.look(self._known), self._known)

    def _first(self) -> ConfigState:
        try:
            return self._begun(_UNKNOWN)
        except ConfigError as error:
            waiting = self._waiting(error)
        self._recalled = recalled = self._recall(waiting.config.agent.state_dir)
        if self._known.rest == "awaited":
            self._known = remembered_labels(recalled.known)
            self._content = self._look()
        try:
            return self._begun(recalled.last)
        except ConfigError as error:
            kept, why = self._restore(recalled, error)
            if kept is not None:
                return kept
            if self._source.is_directory or isinstance(error, LabelsUnknown):
                return self._waiting(error, why)
            raise ConfigError(_join(error, why)) from None

    def _begun(self, last: LastConfig | None) -> ConfigState:
        """The configuration at the start; an empty file is refused if another was in force before."""
        if _is_blank(self._content.seen) and last is not None and last.text.strip():
            raise _emptied(self._content.seen)
        return self._reading.good(self._content)

    def _waiting(self, error: ConfigError, why: str = "") -> ConfigState:
        return self._reading.waiting(self._content.seen, error, _waiting_text(error, why))

    def _restore(self, recalled: RememberedConfig, error: ConfigError) -> tuple[ConfigState | None, str]:
        """The configuration that was in force before the restart, or None with a reason."""
        why = recalled.trouble
        if isinstance(error, LabelsUnknown):  # the current content is not wrong
            why = ""
        elif recalled.last is not None:
            try:
                kept = self._reading.last(recalled.last)
                return replace(kept, error=_join(error, _kept_text(kept))), ""
            except ConfigError as refusal:
                why = f"the last good one, of {_time(recalled.last.since)}, is refused, too: {refusal}"
        if recalled.config and self._source.is_directory:
            with suppress(ConfigError):
                good = self._reading.good(ConfigInput(self._source.look_at(recalled.config), self._known))
                return replace(good, error=_join(error, _STAYS)), ""
        return None, why

    def _next(self, found: ConfigInput, recalled: RememberedConfig) -> ConfigState:
        """The next state; `recalled` is what the agent kept before this start."""
        look = found.seen
        try:
            if self._is_emptied(look):
                raise _emptied(look)
            return self._reading.good(found)
        except ConfigError as error:
            kept, why = self._restore(recalled, error)
            if kept is not None:
                return kept
            now = self.cell.value
            return replace(
                now, error=_waiting_text(error, why) if now.waiting else _join(error, _kept_text(now))
            )

    def _is_emptied(self, look: SourceContent) -> bool:
        """Whether the source became empty while another configuration is in force.

        At the first start an empty file means all defaults, as in NVIDIA's programs. Later it is a write in
        progress or a mistake, and following it would remove every resource.
        """
        if not _is_blank(look):
            return False
        return bool(self.cell.value.error) or look != self._content.seen


def _is_blank(look: SourceContent) -> bool:
    """Whether there is a file without content."""
    return not (look.source == DEFAULTS or look.error or look.content.strip())


def _emptied(look: SourceContent) -> ConfigError:
    return ConfigError(f"{look.source}: is empty now; write `version: v1` to mean all defaults")


def _waiting_text(error: ConfigError, why: str = "") -> str:
    return _join(error, why, _WAITS_FOR_LABELS if isinstance(error, LabelsUnknown) else _WAITS)


def _kept_text(state: ConfigState) -> str:
    of = f", of {_time(state.since)}," if state.since else ""
    return f"the last good configuration{of} stays in force"


def _time(since: datetime) -> str:
    return since.strftime("%Y-%m-%dT%H:%M:%SZ")


def _join(*parts: object) -> str:
    return "; ".join(text for text in map(str, parts) if text)

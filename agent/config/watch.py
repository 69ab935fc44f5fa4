"""Follows the configuration: a change is taken in, a bad one keeps the last good configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.config.given import Given
from agent.config.load import taken
from agent.config.overlay import with_flags
from agent.config.settings import Config
from agent.config.source import DEFAULTS, Seen, Source
from agent.core.cell import Cell
from agent.core.errors import ConfigError

_KEPT = "the last good configuration stays in force"
_WAITS = "nothing is served until there is a good one"


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The configuration in force, the file that it is from, and why what stands there now is not it."""

    config: Config
    source: str
    error: str = ""
    #: Whether there was no good one yet: nothing is served until there is.
    waiting: bool = False


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
    ) -> None:
        """Read the source. `check` may refuse what only others can judge, with a ConfigError, or warn of it.

        Raises:
            ConfigError: It can not be used. Of a directory a good one is awaited instead: whoever chooses
                there is not the one who starts the agent, and a start that fails for ever helps neither.
        """
        self._source = source if isinstance(source, Source) else Source(source)
        self._node_name = node_name
        self._every = every
        self._flags = flags
        self._vendors = vendors
        self._check = check
        self._settle = settle
        self._asked = asyncio.Event()
        self._seen = self._source.look()
        self.cell: Cell[ConfigState] = Cell(self._first(self._seen))

    def reload(self) -> None:
        """Look now, as SIGHUP asks."""
        self._asked.set()

    async def run(self) -> None:
        """Follow the source for ever."""
        while True:
            await self._pause(self._every)
            await self.once()

    async def once(self) -> None:
        """Look at the source; publish what changed."""
        seen = await asyncio.to_thread(self._source.look)
        while seen != self._seen:
            # A file edited in place is seen half-written; half a file may be a valid one.
            await asyncio.sleep(self._settle)
            again = await asyncio.to_thread(self._source.look)
            if again == seen:
                self._seen = seen
                self.cell.set(await asyncio.to_thread(self._next, seen))
            seen = again

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        except TimeoutError:
            pass
        self._asked.clear()

    def _good(self, seen: Seen) -> ConfigState:
        config = taken(seen, self._node_name, vendors=self._vendors, flags=self._flags)
        return ConfigState(self._check(config), seen.source)

    def _first(self, seen: Seen) -> ConfigState:
        try:
            return self._good(seen)
        except ConfigError as error:
            if not self._source.is_directory:
                raise
            return ConfigState(
                with_flags(Config(), self._flags), seen.source, f"{error}; {_WAITS}", waiting=True
            )

    def _next(self, seen: Seen) -> ConfigState:
        try:
            # At the start it means all defaults, as in NVIDIA's programs. Later it is half a write or a slip,
            # and to take it in would take every resource away.
            if seen.source != DEFAULTS and not seen.error and not seen.content.strip():
                raise ConfigError(f"{seen.source}: is empty now; write `version: v1` to mean all defaults")
            return self._good(seen)
        except ConfigError as error:
            kept = self.cell.value
            return replace(kept, error=f"{error}; {_WAITS if kept.waiting else _KEPT}")

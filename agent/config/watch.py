"""Follows the configuration file: a change is taken in, a bad one keeps the last good configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.config.flags import with_flags
from agent.config.load import DEFAULTS, parse, read_bytes, text_of
from agent.config.settings import Config
from agent.core.cell import Cell
from agent.core.errors import ConfigError

_KEPT = "the last good configuration stays in force"


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The configuration in force, where it is from, and why the file's newest content is not it."""

    config: Config
    source: str
    error: str = ""


class ConfigWatch:
    """Polls the content: it changes by atomic rename, by a swapped symlink above it, or in place."""

    def __init__(
        self,
        path: Path | None,
        node_name: str,
        every: float = 2.0,
        *,
        flags: Mapping[str, str | Path | None] | None = None,
        vendors: Collection[str] | None = None,
        check: Callable[[Config], None] = lambda config: None,
        settle: float = 0.1,
    ) -> None:
        """Read the file. `check` may refuse what only others can judge, with a ConfigError.

        Raises:
            ConfigError: It can not be used, and there is no good one before it.
        """
        self._path = path
        self._node_name = node_name
        self._every = every
        self._flags = dict(flags or {})
        self._vendors = vendors
        self._check = check
        self._settle = settle
        self._asked = asyncio.Event()
        self._seen = self._look()
        self.cell: Cell[ConfigState] = Cell(ConfigState(self._read(self._seen), self._source))

    @property
    def _source(self) -> str:
        return DEFAULTS if self._path is None else str(self._path)

    def reload(self) -> None:
        """Look at the file now, as SIGHUP asks."""
        self._asked.set()

    async def run(self) -> None:
        """Follow the file for ever."""
        while True:
            await self._pause(self._every)
            await self.once()

    async def once(self) -> None:
        """Look at the file; publish what changed."""
        seen = await asyncio.to_thread(self._look)
        while seen != self._seen:
            # A file edited in place is seen half-written; half a file may be a valid one.
            await asyncio.sleep(self._settle)
            again = await asyncio.to_thread(self._look)
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

    def _look(self) -> bytes | str:
        """The content, or why there is none."""
        if self._path is None:
            return b""
        try:
            return read_bytes(self._path)
        except ConfigError as error:
            return str(error)

    def _read(self, seen: bytes | str) -> Config:
        if isinstance(seen, str):
            raise ConfigError(seen)
        config = Config()
        if self._path is not None:
            text = text_of(seen, self._source)
            config = parse(text, self._source, self._node_name, vendors=self._vendors)
        config = with_flags(config, self._flags)
        self._check(config)
        return config

    def _next(self, seen: bytes | str) -> ConfigState:
        try:
            return ConfigState(self._read(seen), self._source)
        except ConfigError as error:
            return ConfigState(self.cell.value.config, self._source, f"{error}; {_KEPT}")

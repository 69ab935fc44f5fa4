"""A watch over a configuration that tests write, and what they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from agent.config import (
    CONFIG_LABEL,
    ConfigSource,
    ConfigState,
    ConfigWatch,
    Labels,
    RememberedConfig,
)
from agent.core.cell import Cell

GOOD = "agent: {http: 127.0.0.1:1}"

BETTER = "agent: {http: 127.0.0.1:2}"

BAD = "agent: {htp: x}"

BY_LABEL = """
agent: {http: 127.0.0.1:1, stateDir: /s}
nodes: [{match: {labels: {pool: train}}, set: {agent: {http: 127.0.0.1:2}}}]
"""

ASKS_ANY = {CONFIG_LABEL: "any"}


def write(path: Path, text: str) -> None:
    path.write_text(text)


def put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


async def state(watch: ConfigWatch, wanted: Callable[[ConfigState], bool]) -> ConfigState:
    async with asyncio.timeout(30):
        async for found in watch.cell.watch():
            if wanted(found):
                return found
    raise AssertionError


def http(port: int) -> Callable[[ConfigState], bool]:
    return lambda state: state.config.agent.http == f"127.0.0.1:{port}" and not state.error


def before_was(before: RememberedConfig) -> Callable[[Path], RememberedConfig]:
    return lambda _: before


def untold() -> Cell[Labels | None]:
    return Cell(None)


@asynccontextmanager
async def watched(watch: ConfigWatch) -> AsyncIterator[ConfigWatch]:
    """The watch while it runs."""
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def following(source: ConfigSource | Path | None, every: float = 0.01) -> AsyncIterator[ConfigWatch]:
    """A watch that looks often."""
    async with watched(ConfigWatch(source, "node-1", every, settle=0.005)) as watch:
        yield watch


@asynccontextmanager
async def labelled(
    source: ConfigSource | Path,
    labels: Cell[Labels | None],
    before: RememberedConfig | None = None,
    **settings: Any,
) -> AsyncIterator[ConfigWatch]:
    """A watch that looks only when it is asked to, or hears of labels."""
    watch = ConfigWatch(
        source,
        "node-1",
        3600,
        settle=0.001,
        labels=labels,
        recall=lambda _: before or RememberedConfig(),
        **settings,
    )
    async with watched(watch):
        yield watch

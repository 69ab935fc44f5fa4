"""The agent as a process of its own, which can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
from support.forks import Fork, demo_node
from support.waiting import eventually

from agent.http.admin_client import fetch

from .node import AGENT_LOG, LOOK, PATIENCE, Node, last_words


class AgentProcess:
    """Runs on the configuration and the state of a node, whose own agent stays unstarted."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log = node.root / AGENT_LOG
        self._process: Fork | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.to_thread(demo_node, str(self._node.config), log, NODE_NAME="node")

    async def kill(self) -> None:
        """SIGKILL: no goodbye, no last write."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Look at what the agent shows until it is as wanted."""
        document: dict[str, Any] = {}
        with anyio.move_on_after(PATIENCE):
            while True:
                document = await asyncio.to_thread(_inspect, self._node.state / "agent.sock")
                if document and condition(document):
                    return document
                await anyio.sleep(LOOK)
        raise AssertionError(f"not as wanted after {PATIENCE:g} s: {document}\n{last_words(self._node.root)}")

    async def said(self, words: str) -> None:
        """Return once the log has these words."""
        await eventually(lambda: words in self._log.read_text(errors="replace"), PATIENCE)


def _inspect(socket: Path) -> dict[str, Any]:
    """What is shown; nothing while nobody answers."""
    try:
        document: dict[str, Any] = msgspec.json.decode(fetch(socket))
    except Exception:
        return {}
    return document

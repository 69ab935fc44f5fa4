"""Everybody who has connected to one listener: how many may, and who makes room for whom."""

from __future__ import annotations

import socket
from collections.abc import Collection

import anyio
import structlog

from agent.core.cell import Cell
from agent.http.client_connection import Conversation, Hear, Show
from agent.http.client_limits import ClientLimits
from agent.http.loop_turns import LoopTurns

log = structlog.get_logger()

_AFTER_ERROR = 0.5


class Conversations:
    """Every open connection of one listener.

    Who asks comes before who only holds a connection, or strangers could fail a probe: where all places are
    taken the slowest loses its own, and nobody does whose first request is here.
    """

    def __init__(self, show: Show, limits: ClientLimits, hear: Hear | None = None) -> None:
        """`hear` takes in what is sent by POST, on a unix socket; without it nothing is."""
        self._show = show
        self._hear = hear
        self._limits = limits
        self._turns = LoopTurns(limits.share)
        #: A turn of their own, so that who comes does not wait behind all who ask.
        self._comings = LoopTurns(limits.share)
        self._open: Cell[frozenset[Conversation]] = Cell(frozenset())

    async def run(self, listener: socket.socket) -> None:
        """Talk with whoever comes, until cancelled.

        asyncio's own server forgets, and leaks, a client that comes while it closes.
        """
        async with anyio.create_task_group() as group:
            while True:
                await anyio.wait_readable(listener)
                try:
                    conversation = await self._next(listener)
                except BlockingIOError:
                    continue  # it went away again
                except OSError as error:
                    log.warning("client not accepted", error=str(error))
                    await anyio.sleep(_AFTER_ERROR)  # out of file descriptors, say
                    continue
                group.start_soon(self._talk, conversation)

    async def _next(self, listener: socket.socket) -> Conversation:
        """Who comes next, once there is a place."""
        await self._comings.begin()
        try:
            client, address = listener.accept()
            client.setblocking(False)
            peer = address[0] if listener.family != socket.AF_UNIX else ""
            conversation = Conversation(
                client, peer, self._limits, self._turns, self._show, self._hear, self._open.touch
            )
        finally:
            self._comings.end()
        try:
            await self._make_room(peer)
        except BaseException:
            client.close()
            raise
        self._open.set(self._open.value | {conversation})
        return conversation

    async def _make_room(self, peer: str) -> None:
        """Wait for a place; as a rule there is one, or somebody who has to leave."""
        while rivals := self._rivals(peer):
            slow = [it for it in rivals if not it.owed]
            if slow:
                slowest = min(slow, key=lambda it: it.since)
                slowest.drop()
                self._open.set(self._open.value - {slowest})
            else:
                await self._open.changed()

    def _rivals(self, peer: str) -> Collection[Conversation]:
        """Of whom one has to leave before a client of this peer may come; nobody, where there are places."""
        of_it = [it for it in self._open.value if it.peer == peer]
        if len(of_it) >= self._limits.per_peer:
            return of_it
        return self._open.value if len(self._open.value) >= self._limits.connections else ()

    async def _talk(self, conversation: Conversation) -> None:
        try:
            await conversation.run()
        finally:
            self._open.set(self._open.value - {conversation})

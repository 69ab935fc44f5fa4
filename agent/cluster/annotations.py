"""The annotations that vendors give the node, written to its Node and removed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from agent.cluster.annotated import all_of, patch
from agent.cluster.api import Api
from agent.cluster.node import ANNOTATED, OwnNode, path
from agent.cluster.upkeep import Upkeep, Words, Writer
from agent.core.annotations import Annotated
from agent.core.cell import Cell
from agent.core.pauses import Pauses

WORDS = Words(
    "annotations refused",
    "annotations wait for the API server",
    "annotations are as they should be again",
    "somebody else changes annotations of vendors on this node as often as they are written",
)


class AnnotationWriter(Writer):
    """Keeps them as they are wanted, from the agent's start until after its end.

    It writes only what differs. A server that is away is tried again, with pauses, until it has it all.
    """

    def __init__(
        self,
        api: Api,
        node_name: str,
        wanted: Cell[Annotated | None],
        node: Cell[OwnNode | None],
        *,
        pauses: Pauses | None = None,
        between: float = 0.25,
        every: float = 300.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Seconds: `between` two writes, as schedulers go by what is written, and `every` how often it is
        looked whether all is as it should be.
        """
        self._api = api
        self._node_name = node_name
        self._wanted = wanted
        self._node = node
        #: What the Node was last seen to have, or given.
        self._there: Annotated | None = None
        pauses = pauses or Pauses(1.0, 60.0)
        self._upkeep = Upkeep(
            self._write,
            WORDS,
            node_name,
            pauses=pauses,
            refused=pauses,
            between=between,
            every=every,
            jitter=jitter,
        )

    async def run(self, returns: Cell[int]) -> None:
        """Follow what is wanted, and the Node, for ever. They stay when the agent ends.

        `returns` counts how often the server was away and came back.
        """
        await self._upkeep.run((self._wanted, self._node), returns)

    async def _write(self, live: bool) -> str:
        wanted, node = self._wanted.value, self._node.value
        if wanted is None or node is None or not self._concerns(node, wanted, live=live):
            return ""
        changes = await _changed(self._api, self._node_name, wanted)
        if changes is not None:
            told = changes["metadata"]["annotations"]
            self._upkeep.wrote({key: told[key] for key in told.keys() & wanted.texts.keys()} or told)
        self._there = wanted
        return ""

    def _concerns(self, node: OwnNode, wanted: Annotated, *, live: bool) -> bool:
        """Whether the Node is looked at: the watch tells of it, late, only what it records as ours."""
        if not wanted.texts and ANNOTATED not in node.annotations:
            return False
        return live or wanted != self._there or patch(node.annotations, wanted) is not None


async def remove(api: Api, node_name: str) -> bool:
    """Take away what any agent wrote here, as for uninstalling; whether there was something.

    Raises:
        ApiError: It refuses, or is away.
    """
    return await _changed(api, node_name, Annotated()) is not None


async def _changed(api: Api, node_name: str, wanted: Annotated) -> dict[str, Any] | None:
    """Write what differs, of the Node as it is now; the patch, None where nothing differs."""
    at = path(node_name)
    changes = patch(all_of(await api.get(at)), wanted)
    if changes is not None:
        await api.patch(at, changes)
    return changes

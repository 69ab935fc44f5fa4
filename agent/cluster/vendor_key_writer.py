"""Keeps on the Node what vendors want there under keys of their own, of whatever sort."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from agent.cluster.api import Api, Object
from agent.cluster.own_node import OwnNode, path
from agent.cluster.upkeep import KeptWriter, Upkeep, UpkeepTexts
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.publishing.vendor_key_rules import WantedKeys

T = TypeVar("T")


class OwnedWriter(KeptWriter, Generic[T]):
    """Keeps them as they are wanted, from the agent's start until after its end.

    It writes only what differs. A server that is away is tried again, with pauses, until it has it all.
    """

    words: ClassVar[UpkeepTexts]
    #: The annotation of the Node that names what is the agent's own.
    record: ClassVar[str]

    def __init__(
        self,
        api: Api,
        node_name: str,
        wanted: Cell[WantedKeys[T] | None],
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
        self._there: WantedKeys[T] | None = None
        pauses = pauses or Pauses(1.0, 60.0)
        self._upkeep = Upkeep(
            self._write,
            self.words,
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

    @classmethod
    async def write(
        cls,
        api: Api,
        node_name: str,
        wanted: WantedKeys[T],
        wrote: Callable[[Mapping[str, object]], object] = lambda _: None,
    ) -> bool:
        """Write what differs, of the Node as it is now; whether anything did. `wrote` is told of each patch.

        Raises:
            ApiError: It refuses, or is away. What was written before stays.
        """
        its = cls._changes(await api.get(path(node_name)), wanted)
        for changes in its:
            await api.patch(cls._path(node_name), changes)
            wrote(cls._written(changes))
        return bool(its)

    @classmethod
    async def remove(cls, api: Api, node_name: str) -> bool:
        """Take away what any agent wrote here, as for uninstalling; whether there was something.

        Raises:
            ApiError: It refuses, or is away.
        """
        return await cls.write(api, node_name, WantedKeys())

    async def _write(self, live: bool) -> str:
        wanted, node = self._wanted.value, self._node.value
        if wanted is None or node is None or not self._concerns(node, wanted, live=live):
            return ""
        await self.write(self._api, self._node_name, wanted, partial(self._wrote, wanted))
        self._there = wanted
        return ""

    def _wrote(self, wanted: WantedKeys[T], written: Mapping[str, object]) -> None:
        self._upkeep.wrote({key: written[key] for key in written.keys() & wanted.values.keys()} or written)

    def _concerns(self, node: OwnNode, wanted: WantedKeys[T], *, live: bool) -> bool:
        """Whether the Node is looked at: the watch tells of it, late, only what it records as ours."""
        if not wanted.values and self.record not in node.annotations:
            return False
        return live or wanted != self._there or self._differs(node, wanted)

    @classmethod
    @abstractmethod
    def _differs(cls, node: OwnNode, wanted: WantedKeys[T]) -> bool:
        """Whether something is to be written, as far as the watch tells."""

    @classmethod
    @abstractmethod
    def _changes(cls, node: Object, wanted: WantedKeys[T]) -> Sequence[dict[str, Any]]:
        """The merge patches of the Node that make it so, one after the other; none where it is."""

    @classmethod
    @abstractmethod
    def _written(cls, changes: Mapping[str, Any]) -> Mapping[str, object]:
        """What such a patch writes, by key."""

    @classmethod
    def _path(cls, node_name: str) -> str:
        """What is patched."""
        return path(node_name)

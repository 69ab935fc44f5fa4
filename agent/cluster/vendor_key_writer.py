"""Keeps values that vendors want on the Node under keys of their own: annotations, extended resources."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from agent.cluster.api_protocol import Api, Object
from agent.cluster.own_node import OwnNode, path
from agent.cluster.repeated_writes import RepeatedWrites, RepeatedWriteTexts, RepeatingWriter
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.publishing.vendor_key_rules import WantedKeys

T = TypeVar("T")


class OwnedWriter(RepeatingWriter, Generic[T]):
    """Keeps the values as they are wanted, and leaves them there when the agent ends.

    Only differences are written. While the server is away, the writer tries again with pauses.
    """

    words: ClassVar[RepeatedWriteTexts]
    #: The Node's annotation that names the keys that the agent wrote.
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
        """Seconds: `between` two writes, short because schedulers read the values, and `every` for a look
        without a change.
        """
        self._api = api
        self._node_name = node_name
        self._wanted = wanted
        self._node = node
        #: The values that the Node was last seen with, or was given.
        self._last_known: WantedKeys[T] | None = None
        pauses = pauses or Pauses(1.0, 60.0)
        self._writes = RepeatedWrites(
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
        """Follow the wanted values and the Node, for ever. The values stay when the agent ends.

        `returns` counts how often the server was away and came back.
        """
        await self._writes.run((self._wanted, self._node), returns)

    @classmethod
    async def write(
        cls,
        api: Api,
        node_name: str,
        wanted: WantedKeys[T],
        wrote: Callable[[Mapping[str, object]], object] = lambda _: None,
    ) -> bool:
        """Read the Node and write what differs; returns whether anything did. `wrote` gets each patch.

        Raises:
            ApiError: The server refuses, or is away. Earlier patches stay.
        """
        patches = cls._changes(await api.get(path(node_name)), wanted)
        for changes in patches:
            await api.patch(cls._path(node_name), changes)
            wrote(cls._written(changes))
        return bool(patches)

    @classmethod
    async def remove(cls, api: Api, node_name: str) -> bool:
        """Remove what any agent wrote, for uninstalling; returns whether there was something.

        Raises:
            ApiError: The server refuses, or is away.
        """
        return await cls.write(api, node_name, WantedKeys())

    async def _write(self, live: bool) -> str:
        wanted, node = self._wanted.value, self._node.value
        if wanted is None or node is None or not self._concerns(node, wanted, live=live):
            return ""
        await self.write(self._api, self._node_name, wanted, partial(self._wrote, wanted))
        self._last_known = wanted
        return ""

    def _wrote(self, wanted: WantedKeys[T], written: Mapping[str, object]) -> None:
        self._writes.wrote({key: written[key] for key in written.keys() & wanted.values.keys()} or written)

    def _concerns(self, node: OwnNode, wanted: WantedKeys[T], *, live: bool) -> bool:
        """Whether to read the Node: the watch is late, and shows only the keys recorded as the agent's."""
        if not wanted.values and self.record not in node.annotations:
            return False
        return live or wanted != self._last_known or self._differs(node, wanted)

    @classmethod
    @abstractmethod
    def _differs(cls, node: OwnNode, wanted: WantedKeys[T]) -> bool:
        """Whether the Node differs, as far as the watch shows."""

    @classmethod
    @abstractmethod
    def _changes(cls, node: Object, wanted: WantedKeys[T]) -> Sequence[dict[str, Any]]:
        """The merge patches of the Node, in order, that write the wanted values; none if nothing differs."""

    @classmethod
    @abstractmethod
    def _written(cls, changes: Mapping[str, Any]) -> Mapping[str, object]:
        """What a patch writes, by key."""

    @classmethod
    def _path(cls, node_name: str) -> str:
        """The path that is patched."""
        return path(node_name)

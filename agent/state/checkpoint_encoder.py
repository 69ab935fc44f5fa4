"""The checkpoint's content as JSON, of which most is as it was the last time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from agent.core.model import Allocation

if TYPE_CHECKING:
    from agent.state.checkpoint import SavedState


class Encoder:
    """Remembers how each allocation is written: of a node's hundred an Allocate changes one."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Allocation, msgspec.Raw]] = {}

    def content(self, state: SavedState) -> object:
        """What msgspec encodes to the same bytes as the state.

        Raises:
            ValueError: A text in it is no UTF-8.
        """
        encoded = [self._encoded(it) for it in state.allocations]
        self._known = {one[0].id: one for one in encoded}
        raw: Any = tuple(text for _, text in encoded)
        return replace(state, allocations=raw)

    def _encoded(self, it: Allocation) -> tuple[Allocation, msgspec.Raw]:
        known = self._known.get(it.id)
        if known is not None and known[0] is it:
            return known
        return it, msgspec.Raw(msgspec.json.encode(it))

"""Encodes the checkpoint's content as JSON, and reuses what has not changed since the last time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from agent.core.model import Allocation

if TYPE_CHECKING:
    from agent.state.checkpoint import SavedState


class Encoder:
    """Caches the JSON of each allocation: an Allocate changes one of a hundred."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Allocation, msgspec.Raw]] = {}

    def content(self, state: SavedState) -> object:
        """A value that msgspec encodes to the same bytes as the state.

        Raises:
            ValueError: A text of the state is no UTF-8.
        """
        encoded = [self._encoded(it) for it in state.allocations]
        self._known = {one[0].id: one for one in encoded}
        raw: Any = tuple(text for _, text in encoded)
        return replace(state, allocations=raw)

    def _encoded(self, allocation: Allocation) -> tuple[Allocation, msgspec.Raw]:
        known = self._known.get(allocation.id)
        if known is not None and known[0] is allocation:
            return known
        return allocation, msgspec.Raw(msgspec.json.encode(allocation))

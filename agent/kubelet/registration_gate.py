"""The registration gate: whether a resource may be registered with the kubelet now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct, field

from agent.core.cell import Cell
from agent.core.model import SessionStatus


async def _nothing(resource: str) -> None: ...


class RegistrationGate(Struct, frozen=True):
    """Decides whether a resource may be registered now, and prepares its registration."""

    #: Takes a vendor. Says why resources of the vendor may not be registered now; None where they may.
    closed: Callable[[str], SessionStatus | None] = lambda vendor: None
    #: Changes whenever the answer of `closed` may have changed.
    changes: Cell[int] = field(default_factory=lambda: Cell(0))
    #: Awaited before the first registration of a resource, because another plugin may have served it before.
    before: Callable[[str], Awaitable[None]] = _nothing

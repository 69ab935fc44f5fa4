"""What can go wrong before a view is served."""

from __future__ import annotations

from agent.core.errors import AgentError


class CannotServe(AgentError, OSError):
    """Raised when an address cannot be listened on; it may be free later."""

    def __init__(self, where: str, why: str, remedy: str) -> None:
        super().__init__(f"cannot serve on {where}: {why}; {remedy}")

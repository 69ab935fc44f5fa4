"""What keeps the agent from listening for HTTP."""

from __future__ import annotations

from agent.core.errors import AgentError


class CannotServe(AgentError, OSError):
    """Raised when the agent cannot listen on an address; a later attempt may succeed."""

    def __init__(self, where: str, why: str, remedy: str) -> None:
        super().__init__(f"cannot serve on {where}: {why}; {remedy}")

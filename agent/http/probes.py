"""The probes: whether the agent answers, and whether it serves."""

from __future__ import annotations

from agent.core.publishing.agent_status import AgentStatus
from agent.http.answer import HttpAnswer, text


def healthz() -> HttpAnswer:
    """Alive: the event loop runs, or there would be no answer."""
    return text(200, "ok")


def readyz(status: AgentStatus) -> HttpAnswer:
    """Ready, or every reason why not, one per line. A standby is ready: it waits to take over."""
    if status.standby:
        return text(200, f"standby: {status.standby}")
    troubles = status.troubles
    return text(503, *troubles) if troubles else text(200, "ready")

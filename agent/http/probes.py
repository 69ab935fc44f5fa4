"""The probes: whether the agent answers, and whether it serves."""

from __future__ import annotations

from agent.core.publishing.agent_status import AgentStatus
from agent.http.answer import Answer, text


def healthz() -> Answer:
    """Alive: the loop came around to answer."""
    return text(200, "ok")


def readyz(view: AgentStatus) -> Answer:
    """Ready, or every reason why not, one per line. A standby is ready: it waits to take over."""
    if view.standby:
        return text(200, f"standby: {view.standby}")
    troubles = view.troubles
    return text(503, *troubles) if troubles else text(200, "ready")

"""What can go wrong with the kubelet.

KubeletError
├── KubeletRefused
└── Undecodable
"""

from __future__ import annotations

from agent.core.errors import AgentError


class KubeletError(AgentError):
    """Raised when the kubelet, or a file of its, is away or did not do what was asked."""


class KubeletRefused(KubeletError):
    """Raised when the kubelet answered no; `status` is the name of the gRPC status, `text` its own words."""

    def __init__(self, call: str, status: str, text: str) -> None:
        super().__init__(f"the kubelet refused {call}: {text or status}")
        self.status = status
        self.text = text


class Undecodable(KubeletError):
    """Raised when bytes are no message of the kind they should be."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"undecodable {what}: {why}")

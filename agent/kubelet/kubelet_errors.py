"""Errors in what is read from, or spoken with, the kubelet.

KubeletError
├── KubeletRefused
└── Undecodable
"""

from __future__ import annotations

from agent.core.errors import AgentError


class KubeletError(AgentError):
    """Raised when the kubelet or one of its files is absent, or the kubelet did not do what it was asked."""


class KubeletRefused(KubeletError):
    """Raised when the kubelet answered with an error: the name of its gRPC `status`, and its own `text`."""

    def __init__(self, call: str, status: str, text: str) -> None:
        super().__init__(f"the kubelet refused {call}: {text or status}")
        self.status = status
        self.text = text


class Undecodable(KubeletError):
    """Raised when bytes are no message of the expected kind."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"undecodable {what}: {why}")

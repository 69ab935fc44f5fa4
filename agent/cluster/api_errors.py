"""Errors of calls to the API server."""

from __future__ import annotations

from agent.core.errors import AgentError


class ApiError(AgentError):
    """Raised when a call to the API server failed."""


class ApiAway(ApiError):
    """Raised when the server did not answer, or answered 5xx: a later try may succeed."""


class TooLong(ApiAway):
    """Raised when an answer is longer than the agent reads; a list can be read in smaller pages."""


class ApiRefused(ApiError):
    """Raised when the server refused. `status` is HTTP's, `reason` the API's own word (`Forbidden`)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if message else f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiRefused):
    """Raised for 404: the object, or its kind, does not exist."""


class Conflict(ApiRefused):
    """Raised for 409: the object exists, or another client has written it meanwhile."""


class Gone(ApiRefused):
    """Raised for 410: the resourceVersion is too old, and the list must be read again."""


class Busy(ApiRefused):
    """Raised for 429. `retry_after` is the pause in seconds that the server asks for, if it names one."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(status, reason, message)
        self.retry_after = retry_after


class Forbidden(ApiRefused):
    """Raised for 401 and 403: the token is not accepted, or lacks the right."""

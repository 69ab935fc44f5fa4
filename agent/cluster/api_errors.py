"""Why the API server did not do what was asked of it."""

from __future__ import annotations

from agent.core.errors import AgentError


class ApiError(AgentError):
    """Raised when a call to the API server came to nothing."""


class ApiAway(ApiError):
    """Raised when nobody answered, or only that it cannot just now (5xx): worth another try later."""


class TooLong(ApiAway):
    """Raised when an answer is longer than the agent reads: a list may be read in smaller pages."""


class ApiRefused(ApiError):
    """Raised when it answered no. `status` is HTTP's, `reason` the API's own word (`Forbidden`)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if message else f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiRefused):
    """Raised for 404: the object, or its kind, is not there."""


class Conflict(ApiRefused):
    """Raised for 409: somebody else wrote it meanwhile, or it exists."""


class Gone(ApiRefused):
    """Raised for 410: the resource version is too old, list again."""


class Busy(ApiRefused):
    """Raised for 429. `retry_after`: seconds, as the server asks; None where it does not say."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(status, reason, message)
        self.retry_after = retry_after


class Forbidden(ApiRefused):
    """Raised for 401 and 403: the token is not taken, or may not do this."""

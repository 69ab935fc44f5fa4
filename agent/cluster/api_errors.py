"""Errors of calls to the API server, and the error for an HTTP status with the Status object sent along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.core.errors import AgentError
from agent.vendor_api.text import shorten

#: Characters of a message that are kept; a refusal by RBAC or a webhook is one sentence.
LONGEST = 500

#: The message for a resourceVersion that the server has not reached, as after a restore from a backup.
#: Source: k8s.io/apiserver, pkg/storage/errors.go (NewTooLargeResourceVersionError).
_TOO_LARGE = "Too large resource version"


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


_KINDS: Mapping[int, type[ApiRefused]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
}


def refusal(code: int, body: object, retry_after: str | None = None) -> ApiError:
    """The error for a status other than 2xx.

    `body` is a Status (k8s.io/apimachinery/pkg/apis/meta/v1) or anything else; `retry_after` is the header.
    """
    status: Mapping[str, Any] = body if isinstance(body, dict) else {}
    reason = _text(status.get("reason")) or "Unexpected"
    message = _text(status.get("message")) or (_text(body) if isinstance(body, str) else "")
    if code == 429:
        return Busy(code, reason, message, _seconds(retry_after, status))
    if code == 504 and _TOO_LARGE in message:
        return Gone(code, reason, message)
    if code >= 500:
        return ApiAway(f"the API server cannot answer now: {code} {reason}: {message}")
    return _KINDS.get(code, ApiRefused)(code, reason, message)


def _text(value: object) -> str:
    return shorten(value, LONGEST) if isinstance(value, str) else ""


def _seconds(header: str | None, status: Mapping[str, Any]) -> float | None:
    if header is not None and header.isascii() and header.isdigit():
        return float(header[:9])
    details = status.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return float(seconds) if isinstance(seconds, int) and 0 < seconds < 10**9 else None

"""Turns an HTTP status, and the Status object that the API server sends with it, into an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, Busy, Conflict, Forbidden, Gone, NotFound
from agent.vendor_api.text import shorten

#: Characters of a message that are kept; a refusal by RBAC or a webhook is one sentence.
LONGEST = 500

#: The message for a resourceVersion that the server has not reached, as after a restore from a backup.
#: Source: k8s.io/apiserver, pkg/storage/errors.go (NewTooLargeResourceVersionError).
_TOO_LARGE = "Too large resource version"

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
        return ApiAway(f"the API server cannot just now: {code} {reason}: {message}")
    return _KINDS.get(code, ApiRefused)(code, reason, message)


def _text(value: object) -> str:
    return shorten(value, LONGEST) if isinstance(value, str) else ""


def _seconds(header: str | None, status: Mapping[str, Any]) -> float | None:
    if header is not None and header.isascii() and header.isdigit():
        return float(header[:9])
    details = status.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return float(seconds) if isinstance(seconds, int) and 0 < seconds < 10**9 else None

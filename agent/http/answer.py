"""The answer to one HTTP request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from agent.vendor_api.text import printable

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes
    content_type: str = TEXT


def text(status: int, *lines: str) -> HttpAnswer:
    """Lines of text. Texts of vendors may contain line breaks; each argument stays one line."""
    joined = "".join(f"{printable(' '.join(line.split()))}\n" for line in lines)
    return HttpAnswer(status, joined.encode("utf-8"))


def document(value: Any, status: int = 200) -> HttpAnswer:
    """A JSON document in ASCII."""
    encoded = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return HttpAnswer(status, encoded.encode("ascii") + b"\n", JSON)

"""The text of one log line: JSON for programs, plain or coloured for people."""

from __future__ import annotations

import json
from collections.abc import MutableMapping, Sequence
from typing import Any

from agent.vendor_api.text import printable

#: Key to value, as structlog passes an event; `time`, `level` and `event` come first.
Event = MutableMapping[str, Any]

_COLORS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31;1m"}
_encode = json.JSONEncoder(default=str, allow_nan=False, check_circular=True).encode


def as_json(event: Event) -> str:
    """One JSON object. A value that JSON cannot express becomes its `repr`, and so do all others then."""
    try:
        return _encode(event)
    except (TypeError, ValueError, RecursionError):
        return _encode({str(key): repr(value) for key, value in event.items()})


def as_text(event: Event) -> str:
    """Time, level and event, then the other keys with their values, then a traceback on lines of its own."""
    rest = dict(event)
    stamp, level, event_text = rest.pop("time", ""), rest.pop("level", ""), rest.pop("event", "")
    trace = rest.pop("exception", "")
    parts = [f"{str(stamp)[11:23]} {level:<8} {_shown(event_text, quoted=False)}"]
    parts += [f"{_shown(key, quoted=False)}={_shown(value)}" for key, value in rest.items()]
    trace_lines = "".join(f"\n    {_shown(line, quoted=False)}" for line in str(trace).splitlines())
    return " ".join(parts) + trace_lines


def as_colored_text(event: Event) -> str:
    color = _COLORS.get(event.get("level", ""))
    return f"{color}{as_text(event)}\x1b[0m" if color else as_text(event)


def _shown(value: object, *, quoted: bool = True) -> str:
    """A value on one line. Pods and hardware choose some values, so control characters are replaced."""
    text = value if isinstance(value, str) else _compact(value)
    if quoted and isinstance(value, str) and (not text or any(letter in ' "=' for letter in text)):
        text = f'"{text}"'
    return printable(text)


def _compact(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return str(value)

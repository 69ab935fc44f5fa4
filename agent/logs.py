"""Logs: one line per event, JSON for machines or plain for a terminal, from structlog and stdlib alike."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

from agent.config.settings import LogFormat, LogLevel, LogSettings
from agent.core.errors import ConfigError
from agent.core.text import printable

if "rich" in sys.modules or "structlog" in sys.modules:
    import structlog
else:
    # structlog imports rich where it is installed, for a traceback style unused here: a third of its cost.
    sys.modules["rich"] = cast("Any", None)
    try:
        import structlog
    finally:
        del sys.modules["rich"]

Event = MutableMapping[str, Any]

FILE_NAME = "xpu-agent.log"
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_COLORS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31;1m"}
#: Libraries that tell of every frame at debug.
_CHATTY = ("asyncio", "hpack", "h2", "grpclib")

_encode = json.JSONEncoder(default=str, allow_nan=False, check_circular=True).encode


class Output:
    """Where lines go. There is one, so that loggers cached before a change follow it."""

    def __init__(self) -> None:
        self.threshold = _LEVELS["info"]
        self.stream: TextIO | None = None
        self.file: RotatingFileHandler | None = None
        self.render: Callable[[Event], str] = as_json

    def write(self, event: Event) -> None:
        """Write one event; nothing that is logged, and nowhere it goes, may stop the agent."""
        try:
            line = self.render(event)
            if self.file is not None:
                self.file.handle(logging.makeLogRecord({"msg": as_json(event)}))
            # None: the stream as it is now, which tests and supervisors replace.
            stream = sys.stderr if self.stream is None else self.stream
            if stream is not None:
                stream.write(line + "\n")
                stream.flush()
        except (OSError, ValueError):
            pass  # a full disk, a closed pipe


def as_json(event: Event) -> str:
    try:
        return _encode(event)
    except (TypeError, ValueError, RecursionError):
        return _encode({str(key): repr(value) for key, value in event.items()})


def as_text(event: Event) -> str:
    """For people: time, level, event, then what belongs to it."""
    rest = dict(event)
    stamp, level, told = rest.pop("time", ""), rest.pop("level", ""), rest.pop("event", "")
    trace = rest.pop("exception", "")
    words = [f"{str(stamp)[11:23]} {level:<8} {_shown(told, quoted=False)}"]
    words += [f"{_shown(key, quoted=False)}={_shown(value)}" for key, value in rest.items()]
    below = "".join(f"\n    {_shown(line, quoted=False)}" for line in str(trace).splitlines())
    return " ".join(words) + below


def as_colored_text(event: Event) -> str:
    color = _COLORS.get(event.get("level", ""))
    return f"{color}{as_text(event)}\x1b[0m" if color else as_text(event)


def _shown(value: object, *, quoted: bool = True) -> str:
    """A value on one line. Pods and hardware choose some of them: no control character gets through."""
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


_OUTPUT = Output()


class _Logger(structlog.BoundLoggerBase):
    """The levels as methods; a level that is off costs one comparison."""

    def debug(self, event: str, *args: object, **keys: Any) -> None:
        if _OUTPUT.threshold <= 10:
            self._say("debug", event, args, keys)

    def info(self, event: str, *args: object, **keys: Any) -> None:
        if _OUTPUT.threshold <= 20:
            self._say("info", event, args, keys)

    def warning(self, event: str, *args: object, **keys: Any) -> None:
        if _OUTPUT.threshold <= 30:
            self._say("warning", event, args, keys)

    warn = warning

    def error(self, event: str, *args: object, **keys: Any) -> None:
        if _OUTPUT.threshold <= 40:
            self._say("error", event, args, keys)

    def critical(self, event: str, *args: object, **keys: Any) -> None:
        self._say("critical", event, args, keys)

    def exception(self, event: str, *args: object, **keys: Any) -> None:
        keys.setdefault("exc_info", True)
        self.error(event, *args, **keys)

    def _say(self, level: str, event: str, args: tuple[object, ...], keys: Mapping[str, Any]) -> None:
        self._proxy_to_logger(level, event % args if args else event, **keys)


class _Sink:
    """What structlog hands finished events to."""

    def _write(self, event: Event) -> None:
        _OUTPUT.write(event)

    debug = info = warning = error = critical = _write


def _finish(_: Any, level: str, event: Event) -> tuple[tuple[Event], dict[str, Any]]:
    """Put time, level and event first, and a traceback where an exception is told."""
    keys = dict(event)
    told = keys.pop("event", "")
    caught = _caught(keys.pop("exc_info", None))
    finished: Event = {"time": _now(), "level": level, "event": told, **keys}
    if caught is not None:
        finished["exception"] = "".join(traceback.format_exception(caught)).rstrip()
    return (finished,), {}


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:23] + "Z"


def _caught(
    told: bool
    | BaseException
    | tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
    | None,
) -> BaseException | None:
    if isinstance(told, BaseException):
        return told
    if isinstance(told, tuple):
        return told[1]
    return sys.exc_info()[1] if told else None


class _FromStdlib(logging.Handler):
    """Passes on what libraries log through the standard library."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            event: Event = {"event": record.getMessage(), "logger": record.name, "exc_info": record.exc_info}
            (finished,), _ = _finish(None, record.levelname.lower(), event)
        except Exception:
            self.handleError(record)
            return
        _OUTPUT.write(finished)


_PROCESSORS = [_finish]


def configure(settings: LogSettings | None = None, stream: TextIO | None = None) -> None:
    """Send every log line to `stream` (standard error), and as JSON to a file where `dir` is set.

    Called again it replaces what it set before, also for loggers that are in use.

    Raises:
        ConfigError: The file can not be written.
    """
    settings = settings or LogSettings()
    file = _open_file(settings) if settings.dir else None
    former, _OUTPUT.file = _OUTPUT.file, file
    if former is not None:
        former.close()
    _OUTPUT.stream = stream
    _OUTPUT.render = _renderer(settings.format, sys.stderr if stream is None else stream)
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=_Logger,
        context_class=dict,
        logger_factory=lambda *_: _Sink(),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [it for it in root.handlers if not isinstance(it, _FromStdlib)]
    root.addHandler(_FromStdlib())
    set_level(settings.level)


def set_level(level: LogLevel) -> None:
    """Change how much is logged, while running."""
    _OUTPUT.threshold = _LEVELS[level]
    logging.getLogger().setLevel(_OUTPUT.threshold)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(_OUTPUT.threshold, logging.INFO))


def _renderer(format: LogFormat, stream: TextIO | None) -> Callable[[Event], str]:
    terminal = stream is not None and stream.isatty()
    if format == "json" or (format == "auto" and not terminal):
        return as_json
    return as_colored_text if terminal and "NO_COLOR" not in os.environ else as_text


class _PrivateFile(RotatingFileHandler):
    """A rotating file that its owner alone can read."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding="utf-8", opener=_private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Stay silent: a full disk must not fill standard error with tracebacks too."""


def _private(path: str, flags: int) -> int:
    opened = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    os.fchmod(opened, 0o600)
    return opened


def _open_file(settings: LogSettings) -> RotatingFileHandler:
    path = Path(settings.dir) / FILE_NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _PrivateFile(path, maxBytes=settings.max_bytes, backupCount=settings.keep)
    except OSError as error:
        raise ConfigError(
            f"agent.log.dir: {path} can not be written: {error.strerror}; "
            'name a writable directory, or "" for none'
        ) from error

"""Logs: one line per event, JSON for machines or plain for a terminal, from structlog and stdlib alike."""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

# structlog imports these where they are installed, for colours and a traceback style unused here: a third of
# its cost. Before anything of ours, which may import structlog too.
_UNUSED = [name for name in ("rich", "colorama") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_UNUSED, cast("Any", None)))
try:
    import structlog
finally:
    for _name in _UNUSED:
        del sys.modules[_name]

from agent.core.errors import ConfigError  # noqa: E402
from agent.core.text import printable  # noqa: E402
from agent.writer import Writer, to_descriptor  # noqa: E402

if TYPE_CHECKING:
    from agent.config.settings import LogFormat, LogLevel, LogSettings

Event = MutableMapping[str, Any]

FILE_NAME = "xpu-agent.log"
#: What is waited for at the end until the last lines are written.
LAST_WORDS = 0.5
_METHODS = ("debug", "info", "warning", "error", "critical", "exception")
_COLORS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31;1m"}
#: Libraries that tell of every frame at debug.
_CHATTY = ("asyncio", "hpack", "h2", "grpclib")
#: What it logs it raises, too; and the words of a program that hands out tokens may hold one.
_SILENT = ("kubernetes_asyncio",)

_encode = json.JSONEncoder(default=str, allow_nan=False, check_circular=True).encode


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


class _Way:
    """One place that lines go to: by a thread where it could block, at once where it is in memory."""

    def __init__(self, render: Callable[[Event], str], write: Callable[[str], object]) -> None:
        self._render = render
        self._put = write
        self.writer: Writer | None = None

    def by_thread(self, close: Callable[[], object] = lambda: None) -> _Way:
        self.writer = Writer(self._put, self._dropped, close)
        self._put = self.writer.put
        return self

    def take(self, event: Event) -> None:
        """Nothing that is logged, and nowhere it goes, may stop the agent."""
        try:
            self._put(self._render(event))
        except (OSError, ValueError):
            return  # a stream that is closed

    def _dropped(self, lines: int) -> str:
        return self._render(_told("warning", {"event": "log lines dropped", "lines": lines}))


class _Sink:
    """Where structlog and the standard library hand in. There is one: loggers in use follow a change."""

    ways: tuple[_Way, ...] = ()

    def _take(self, event: Event) -> None:
        for way in self.ways:
            way.take(event)

    debug = info = warning = error = critical = _take

    def writers(self) -> list[Writer]:
        return [way.writer for way in self.ways if way.writer]


_SINK = _Sink()


class _Logger(structlog.BoundLoggerBase):
    """Has the methods that `set_level` gives it, so that the level changes for loggers in use too."""


class _FromStdlib(logging.Handler):
    """Passes on what libraries log through the standard library."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            event: Event = {"event": record.getMessage(), "logger": record.name, "exc_info": record.exc_info}
        except Exception:
            self.handleError(record)
            return
        _SINK._take(_told(record.levelname.lower(), structlog.processors.format_exc_info(None, "", event)))


def _told(level: str, event: Event) -> Event:
    """Put time, level and event first."""
    stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:23] + "Z"
    return {"time": stamp, "level": level, "event": event.pop("event", ""), **event}


def _finish(_: Any, level: str, event: Event) -> tuple[tuple[Event], dict[str, Any]]:
    return (_told(level, event),), {}


_PROCESSORS: list[Any] = [structlog.processors.format_exc_info, _finish]


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send every log line to `stream` (standard error), and as JSON to a file where `dir` is set.

    Called again it replaces what it set before, also for loggers that are in use.

    Raises:
        ConfigError: The file can not be written.
    """
    file = _open_file(settings) if settings.dir else None
    former, _SINK.ways = _SINK.writers(), tuple(_ways(settings, stream or sys.stderr, file))
    for writer in former:
        writer.close(LAST_WORDS)
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=_Logger,
        context_class=dict,
        logger_factory=lambda *_: _SINK,
    )
    root = logging.getLogger()
    root.handlers[:] = [it for it in root.handlers if not isinstance(it, _FromStdlib)]
    root.addHandler(_FromStdlib())
    set_level(settings.level)
    atexit.unregister(flush)
    atexit.register(flush)


def set_level(level: LogLevel) -> None:
    """Change how much is logged, while running."""
    filtering = structlog.make_filtering_bound_logger(level)
    for method in _METHODS:
        setattr(_Logger, method, getattr(filtering, method))
    threshold = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(threshold)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(threshold, logging.INFO))
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def flush(timeout: float = LAST_WORDS) -> None:
    """Wait until everything logged so far is written, but no longer than this."""
    until = time.monotonic() + timeout
    for written in [writer.mark() for writer in _SINK.writers()]:
        written.wait(max(0.0, until - time.monotonic()))


def _ways(settings: LogSettings, stream: TextIO | None, file: RotatingFileHandler | None) -> Iterator[_Way]:
    if stream is not None:
        yield _to_stream(_renderer(settings.format, stream), stream)
    if file is not None:
        yield _Way(as_json, lambda line: file.handle(logging.makeLogRecord({"msg": line}))).by_thread(
            file.close
        )


def _to_stream(render: Callable[[Event], str], stream: TextIO) -> _Way:
    try:
        stream.fileno()
    except (OSError, ValueError):  # it is in memory
        return _Way(render, lambda line: stream.write(f"{line}\n"))
    return _Way(render, to_descriptor(stream)).by_thread()


def _renderer(format: LogFormat, stream: TextIO) -> Callable[[Event], str]:
    terminal = stream.isatty()
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

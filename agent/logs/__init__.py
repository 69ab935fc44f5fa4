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

from agent.logs.log_file import LogFile  # noqa: E402
from agent.logs.log_writer import LogWriter, to_descriptor  # noqa: E402
from agent.vendor_api.text import printable  # noqa: E402

if TYPE_CHECKING:
    from agent.config.settings import LogFormat, LogLevel, LogSettings

Event = MutableMapping[str, Any]

#: What is waited for at the end until the last lines are written.
LAST_WORDS = 0.5
_METHODS = ("debug", "info", "warning", "error", "critical", "exception")
_COLORS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31;1m"}
#: Libraries that tell of every frame at debug.
_CHATTY = ("asyncio", "hpack", "h2", "grpclib")
#: What it logs it raises, too; and the words of a program that hands out tokens may hold one.
_SILENT = ("kubernetes_asyncio",)

#: Where a line of the file says it comes from, and how the paths of ours begin.
AT = "at"
_OURS = f"{Path(__file__).parents[2]}{os.sep}"

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
        self.writer: LogWriter | None = None

    def by_thread(self, close: Callable[[], object] = lambda: None) -> _Way:
        self.writer = LogWriter(self._put, self._dropped, close)
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
    file: LogFile | None = None

    def _take(self, event: Event) -> None:
        for way in self.ways:
            way.take(event)

    debug = info = warning = error = critical = _take

    def writers(self) -> list[LogWriter]:
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
        if _SINK.file is not None:
            event[AT] = _place(record.pathname, record.lineno)
        _SINK._take(_told(record.levelname.lower(), structlog.processors.format_exc_info(None, "", event)))


def _told(level: str, event: Event) -> Event:
    """Put time, level and event first."""
    stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:23] + "Z"
    return {"time": stamp, "level": level, "event": event.pop("event", ""), **event}


def _finish(_: Any, level: str, event: Event) -> tuple[tuple[Event], dict[str, Any]]:
    return (_told(level, event),), {}


def _located(_: Any, level: str, event: Event) -> Event:
    """Say from which line it comes, for the file."""
    _callsite(_, level, event)
    return {AT: _place(event.pop("pathname"), event.pop("lineno")), **event}


def _place(path: str, line: int) -> str:
    return f"{path.removeprefix(_OURS)}:{line}"


_callsite = structlog.processors.CallsiteParameterAdder(
    {structlog.processors.CallsiteParameter.PATHNAME, structlog.processors.CallsiteParameter.LINENO},
    additional_ignores=[__name__],
)
_PROCESSORS: list[Any] = [structlog.processors.format_exc_info, _finish]


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send every log line to `stream` (standard error), and as JSON to a file where `dir` is set.

    Called again it replaces what it set before, also for loggers that are in use. A file that cannot be
    written is tried again now and then; meanwhile `file_error` says why.
    """
    file = LogFile(settings.dir, settings.max_bytes, settings.keep, _told_of_file) if settings.dir else None
    former, _SINK.ways = _SINK.writers(), tuple(_ways(settings, stream or sys.stderr, file))
    _SINK.file = file
    for writer in former:
        writer.close(LAST_WORDS)
    structlog.configure(
        processors=[_located, *_PROCESSORS] if file is not None else _PROCESSORS,
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


def file_error() -> str:
    """Why the file is not written; empty where it is, or there is none."""
    return _SINK.file.error if _SINK.file is not None else ""


def _told_of_file(error: str) -> None:
    """By the file's own thread; what cannot be written there is on standard error."""
    if error:
        _SINK._take(_told("error", {"event": "log file not written, trying again", "error": error}))
    else:
        _SINK._take(_told("info", {"event": "log file is written again"}))


def flush(timeout: float = LAST_WORDS) -> None:
    """Wait until everything logged so far is written, but no longer than this."""
    until = time.monotonic() + timeout
    for written in [writer.mark() for writer in _SINK.writers()]:
        written.wait(max(0.0, until - time.monotonic()))


def _ways(settings: LogSettings, stream: TextIO | None, file: LogFile | None) -> Iterator[_Way]:
    if stream is not None:
        render = _renderer(settings.format, stream)
        yield _to_stream(lambda event: render(_without_place(event)), stream)
    if file is not None:
        yield _Way(as_json, file.write).by_thread(file.close)


def _without_place(event: Event) -> Event:
    return {key: it for key, it in event.items() if key != AT} if AT in event else event


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

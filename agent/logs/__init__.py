"""Logs: one line per event, JSON for machines or plain for a terminal, from structlog and stdlib alike."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

# structlog imports these two where they are installed, for colours and tracebacks that are not used here;
# they are a third of its cost. This comes before our own imports, which may import structlog too.
_UNUSED = [name for name in ("rich", "colorama") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_UNUSED, cast("Any", None)))
try:
    import structlog
finally:
    for _name in _UNUSED:
        del sys.modules[_name]

from agent.logs.log_file import LogFile  # noqa: E402
from agent.logs.log_line import Event, as_colored_text, as_json, as_text  # noqa: E402
from agent.logs.log_writer import LogWriter, to_descriptor  # noqa: E402

if TYPE_CHECKING:
    from agent.config.settings import LogFormat, LogLevel, LogSettings

#: Seconds that the end of the process waits until the last lines are written.
FLUSH_SECONDS = 0.5
_METHODS = ("debug", "info", "warning", "error", "critical", "exception")
#: Libraries that log every frame at level debug.
_CHATTY = ("asyncio", "hpack", "h2", "grpclib")
#: Libraries that also raise everything that they log. A log line of this one could contain a token.
_SILENT = ("kubernetes_asyncio",)

#: The key with the place in the code, in lines of the file only.
AT = "at"
#: The beginning of the paths of our own code, which the place leaves out.
_OUR_PATH = f"{Path(__file__).parents[2]}{os.sep}"


class _Output:
    """A stream or a file for log lines. A thread writes where writing can block."""

    def __init__(self, render: Callable[[Event], str], write: Callable[[str], object]) -> None:
        self._render = render
        self._put = write
        self.writer: LogWriter | None = None

    def by_thread(self, close: Callable[[], object] = lambda: None) -> _Output:
        self.writer = LogWriter(self._put, self._dropped, close)
        self._put = self.writer.put
        return self

    def take(self, event: Event) -> None:
        """Write the event; an output that fails does not stop the agent."""
        try:
            self._put(self._render(event))
        except (OSError, ValueError):
            return  # the stream is closed

    def _dropped(self, lines: int) -> str:
        return self._render(_ordered("warning", {"event": "log lines dropped", "lines": lines}))


class _Sink:
    """Passes events of structlog and of the standard library to the outputs.

    There is one for the whole process, so that a new configuration also holds for loggers in use.
    """

    outputs: tuple[_Output, ...] = ()
    file: LogFile | None = None

    def take(self, event: Event) -> None:
        for output in self.outputs:
            output.take(event)

    debug = info = warning = error = critical = take

    def writers(self) -> list[LogWriter]:
        return [output.writer for output in self.outputs if output.writer]


_SINK = _Sink()


class _Logger(structlog.BoundLoggerBase):
    """`set_level` gives it its methods, so that a new level also holds for loggers in use."""


class _FromStdlib(logging.Handler):
    """Passes on the records that libraries log through the standard library."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            event: Event = {"event": record.getMessage(), "logger": record.name, "exc_info": record.exc_info}
        except Exception:
            self.handleError(record)
            return
        if _SINK.file is not None:
            event[AT] = _place(record.pathname, record.lineno)
        _SINK.take(_ordered(record.levelname.lower(), structlog.processors.format_exc_info(None, "", event)))


def _ordered(level: str, event: Event) -> Event:
    """Put time, level and event first."""
    stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:23] + "Z"
    return {"time": stamp, "level": level, "event": event.pop("event", ""), **event}


def _finish(_: Any, level: str, event: Event) -> tuple[tuple[Event], dict[str, Any]]:
    return (_ordered(level, event),), {}


def _located(_: Any, level: str, event: Event) -> Event:
    """Add the place in the code, for the file."""
    _callsite(_, level, event)
    return {AT: _place(event.pop("pathname"), event.pop("lineno")), **event}


def _place(path: str, line: int) -> str:
    return f"{path.removeprefix(_OUR_PATH)}:{line}"


_callsite = structlog.processors.CallsiteParameterAdder(
    {structlog.processors.CallsiteParameter.PATHNAME, structlog.processors.CallsiteParameter.LINENO},
    additional_ignores=[__name__],
)
_PROCESSORS: list[Any] = [structlog.processors.format_exc_info, _finish]


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send every log line to `stream` (standard error), and as JSON to a file where `dir` is set.

    A second call replaces the first one, also for loggers in use. A file that cannot be written is tried
    again from time to time; `file_error` says why meanwhile.
    """
    file = LogFile(settings.dir, settings.max_bytes, settings.keep, _log_file_state) if settings.dir else None
    replaced, _SINK.outputs = _SINK.writers(), tuple(_outputs(settings, stream or sys.stderr, file))
    _SINK.file = file
    for writer in replaced:
        writer.close(FLUSH_SECONDS)
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
    """Change the level, also for loggers in use."""
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
    """Why the file is not written; empty where it is written, or where no file is configured."""
    return _SINK.file.error if _SINK.file is not None else ""


def _log_file_state(error: str) -> None:
    """Log that the file cannot be written, or can be written again. The thread of the file calls this.

    Standard error has the lines that the file lacks.
    """
    if error:
        _SINK.take(_ordered("error", {"event": "log file not written, trying again", "error": error}))
    else:
        _SINK.take(_ordered("info", {"event": "log file is written again"}))


def flush(timeout: float = FLUSH_SECONDS) -> None:
    """Wait until all lines so far are written, but at most `timeout` seconds."""
    until = time.monotonic() + timeout
    for written in [writer.mark() for writer in _SINK.writers()]:
        written.wait(max(0.0, until - time.monotonic()))


def _outputs(settings: LogSettings, stream: TextIO | None, file: LogFile | None) -> Iterator[_Output]:
    if stream is not None:
        render = _renderer(settings.format, stream)
        yield _to_stream(lambda event: render(_without_place(event)), stream)
    if file is not None:
        yield _Output(as_json, file.write).by_thread(file.close)


def _without_place(event: Event) -> Event:
    return {key: it for key, it in event.items() if key != AT} if AT in event else event


def _to_stream(render: Callable[[Event], str], stream: TextIO) -> _Output:
    try:
        stream.fileno()
    except (OSError, ValueError):  # the stream is in memory
        return _Output(render, lambda line: stream.write(f"{line}\n"))
    return _Output(render, to_descriptor(stream)).by_thread()


def _renderer(format: LogFormat, stream: TextIO) -> Callable[[Event], str]:
    terminal = stream.isatty()
    if format == "json" or (format == "auto" and not terminal):
        return as_json
    return as_colored_text if terminal and "NO_COLOR" not in os.environ else as_text

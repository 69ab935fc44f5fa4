"""Logs: one line per event from everywhere, whatever is logged."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agent import logs
from agent.config import LogFormat, LogSettings
from agent.logs import log_file
from agent.logs.log_writer import MAX_WAITING, LogWriter

#: A program whose standard error is a pipe that holds next to nothing.
TALKATIVE = """
import os, sys, structlog
from agent import logs
from agent.logs import log_writer
from agent.config import LogSettings
log_writer.MAX_LINES = 100
logs.configure(LogSettings(format=sys.argv[1]))
log = structlog.get_logger()
for n in range(1000):
    log.info("told", n=n, text="x" * 100)
print("told", flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
"""

CHATTY = ("", "asyncio", "hpack", "h2", "grpclib", "kubernetes_asyncio")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in CHATTY}
    handlers = list(logging.getLogger().handlers)
    yield
    logs.configure(LogSettings(), io.StringIO())  # closes the file
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    logs.configure(LogSettings(format="json"), stream)
    return stream


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_logger_that_was_used_keeps_nothing_of_the_configuration(out: io.StringIO) -> None:
    log = structlog.get_logger()
    log.info("before")
    structlog.reset_defaults()

    with structlog.testing.capture_logs() as logged:
        log.info("after")

    assert logged == [{"event": "after", "log_level": "info"}]


def test_an_event_is_one_json_line_with_time_level_and_event_first(out: io.StringIO) -> None:
    structlog.get_logger().bind(resource="nvidia.com/gpu").info("allocated", ids=["a", "b"], ms=1.5)

    (line,) = lines(out)
    assert list(line) == ["time", "level", "event", "resource", "ids", "ms"]
    assert (line["level"], line["event"], line["ids"]) == ("info", "allocated", ["a", "b"])
    assert line["time"].endswith("Z")
    assert len(line["time"]) == len("2026-01-01T00:00:00.000Z")


def test_libraries_that_log_through_the_standard_library_share_the_output(out: io.StringIO) -> None:
    logging.getLogger("grpclib.server").warning("stream %s closed", 5)

    (line,) = lines(out)
    assert (line["level"], line["event"], line["logger"]) == ("warning", "stream 5 closed", "grpclib.server")


def test_an_exception_comes_with_its_traceback_on_the_same_line(out: io.StringIO) -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        structlog.get_logger().exception("failed")
        structlog.get_logger().error("failed", exc_info=error)
        logging.getLogger("x").exception("failed")

    for line in lines(out):
        assert line["exception"].startswith("Traceback")
        assert line["exception"].endswith("ValueError: broken")
    assert len(lines(out)) == 3


def test_the_level_changes_at_run_time_also_for_loggers_in_use(out: io.StringIO) -> None:
    log = structlog.get_logger().bind(a=1)
    log.debug("one")
    log.info("two")

    logs.set_level("debug")
    log.debug("three")
    logging.getLogger("x").debug("four")
    logs.set_level("error")
    log.warning("five")
    logging.getLogger("x").warning("six")
    log.error("seven")

    assert [line["event"] for line in lines(out)] == ["two", "three", "four", "seven"]


def test_libraries_that_tell_of_every_frame_stay_quiet_at_debug(out: io.StringIO) -> None:
    logs.set_level("debug")

    logging.getLogger("hpack.hpack").debug("a header")

    assert lines(out) == []


def test_a_logger_made_and_used_before_follows_a_new_configuration(out: io.StringIO) -> None:
    log = structlog.get_logger()
    log.info("one")
    after = io.StringIO()

    logs.configure(LogSettings(format="console"), after)
    log.info("two")

    assert [line["event"] for line in lines(out)] == ["one"]
    assert "two" in after.getvalue()
    assert not after.getvalue().startswith("{")


@pytest.mark.parametrize(
    ("stream", "json_"), [(io.StringIO(), True), (Terminal(), False)], ids=["pipe", "terminal"]
)
def test_auto_is_console_on_a_terminal_and_json_elsewhere(stream: io.StringIO, json_: bool) -> None:
    logs.configure(LogSettings(format="auto"), stream)
    structlog.get_logger().info("told")

    assert stream.getvalue().startswith("{") is json_


def test_the_console_shows_time_level_event_and_keys() -> None:
    out = io.StringIO()
    logs.configure(LogSettings(format="console"), out)
    structlog.get_logger().warning("device unhealthy", device="GPU-1", reason="fell off", n=[1, 2])

    time, rest = out.getvalue().split(" ", 1)
    assert len(time) == len("12:00:00.000")
    assert rest == 'warning  device unhealthy device=GPU-1 reason="fell off" n=[1, 2]\n'


def test_warnings_are_colored_on_a_terminal_unless_no_color_is_wished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wish, colored in ((None, True), ("1", False)):
        monkeypatch.delenv("NO_COLOR", raising=False)
        if wish:
            monkeypatch.setenv("NO_COLOR", wish)
        out = Terminal()
        logs.configure(LogSettings(format="console"), out)
        structlog.get_logger().error("x")
        assert ("\x1b[31m" in out.getvalue()) is colored


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize(
    "hostile", ["\x1b]0;owned\x07", "a\nlevel=error forged", "\u202eevil", "\x9b31m", "\udc80"]
)
def test_no_control_character_reaches_a_terminal(format: LogFormat, hostile: str) -> None:
    out = io.StringIO()
    logs.configure(LogSettings(format=format), out)
    structlog.get_logger().info("pod " + hostile, **{"key" + hostile: hostile, "list": [hostile]})

    assert out.getvalue().count("\n") == 1
    assert out.getvalue().rstrip("\n").isprintable()


@given(
    st.dictionaries(
        st.text().filter(lambda key: key != "exception"),
        st.recursive(
            st.none() | st.floats() | st.text() | st.binary(), lambda it: st.lists(it) | st.tuples(it)
        ),
    ),
    st.sampled_from(["json", "console"]),
)
def test_whatever_is_logged_makes_one_line(keys: dict[str, Any], format: LogFormat) -> None:
    out = io.StringIO()
    logs.configure(LogSettings(format=format), out)

    structlog.get_logger().bind(**keys).info("told")

    assert out.getvalue().count("\n") == 1
    if format == "json":
        assert json.loads(out.getvalue())


def test_values_that_are_no_json_never_stop_the_caller(out: io.StringIO) -> None:
    loop: list[Any] = []
    loop.append(loop)

    structlog.get_logger().info("told", loop=loop, nan=float("nan"), keys={(1, 2): 3}, path=Path("/x"))

    assert lines(out)[0]["event"] == "'told'"


def test_a_stream_that_is_closed_never_stops_the_caller() -> None:
    out = io.StringIO()
    logs.configure(LogSettings(format="json"), out)
    out.close()

    structlog.get_logger().info("told")


def talkative(format: str, then: str, stalled: int) -> subprocess.Popen[str]:
    fcntl.fcntl(stalled, fcntl.F_SETPIPE_SZ, 4096)
    return subprocess.Popen(
        [sys.executable, "-c", TALKATIVE, format, then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stalled,
        text=True,
    )


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


@pytest.mark.parametrize("format", ["json", "console"])
def test_a_reader_of_standard_error_that_stalls_holds_up_nothing_not_even_the_end(
    pipe: tuple[int, int], format: str
) -> None:
    with talkative(format, "end", pipe[1]) as program:
        os.close(pipe[1])
        out, _ = program.communicate(timeout=30)
        assert out == "told\n"
        assert program.returncode == 0


def test_lines_that_were_dropped_are_counted_once_they_flow_again(pipe: tuple[int, int]) -> None:
    with talkative("json", "wait", pipe[1]) as program:
        os.close(pipe[1])
        assert program.stdout is not None
        assert program.stdin is not None
        assert program.stdout.readline() == "told\n"
        program.stdin.close()
        with os.fdopen(os.dup(pipe[0])) as reader:
            told = [json.loads(line) for line in reader]

    kept = [line["n"] for line in told if line["event"] == "told"]
    dropped = [line["lines"] for line in told if line["event"] == "log lines dropped"]
    assert kept == sorted(set(kept))
    assert len(kept) + sum(dropped) == 1000
    assert told[-1]["level"] == "warning"


def test_what_waits_is_bounded_in_size_too() -> None:
    gate, written = threading.Event(), list[str]()

    def write(line: str) -> None:
        gate.wait()
        written.append(line)

    lines = LogWriter(write, lambda dropped: f"{dropped} dropped")
    line = "x" * (1 << 20)
    for _ in range(MAX_WAITING // len(line) + 3):
        lines.put(line)

    gate.set()
    lines.close(5)

    assert len("".join(written)) == MAX_WAITING + len("3 dropped")
    assert written[-1] == "3 dropped"


def test_the_last_lines_are_written_before_the_end(tmp_path: Path) -> None:
    code = (
        "import structlog\nfrom agent import logs\nfrom agent.config import LogSettings\n"
        f"logs.configure(LogSettings(format='json', dir={str(tmp_path)!r}))\n"
        "for n in range(500): structlog.get_logger().info('told', n=n)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    for text in (done.stderr, (tmp_path / log_file.NAME).read_text()):
        assert [json.loads(line)["n"] for line in text.splitlines()] == list(range(500))


def test_a_stream_that_somebody_made_non_blocking_loses_no_line(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    with os.fdopen(pipe[1], "w") as stream, os.fdopen(os.dup(pipe[0])) as reader:
        logs.configure(LogSettings(format="json"), stream)
        for n in range(2000):
            structlog.get_logger().info("told", n=n, text="x" * 100)

        assert [json.loads(next(reader))["n"] for _ in range(2000)] == list(range(2000))
        logs.flush()


def test_the_file_holds_json_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    out = io.StringIO()
    logs.configure(LogSettings(format="console", dir=str(tmp_path / "logs")), out)
    structlog.get_logger().info("told", n=1)
    logs.flush()

    path = tmp_path / "logs" / log_file.NAME
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_text())["n"] == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "told n=1" in out.getvalue()


def test_the_file_turns_at_its_size_and_old_ones_are_dropped(tmp_path: Path) -> None:
    logs.configure(LogSettings(dir=str(tmp_path), max_bytes=10_000, keep=2), io.StringIO())
    for _ in range(400):
        structlog.get_logger().info("told", text="x" * 100)
    logs.flush(5)

    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == [f"{log_file.NAME}{end}" for end in ("", ".1", ".2")]
    assert all(path.stat().st_size <= 10_000 for path in files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_line_of_the_file_says_where_it_comes_from_and_one_on_standard_error_does_not(
    tmp_path: Path,
) -> None:
    out = io.StringIO()
    logs.configure(LogSettings(format="json", dir=str(tmp_path)), out)
    here = sys._getframe().f_lineno
    structlog.get_logger().info("told", n=1)
    logging.getLogger("library").warning("said")
    try:
        raise ValueError
    except ValueError:
        structlog.get_logger().exception("failed")
    logs.flush()

    lines = [json.loads(it) for it in (tmp_path / log_file.NAME).read_text().splitlines()]
    file = "tests/logs/test_logs.py"
    assert [it["at"] for it in lines] == [f"{file}:{here + n}" for n in (1, 2, 6)]
    assert [*lines[0]] == ["time", "level", "event", "at", "n"]
    assert "at" not in json.loads(out.getvalue().splitlines()[0])


@pytest.mark.parametrize("wrong", ["file", "link", "directory"])
def test_a_file_that_can_not_be_written_is_told_and_stops_nobody(tmp_path: Path, wrong: str) -> None:
    out = io.StringIO()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").mkdir()
    (tmp_path / "target").write_text("")
    (tmp_path / "link" / log_file.NAME).symlink_to(tmp_path / "target")
    (tmp_path / "directory" / log_file.NAME).mkdir(parents=True)

    logs.configure(LogSettings(format="console", dir=str(tmp_path / wrong)), out)
    structlog.get_logger().info("told")
    logs.flush()
    structlog.get_logger().info("and again")
    logs.flush()

    told = out.getvalue()
    path = tmp_path / wrong / log_file.NAME
    assert logs.file_error().startswith(f"agent.log.dir: {path} cannot be written: ")
    assert told.count("log file not written, trying again") == 1
    assert str(path) in told
    assert "and again" in told
    assert (tmp_path / "target").read_text() == ""


def test_without_a_file_there_is_no_error_of_one() -> None:
    logs.configure(LogSettings(), io.StringIO())

    assert logs.file_error() == ""


def test_importing_the_logs_does_not_import_rich() -> None:
    code = "import sys, agent.logs; print('rich' in sys.modules); import rich.console"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[0] == "False"


def test_what_a_program_that_hands_out_tokens_says_is_not_repeated(out: io.StringIO) -> None:
    logging.getLogger("kubernetes_asyncio.config.kube_config").error("exec: token=secret")
    logging.getLogger("some.library").error("told")

    logs.flush()
    assert [it["event"] for it in lines(out)] == ["told"]

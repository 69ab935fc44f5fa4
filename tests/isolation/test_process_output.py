"""What a library prints."""

from __future__ import annotations

import structlog.testing
from support.waiting import eventually

from agent.isolation import process_output

from .rig import Recorder, serving


async def test_what_a_library_prints_harms_nothing(sink: Recorder) -> None:
    async with serving(sink, does={"open": "print", "discover": "print"}):
        await sink.until(lambda: len(sink.lists) >= 3)

        assert sink.losses == []


async def test_what_a_library_prints_is_an_event_of_the_log(sink: Recorder) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(sink, does={"discover": "print"}):
            await sink.until(lambda: sink.lists)
            await eventually(lambda: any(it.get("line") == "noise" for it in logs))

    forged = {
        "event": "vendor output",
        "vendor": "acme",
        "line": '{"id": 1, "answer": []}',
        "log_level": "info",
    }
    assert forged in logs


async def test_the_last_words_of_a_process_are_read(sink: Recorder) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(sink, does={"discover": "print_and_die"}):
            await sink.until(lambda: sink.losses)

    assert "farewell" in [it.get("line") for it in logs]


async def test_a_library_that_prints_without_end_is_heard_at_a_bounded_rate(sink: Recorder) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(sink, does={"discover": "print_a_lot"}):
            await sink.until(lambda: len(sink.lists) >= 2)

    said = [it for it in logs if it["event"] == "vendor output"]
    assert 20 <= len(said) <= 200
    assert sum(it.get("dropped", 0) for it in said) >= 100_000
    assert sink.losses == []


def test_lines_are_bounded_and_printable_and_few() -> None:
    said: list[tuple[str, int]] = []
    speech = process_output.OutputLines(lambda line, dropped: said.append((line, dropped)))

    assert speech.take(b"a\x1b[31m\xff\n\n  \n" + b"x" * 100_000 + b"\n", now=100.0)
    assert not speech.take(b"y\n" * 30, now=100.0)
    assert speech.take(b"half", now=101.0)
    speech.end(now=101.0)

    assert said[0] == ("a\\x1b[31m\\xff", 0)
    assert said[1] == (f"{'x' * 399}…", 0)
    assert said[2:] == [("y", 0)] * 18 + [("half", 12)]


def test_a_line_that_never_ends_is_said_once_and_neither_kept_nor_read_in_haste() -> None:
    said: list[str] = []
    speech = process_output.OutputLines(lambda line, dropped: said.append(line))

    for _ in range(100):
        assert not speech.take(b"x" * 65_536, now=1.0)  # where it is False, reading rests
        assert said == [f"{'x' * 399}…"]
    assert speech.take(b"x\nnext\n", now=1.0)
    speech.end(now=1.0)

    assert said == [f"{'x' * 399}…", "next"]

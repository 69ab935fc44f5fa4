"""`xpu-agent top`: what a picture shows, live and once, with sampling and without."""

from __future__ import annotations

import io
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from msgspec import structs
from rich.cells import cell_len
from support.short_places import SHORT_PLACE
from support.used_views import (
    CARD,
    INFER,
    NOTEBOOK,
    NOW,
    REPORT,
    SHARED,
    WORKED,
    allocated,
    listed,
    used,
    with_report,
)

from agent.cli import main
from agent.cli.top_picture import Picture, take
from agent.cli.top_screen import show_once, watch
from agent.cli.top_tables import render
from agent.core.errors import SamplingEnded
from agent.core.model import Cordon, VendorState, VendorStatus
from agent.core.publishing.agent_status import AgentStatus
from agent.core.usage.usage_report import SamplingStatus
from agent.host.terminal import plain
from agent.http import serving
from agent.http.admin_client import CannotAsk
from agent.http.inspect_builder import inspect_document
from agent.http.usage.usage_answer import SWITCHED_OFF, usage_answer
from agent.http.usage.usage_document import decode

_ALL_OF_CONTAINERS = "card pod container memory utilization idle processes"
HOSTILE = "\x1b]0;owned\x07\nfake [red]line[/red] \u202e"
OFF = structs.replace(WORKED, usage=None)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def picture(status: AgentStatus = WORKED) -> Picture:
    """What `top` reads of an agent with this status."""
    answered = usage_answer(status, "", is_admin=True)
    document = inspect_document(status)
    if answered.status != 200:
        return Picture(document, remarks=(answered.body.decode().strip(),))
    return Picture(document, decode(answered.body))


def text(status: AgentStatus = WORKED, width: int = 160, sort: str = "card") -> str:
    return plain(render(picture(status), width, sort), width)


def row(shown: str, *words: str) -> str:
    """The first line with all words, with single spaces."""
    return " ".join(next(it for it in shown.splitlines() if all(word in it for word in words)).split())


@contextmanager
def running(source: Callable[[], AgentStatus]) -> Iterator[Path]:
    """An agent behind an admin socket, in a thread of its own."""
    up, over = threading.Event(), threading.Event()

    async def serve(path: Path) -> None:
        async with serving(source, path):
            up.set()
            await anyio.to_thread.run_sync(over.wait)

    with tempfile.TemporaryDirectory(dir=SHORT_PLACE) as directory:
        thread = threading.Thread(target=anyio.run, args=(serve, Path(directory) / "agent.sock"))
        thread.start()
        try:
            assert up.wait(30)
            yield Path(directory)
        finally:
            over.set()
            thread.join()


# A picture


def test_cards_have_bars_of_memory_and_utilization_with_temperature_and_power() -> None:
    shown = row(text(), "nvidia 0", "H100")

    memory, busy = "█████░░░░░░░░░░░░░░░ 21.0 GiB / 79.6 GiB", "███████████░░░░░░░░░ 55%"
    assert shown == f"nvidia 0 NVIDIA H100 {memory} {busy} 51C 302W healthy"


def test_containers_have_what_they_use_what_they_were_granted_and_since_when_they_are_idle() -> None:
    shown = text()

    infer = row(shown, "a/infer-0")
    assert infer == "nvidia 0 a/infer-0 main 12.0 GiB / 20.0 GiB 41% of 25% 0m 2 python3"
    assert row(shown, "b/nb-3") == "nvidia 0 b/nb-3 nb 8.0 GiB 0% 60m 1 jupyter"
    assert row(shown, "(driver)") == "nvidia 0 (driver) - 512 MiB - - -"
    assert row(shown, "(host)") == "nvidia 0 (host) - 512 MiB - - -"
    assert "sampled every 5 s, nvidia 2s ago" in shown


def test_a_container_is_shown_once_where_the_two_documents_are_of_different_moments() -> None:
    earlier, later = picture(), picture(with_report(containers=()))

    for document, usage in ((earlier.document, later.usage), (later.document, earlier.usage)):
        names = [it.name for it in Picture(document, usage).containers()]
        assert names.count("a/infer-0") == 1


def test_what_is_not_known_is_a_dash_and_said() -> None:
    status = with_report(containers=(used("infer-0", "a", "main"),), processes=())

    assert row(text(status), "a/infer-0") == "nvidia 0 a/infer-0 main - - - 1"
    assert "! not known: utilization of 1 process" in plain(render(_taken(status), 160), 160)


def test_what_is_not_known_of_processes_is_one_sentence() -> None:
    status = with_report(unknown={"owner": 2, "memory": 1, "utilization": 0})

    assert "! not known: memory of 1 process, owner of 2 processes\n" in plain(
        render(_taken(status), 160), 160
    )


def test_a_vendor_is_named_once() -> None:
    closed = SamplingStatus("nvidia", error="nvidia: the vendor is not open")
    shown = plain(render(_taken(with_report(sampling=(closed,))), 160), 160)

    assert "! nvidia: no new sample: the vendor is not open\n" in shown


def test_the_end_of_sampling_is_said_once() -> None:
    error = str(SamplingEnded("nvidia", "the vendor's process is replaced", "too late"))
    shown = plain(
        render(_taken(with_report(sampling=(SamplingStatus("nvidia", error=error, ended=True),))), 160), 160
    )

    ended = "sampling has ended until the vendor's process is replaced: too late"
    assert f"! nvidia: no new sample: {ended}\n" in shown


def _taken(status: AgentStatus) -> Picture:
    """The picture that is read over the socket; the sample is as old as it was made."""
    with running(lambda: status) as directory:
        return take(directory / "agent.sock")


def test_containers_whose_use_is_not_told_are_there_by_their_allocations() -> None:
    card = listed("GPU-b", 1)
    status = structs.replace(
        WORKED,
        snapshot=replace(WORKED.snapshot, devices=(*WORKED.snapshot.devices, card)),
        allocations=(*WORKED.allocations, allocated("quiet", "c", "main", "GPU-b")),
    )

    assert row(text(status), "c/quiet") == "nvidia 1 c/quiet main - - - -"
    assert text(status).count("a/infer-0") == 1


def test_a_vendor_that_is_not_sampled_has_no_figures_and_says_why() -> None:
    late = SamplingStatus("nvidia", at=NOW - 100, error="no answer within 2 s", ended=True)
    shown = plain(render(_taken(with_report(sampling=(late,), cards=(), containers=())), 160), 160)

    assert row(shown, "nvidia 0", "H100") == "nvidia 0 NVIDIA H100 - / 79.6 GiB - - - healthy"
    assert row(shown, "a/infer-0") == "nvidia 0 a/infer-0 main - - - -"
    ended = "the sampling has ended; no answer within 2 s"
    assert f"! nvidia: no new sample: {ended}" in shown


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("card", ["a/infer-0", "b/nb-3", "c/small"]),
        ("memory", ["a/infer-0", "b/nb-3", "c/small"]),
        ("utilization", ["c/small", "a/infer-0", "b/nb-3"]),
        ("idle", ["b/nb-3", "c/small", "a/infer-0"]),
    ],
)
def test_containers_are_sorted_as_asked(sort: str, order: list[str]) -> None:
    small = used("small", "c", "main", memory=1 << 20, utilization=0.9, active_at=NOW - 600)
    containers = picture(with_report(containers=(NOTEBOOK, small, INFER))).containers(sort)

    assert [it.name for it in containers if it.is_container] == order


def test_a_cordoned_card_is_called_so() -> None:
    cordoned = replace(WORKED.snapshot.devices[0], cordon=Cordon("bob"))
    status = structs.replace(WORKED, snapshot=replace(WORKED.snapshot, devices=(cordoned,)))

    assert row(text(status), "H100").endswith("cordoned")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_narrow_screen_has_the_figures_without_bars(width: int) -> None:
    shown = text(width=width)

    assert all(len(line) <= width for line in shown.splitlines())
    assert ("█" in shown) == (width >= 90)
    assert "55%" in shown
    assert "41%" in shown


def _lines(width: int, status: AgentStatus) -> tuple[str, list[str], list[str]]:
    """The picture, with the lines of its two tables, without rules and empty lines."""
    shown = text(status, width)
    _, _, tables = shown.partition("\ncards\n")
    cards, _, containers = tables.partition("\ncontainers\n")
    lines = [[it for it in part.splitlines() if it.strip(" ─")] for part in (cards, containers)]
    return shown, lines[0], lines[1]


@pytest.mark.parametrize(
    ("width", "cards", "containers"),
    [
        (1000, "card model memory utilization temp power health", _ALL_OF_CONTAINERS),
        (120, "card model memory utilization temp power health", _ALL_OF_CONTAINERS),
        (80, "card memory utilization temp power health", "card pod container memory utilization"),
        (60, "card memory utilization health", "pod memory utilization"),
        (45, "card memory utilization health", "pod memory utilization"),
        (40, "card memory utilization", "pod memory"),
        (20, "card memory", "pod memory"),
    ],
)
def test_a_narrow_screen_has_fewer_columns_and_each_row_has_one_line(
    width: int, cards: str, containers: str
) -> None:
    trainer = structs.replace(INFER, namespace="default", pod="trainer-of-a-large-model-0")
    shown, of_cards, of_containers = _lines(width, with_report(containers=(trainer, NOTEBOOK)))

    assert all(cell_len(line) <= width for line in shown.splitlines())
    assert " ".join(of_cards[0].split()) == cards
    assert " ".join(of_containers[0].split()) == containers
    assert len(of_cards) == 1 + len(("nvidia 0",))
    assert len(of_containers) == 1 + len(("trainer", "nb-3", "host", "driver"))
    assert ("default/trainer-of-a-large-model-0" in shown) == (width >= 120)
    assert ("…" in shown) == (width < 120)


@pytest.mark.parametrize("width", [1, 2, 9, 19, 33])
def test_no_screen_is_too_narrow(width: int) -> None:
    shown, _, of_containers = _lines(width, WORKED)

    assert all(cell_len(line) <= width for line in shown.splitlines()) or width < 10
    assert len(of_containers) <= 1 + len(("infer-0", "nb-3", "host", "driver"))


def test_a_card_of_a_lost_vendor_is_not_called_healthy() -> None:
    lost = VendorStatus("nvidia", VendorState.FAILED, "no answer within 10 s")
    status = structs.replace(WORKED, snapshot=replace(WORKED.snapshot, vendors=(lost,)))

    assert row(text(status), "H100").endswith("302W vendor failed")


def test_what_is_not_known_has_no_part_of_it_named() -> None:
    status = with_report(containers=(used("infer-0", "a", "main", memory_limit=1 << 30, compute_limit=0.5),))

    assert row(text(status), "a/infer-0") == "nvidia 0 a/infer-0 main - / 1.0 GiB - - 1 python3"


def test_without_sampling_cards_and_allocations_are_shown_with_the_key_that_switches_it_on() -> None:
    shown = text(OFF, width=1000)

    assert f"! {SWITCHED_OFF}" in shown
    assert row(shown, "H100") == "nvidia 0 NVIDIA H100 - / 79.6 GiB - - - healthy"
    assert row(shown, "a/infer-0") == "nvidia 0 a/infer-0 main - - - -"


def test_texts_of_pods_and_processes_steer_no_terminal() -> None:
    hostile = structs.replace(INFER, namespace=HOSTILE, pod=HOSTILE, container=HOSTILE)
    process = structs.replace(
        REPORT.processes[0], name=HOSTILE, namespace=HOSTILE, pod=HOSTILE, container=HOSTILE
    )
    status = with_report(structs.replace(WORKED, node=HOSTILE), containers=(hostile,), processes=(process,))
    stream = Terminal()
    with running(lambda: status) as directory:
        show_once(directory / "agent.sock", "card", stream)

    assert "\x1b]0;" not in stream.getvalue()
    assert "\u202e" not in stream.getvalue()


def test_a_card_with_absurd_figures_breaks_no_picture() -> None:
    wild = replace(CARD.usage, memory_total=0, utilization=7.5, temperature=-1e9, power=float("nan"))

    assert "750%" in text(with_report(cards=(structs.replace(CARD, usage=wild),)))
    nothing = structs.replace(CARD, usage=replace(wild, memory_used=1 << 60))
    assert row(text(with_report(cards=(nothing,))), "H100")


# On a terminal, on a pipe, as JSON


def test_a_pipe_gets_one_plain_picture(capsys: pytest.CaptureFixture[str]) -> None:
    with running(lambda: OFF) as directory:
        assert main(["top", "--state-dir", str(directory)]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("node n1, xpu-agent 1.2.3\n! the use of cards is not sampled")
    assert "\x1b" not in shown


def test_a_stream_without_blocks_gets_other_letters() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    with running(lambda: WORKED) as directory:
        show_once(directory / "agent.sock", "card", stream)
    stream.flush()

    assert b"#####..." in raw.getvalue()


def test_json_is_the_document_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    with running(lambda: WORKED) as directory:
        assert main(["top", "--json", "--state-dir", str(directory)]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["containers"][0]["resource"] == SHARED
    assert document["processes"][0]["name"] == "python3"


def test_json_without_sampling_says_what_switches_it_on(capsys: pytest.CaptureFixture[str]) -> None:
    with running(lambda: OFF) as directory:
        assert main(["top", "--json", "--state-dir", str(directory)]) == 1

    said = capsys.readouterr().err
    assert SWITCHED_OFF in said
    assert "no agent answers" not in said


class Interrupted:
    """Lets some pictures pass, then presses ^C."""

    def __init__(self, pictures: int, between: Callable[[], None] = lambda: None) -> None:
        self._left = pictures
        self._between = between
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._left -= 1
        self._between()
        if self._left <= 0:
            raise KeyboardInterrupt


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("LINES", "50")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_a_terminal_gets_picture_after_picture_until_it_is_interrupted(screen: Terminal) -> None:
    sleep = Interrupted(3)
    with running(lambda: WORKED) as directory:
        assert watch(directory / "agent.sock", "card", 2.5, screen, sleep)

    assert sleep.seconds == [2.5, 2.5, 2.5]
    assert screen.getvalue().count("a/infer-0") >= 3
    assert "\x1b[" in screen.getvalue()


def test_a_terminal_without_colors_gets_none(screen: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with running(lambda: WORKED) as directory:
        watch(directory / "agent.sock", "card", 2, screen, Interrupted(1))

    assert "a/infer-0" in screen.getvalue()
    assert "\x1b[31m" not in screen.getvalue()
    assert "\x1b[32m" not in screen.getvalue()


def test_a_terminal_that_cannot_be_written_over_gets_one_picture(
    screen: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with running(lambda: WORKED) as directory:
        assert not watch(directory / "agent.sock", "card", 2, screen)
    assert screen.getvalue() == ""


def test_an_agent_that_goes_away_leaves_its_last_picture(screen: Terminal) -> None:
    with running(lambda: WORKED) as directory:
        socket = directory / "agent.sock"
        assert watch(socket, "card", 2, screen, Interrupted(2, lambda: socket.unlink(missing_ok=True)))

    assert "no agent answers" in " ".join(screen.getvalue().split())
    assert screen.getvalue().count("a/infer-0") >= 2


def test_an_agent_that_is_not_there_is_said_at_once(tmp_path: Path, screen: Terminal) -> None:
    with pytest.raises(CannotAsk):
        watch(tmp_path / "agent.sock", "card", 2, screen)

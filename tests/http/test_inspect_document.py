"""`inspect` for people: what is shown, and what a stranger's text cannot do to a terminal."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support.http_views import ALLOCATION, EMPTY, HOSTILE, RESOURCE, VIEW, as_text, document_of, hostile
from support.short_places import SHORT_PLACE

from agent.cli.inspect_cells import MAX_REASON, age
from agent.cli.inspect_tables import show
from agent.core.devices.unit_changes import KeptUnit
from agent.core.event_notices import PlacementMismatch, PodRef
from agent.core.model import AdvertisedDevice, AllocationSource, Owner, VendorState, VendorStatus
from agent.core.publishing.agent_status import ApiServer, SchedulerReport
from agent.host.terminal import show_table
from agent.http import serving
from agent.http.admin_client import CannotAsk, fetch
from agent.http.inspect_builder import inspect_document
from agent.http.inspect_document import from_builtins
from agent.http.metrics import metrics
from agent.scheduler_api import Claim
from agent.schedulers.koordinator.report_mode import NO_KIND, NO_SERVER, NOT_ASKED
from agent.state.state_directory_lock import StateDirectoryLock
from agent.vendor_api.agent import Placement, ResourceRule, Sharing
from agent.vendor_api.text import printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHORT_PLACE) as directory:
        yield Path(directory) / "agent.sock"


def reported(**what: Any) -> str:
    """What people are shown of this report."""
    return as_text(
        document_of(structs.replace(VIEW, reported=SchedulerReport(**what))), now=5000.0, width=300
    )


def test_what_koordinator_is_told_is_shown_with_what_it_is_not() -> None:
    text = reported(
        mode="device",
        why="no koordlet here reports accelerators",
        vendor="nvidia",
        cards=4,
        healthy=3,
        left_out=tuple(f"GPU-{it} is not written" for it in range(7)),
        overwritten=True,
        error="403 Forbidden",
    )

    told = "4 cards of nvidia, 3 healthy, are reported to Koordinator by device: no koordlet here reports"
    assert told in text
    assert "! GPU-4 is not written" in text
    assert "GPU-5" not in text
    assert "! and 2 more that are not reported to Koordinator" in text
    assert "! a koordlet overwrote the Device" in text
    assert text.count("! report: 403 Forbidden") == 1


def test_that_nothing_is_told_is_shown_where_a_koordinator_is_there() -> None:
    assert "no card is reported to Koordinator: 403 Forbidden" in reported(mode="none", why="403 Forbidden")
    for why in (NO_KIND, NO_SERVER, NOT_ASKED.why):
        assert "reported to Koordinator" not in reported(mode="none", why=why)


def row(text: str, *words: str) -> list[str]:
    """The first line that holds all words, as its words."""
    return next(line for line in text.splitlines() if all(word in line for word in words)).split()


def test_everything_is_shown() -> None:
    text = as_text(document_of(VIEW), now=5000.0)

    assert text.startswith("node node-1, xpu-agent 1.2.3, ready, config defaults\n")
    assert row(text, "nvidia", "open") == ["nvidia", "open", "57", "MiB", "3", "half-open", "-"]
    assert row(text, "GPU-0", "H100") == [
        "nvidia",
        "0",
        "GPU-0",
        "H100",
        "80.0",
        "GiB",
        "0",
        "healthy",
        "-",
        "66m",
    ]
    assert row(text, "GPU-1", "xid") == [
        "nvidia",
        "1",
        "GPU-1",
        "H100",
        "80.0",
        "GiB",
        "-",
        "unhealthy",
        "xid-79:",
        "fell",
        "off",
        "the",
        "bus",
        "58m",
    ]
    assert row(text, "replicas") == ["nvidia.com/gpu", "replicas", "x4", "8", "4", "2", "registered", "-"]
    assert row(text, "trainer") == ["nvidia.com/gpu", "GPU-0", "default/trainer", "main", "done", "63m", "a1"]
    assert row(text, "a2") == ["nvidia.com/gpu", "GPU-0", "-", "-", "done", "63m", "a2"]
    assert "a3" not in text


@pytest.mark.parametrize(
    ("owner", "whose"),
    [
        (Owner("uid-1", "main", "default", "trainer"), "default/trainer"),
        (None, "one not known yet"),
    ],
)
def test_ids_of_an_earlier_config_are_shown_with_the_pods_that_hold_them(
    owner: Owner | None, whose: str
) -> None:
    held = replace(ALLOCATION, ids=("GPU-0",), owner=owner)
    card = AdvertisedDevice("GPU-0", None, healthy=True, kept=("GPU-0",))
    other = replace(ALLOCATION, id="a9", ids=("GPU-1::0",), owner=Owner("uid-9", "main", "default", "other"))
    view = structs.replace(
        VIEW,
        resources={"nvidia.com/gpu": replace(RESOURCE, cards=(card, RESOURCE.cards[1]))},
        allocations=(held, other),
    )
    document = document_of(view)

    text = as_text(document, now=5000.0)

    assert document["resources"][0]["kept"] == ["GPU-0"]
    assert f"IDs kept for pods of an earlier config ({whose}): 1, listed until they are gone" in text


def test_a_long_reason_is_cut_in_the_table_alone() -> None:
    reason = "no library: " + "a place, " * 70
    document = document_of(
        structs.replace(
            VIEW,
            snapshot=replace(VIEW.snapshot, vendors=(VendorStatus("acme", VendorState.UNAVAILABLE, reason),)),
        )
    )

    assert document["vendors"][0]["reason"] == reason
    text = as_text(document, now=5000.0, width=1000)
    assert f" {reason[: MAX_REASON - 1]}…\n" in text


def test_a_resource_that_waits_for_pods_says_so() -> None:
    waits = "nvidia.com/gpu waits for 1 card that pods hold as acme.com/old: a/b"
    document = document_of(structs.replace(VIEW, resource_waits={"nvidia.com/gpu": (waits,)}))

    assert document["resources"][0]["waits"] == [waits]
    assert waits in as_text(document, now=5000.0)
    assert document["ready"]


def test_a_resource_that_keeps_its_unit_of_memory_says_so() -> None:
    name, sentence = "nvidia.com/gpu", "nvidia.com/gpu counts memory in units of 1 GiB, not of 0.1"
    counting = replace(RESOURCE, rule=ResourceRule(name, sharing=Sharing("memory", unit="1")))
    kept = {name: (KeptUnit(name, "1", "0.1"), sentence)}
    view = structs.replace(VIEW, resources={name: counting}, kept_units=kept)

    document = document_of(view)

    assert (document["resources"][0]["unit"], document["resources"][0]["unitKept"]) == ("1", sentence)
    text = as_text(document, now=5000.0)
    assert "memory, 1 GiB" in text
    assert sentence in text
    assert document["ready"]
    samples = metrics(view).body.decode()
    metric = 'xpu_agent_memory_unit_kept{resource="nvidia.com/gpu",unit="1",wanted='
    assert f'{metric}"0.1"}} 1.0' in samples
    assert f'{metric}"1"}} 0.0' in metrics(structs.replace(view, kept_units={})).body.decode()


def test_of_many_pods_with_ids_of_an_earlier_config_a_few_are_named() -> None:
    ids = [f"GPU-0-{n}" for n in range(9)]
    owners: list[dict[str, Any]] = [{"namespace": "a", "pod": f"p{n}"} for n in range(9)]
    allocations = [
        {"resource": "r", "ids": [it], "owner": owner} for it, owner in zip(ids, owners, strict=True)
    ]

    text = as_text({"resources": [{"name": "r", "kept": ids}], "allocations": allocations}, now=0)

    assert "IDs kept for pods of an earlier config (a/p0, a/p1, a/p2, a/p3, a/p4 and 4 more): 9" in text


SHARE = Claim(
    "uid-1",
    "default",
    "trainer",
    "main",
    ("GPU-1",),
    {"core": "30", "memory": str(10 << 30)},
    "container main gets the average of its pod",
    "koordinator",
)


def test_what_schedulers_chose_is_shown_with_who_said_it_and_how_much() -> None:
    view = structs.replace(VIEW, allocations=(replace(ALLOCATION, claim=SHARE, diverged=("GPU-1",)),))

    text = as_text(document_of(view), now=5000.0, width=300)

    line = next(it for it in text.splitlines() if "average" in it)
    assert line.split()[:4] == ["a1", "default/trainer/main", "koordinator", "GPU-1"]
    assert "core=30, memory=10.0 GiB" in line
    assert "on another card than its device IDs name; container main gets the average of its pod" in line


def test_what_a_container_was_given_otherwise_is_shown() -> None:
    for handed, words in (({"core": "60"}, "core=60"), ({}, "no limits")):
        view = structs.replace(VIEW, allocations=(replace(ALLOCATION, claim=SHARE, handed=handed),))

        assert document_of(view)["allocations"][0]["handed"] == handed
        assert f"its container was given {words}" in as_text(document_of(view), now=5000.0, width=300)


def test_cards_that_a_scheduler_gave_by_itself_are_told_from_those_of_device_plugins() -> None:
    given = replace(
        ALLOCATION, resource="koordinator.sh/gpu", ids=(), source=AllocationSource.ANNOTATION, claim=SHARE
    )

    document = document_of(structs.replace(VIEW, allocations=(given,)))

    assert subset(document["allocations"][0], source="annotation", ids=[])
    assert subset(document["allocations"][0]["claim"], dialect="koordinator", remark=SHARE.remark)
    assert "the pod asks no device plugin" in as_text(document, now=5000.0, width=300)


def test_pods_whose_schedulers_choice_is_not_heeded_are_listed_where_there_are_any() -> None:
    told = PlacementMismatch(PodRef("default", "web", "u"), "its annotation is no JSON")

    document = document_of(structs.replace(VIEW, placement_mismatches=(told,)))

    assert document["unheeded"] == [
        {"namespace": "default", "pod": "web", "reason": "its annotation is no JSON"}
    ]
    text = as_text(document, now=5000.0, width=300)
    assert "placement mismatches" in text
    (line,) = (it for it in text.splitlines() if "no JSON" in it)
    assert line.split()[0] == "default/web"
    assert document_of(VIEW)["unheeded"] == []
    assert "placement mismatches" not in as_text(document_of(VIEW), now=5000.0)


def subset(whole: dict[str, Any], **part: Any) -> bool:
    return {key: whole.get(key) for key in part} == part


def test_where_no_scheduler_chose_nothing_is_said_of_it() -> None:
    assert "schedulers" not in as_text(document_of(VIEW), now=5000.0)


def test_a_card_on_which_a_share_lies_is_in_use_whatever_its_ids_say() -> None:
    view = structs.replace(VIEW, allocations=(replace(ALLOCATION, diverged=("GPU-1",)),))

    assert {it["uuid"]: it["inUse"] for it in document_of(view)["devices"]} == {"GPU-0": False, "GPU-1": True}


def test_why_a_schedulers_lock_stays_is_shown_and_keeps_nobody_from_being_ready() -> None:
    document = document_of(structs.replace(VIEW, locks_error="403 Forbidden"))

    assert document["locks"] == {"error": "403 Forbidden"}
    assert "! locks: 403 Forbidden" in as_text(document, now=5000.0)
    assert "403 Forbidden" not in document["troubles"]


@pytest.mark.parametrize("claim", [5, [], {"parameters": 5, "devices": 5}, {"parameters": {"memory": [1]}}])
def test_a_claim_that_is_none_is_shown_as_far_as_it_goes(claim: Any) -> None:
    assert as_text({"allocations": [{"id": "a1", "claim": claim, "handed": 7}]}, now=0)


def test_the_topology_is_a_tree_of_numa_nodes_devices_and_links() -> None:
    tree = as_text(document_of(VIEW), now=5000.0).partition("topology\n")[2].splitlines()

    assert [line.strip("│├└─ ") for line in tree] == [
        "NUMA node 0",
        "nvidia 0 GPU-0 0000:01:00.0",
        "18 lanes to nvidia 1, switch",
        "system: GPU-2",
        "NUMA node unknown",
        "nvidia 1 GPU-1 (unhealthy)",
    ]


def test_a_slice_is_shown_with_its_number_on_its_card() -> None:
    document = {"devices": [{"vendor": "nvidia", "uuid": "MIG-1", "index": 0, "parent": "GPU-0", "slice": 2}]}

    text = as_text(document, now=0)

    assert row(text, "MIG-1")[:3] == ["nvidia", "0:2", "MIG-1"]
    assert "nvidia 0:2 MIG-1" in text


def test_slices_of_others_are_counted_on_their_card_and_shown_where_there_are_any() -> None:
    view = structs.replace(VIEW, foreign_slices={("nvidia", "GPU-1"): 2, ("other", "GPU-0"): 1})

    document = document_of(view)

    assert [it["foreignSlices"] for it in document["devices"]] == [0, 2]
    shown = as_text(document, now=5000.0, width=300)
    assert shown.count("foreign slices: 2") == shown.count("foreign slices") == 1


def test_cards_that_are_other_resources_for_now_are_named_and_counted() -> None:
    first, *rest = RESOURCE.cards
    away = replace(first, healthy=False, mode="nvidia.com/gpu.shared")
    moded = replace(RESOURCE, cards=(away, *rest))

    document = document_of(structs.replace(VIEW, resources={RESOURCE.name: moded}))

    assert document["resources"][0]["inOtherMode"] == {first.uuid: "nvidia.com/gpu.shared"}
    assert "cards given out as nvidia.com/gpu.shared: 1" in as_text(document, now=5000.0, width=300)


def test_troubles_are_shown_first() -> None:
    text = as_text(document_of(hostile()), now=0)

    assert "not ready" in text.splitlines()[0]
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("! ")] == [
        "! vendor nvidia",
        "! checkpoint",
        "! resource nvidia.com/gpu",
        "! config",
    ]


@pytest.mark.parametrize(("placement", "ready"), [("claim", False), ("auto", True), ("local", True)])
def test_cards_that_a_scheduler_must_choose_need_pods_that_are_seen(
    placement: Placement, ready: bool
) -> None:
    claimed = replace(RESOURCE, rule=replace(RESOURCE.rule, placement=placement))
    lost = ApiServer("api", error="pods: 403")
    view = structs.replace(VIEW, resources={"nvidia.com/gpu": claimed}, pods_unseen="403", api_server=lost)
    document = document_of(view)

    text = as_text(document, now=0)

    why = (
        "resource nvidia.com/gpu: no pod gets a card, as the placement is 'claim' and no pod can be seen: 403"
    )
    assert (document["ready"], why not in document["troubles"]) == (ready, ready)
    assert document["resources"][0]["placement"] == placement
    assert ("nothing waits for it" in text) is ready


def test_an_agent_that_knows_nothing_yet_is_shown() -> None:
    assert as_text(document_of(EMPTY), now=0).count("none") >= 4


@pytest.mark.parametrize(
    "document", [{}, {"devices": None, "allocations": [5], "config": 5}, {"devices": [{}]}]
)
def test_a_document_of_another_release_is_shown_as_far_as_it_goes(document: dict[str, Any]) -> None:
    assert "node ?" in as_text(document, now=0)


def test_of_a_document_of_another_release_every_key_that_fits_is_read() -> None:
    card = {"uuid": "a-0", "index": "first", "health": {"state": "healthy", "since": []}, "colour": "red"}

    document = from_builtins({"node": "n", "shape": {}, "devices": [5, card], "report": {"cards": "many"}})

    (device,) = document.devices
    assert (document.node, device.uuid, device.health.state) == ("n", "a-0", "healthy")
    assert (device.index, device.health.since, document.report.cards) == (None, 0.0, 0)


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_no_text_of_a_stranger_reaches_the_terminal_as_a_command(stream: io.StringIO) -> None:
    show(inspect_document(hostile()), stream, now=0)
    text = stream.getvalue()

    assert "\x1b]" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "[red]markup[/red]" in " ".join(as_text(document_of(hostile()), 0).split())
    assert "\nfake line" not in text
    text.encode()


@given(st.text())
def test_any_text_becomes_printable_and_printable_text_stays(text: str) -> None:
    assert printable(text).isprintable()
    assert not text.isprintable() or printable(text) == text


def test_a_terminal_gets_colors_and_a_pipe_does_not() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        show(inspect_document(VIEW), terminal, now=0)
    show(inspect_document(VIEW), pipe, now=0)

    assert "\x1b[" in terminal.getvalue()
    assert "\x1b" not in pipe.getvalue()


def test_a_pipe_that_takes_ascii_only_gets_what_it_takes() -> None:
    raw = io.BytesIO()
    pipe = io.TextIOWrapper(raw, encoding="ascii")

    show(inspect_document(VIEW), pipe, now=0)
    pipe.flush()

    assert b"GPU-0" in raw.getvalue()


def test_rows_of_anything_are_shown_as_a_table() -> None:
    out = io.StringIO()

    show_table(
        "vendors", [{"name": "nvidia", "reason": None}, {"name": HOSTILE, "reason": "[b]x", "ok": True}], out
    )

    assert row(out.getvalue(), "nvidia") == ["nvidia", "-", "-"]
    assert row(out.getvalue(), "[b]x")[-1] == "yes"


@pytest.mark.parametrize(
    ("since", "told"),
    [(100, "0s"), (0, ""), (200, "0s"), (50, "50s"), (-7100, "")],
)
def test_an_age_is_short(since: float, told: str) -> None:
    assert age(since, 100) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h0m"),
        (86399, "23h59m"),
        (86400, "1d0h"),
        (700_000, "8d"),
    ],
)
def test_an_age_grows(seconds: int, told: str) -> None:
    assert age(1, 1 + seconds) == told


# Asking


async def test_the_document_is_fetched_from_a_running_agent(path: Path) -> None:
    async with serving(lambda: VIEW, path):
        body = await anyio.to_thread.run_sync(fetch, path)

    assert json.loads(body) == document_of(VIEW)


async def test_what_is_not_there_is_told_with_the_answer(path: Path) -> None:
    async with serving(lambda: VIEW, path):
        with pytest.raises(CannotAsk, match="/else was answered 404: nothing is here"):
            await anyio.to_thread.run_sync(fetch, path, "/else")


def test_no_agent_is_told_with_the_socket_and_what_would_work(path: Path) -> None:
    with pytest.raises(CannotAsk) as caught:
        fetch(path)

    assert str(caught.value) == (
        f"no agent answers at {path}: there is no such socket; "
        "start it with `xpu-agent run`, or name its directory with --state-dir"
    )


def test_an_agent_that_serves_no_socket_is_told_by_the_lock_that_it_holds(path: Path) -> None:
    with StateDirectoryLock(path.parent / "agent.lock") as lock:
        assert lock.take() == ""

        with pytest.raises(CannotAsk) as caught:
            fetch(path)

    who = f"(pid {os.getpid()}) holds {path.parent} and serves no socket there; where it has just started"
    assert who in str(caught.value)


def test_a_file_where_the_state_directory_should_be_is_told(short_path: Path) -> None:
    (short_path / "state").touch()

    with pytest.raises(
        CannotAsk, match=f"{short_path}/state is no directory; name the agent's state directory"
    ):
        fetch(short_path / "state/of/agent.sock")


def test_a_socket_without_an_agent_is_told(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    with pytest.raises(CannotAsk, match="the agent that made it is gone; start one"):
        fetch(path)


@contextmanager
def answering(path: Path, answer: bytes | None) -> Iterator[None]:
    """A stranger behind the socket: it says something, or nothing until the client gives up."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def talk() -> None:
            with listener.accept()[0] as client:
                client.recv(1000)
                if answer is None:
                    client.recv(1)
                else:
                    client.sendall(answer)

        thread = threading.Thread(target=talk)
        thread.start()
        yield
        thread.join(30)


@contextmanager
def going_on(path: Path, head: bytes, more: bytes, pause: float) -> Iterator[list[int]]:
    """A stranger that says more a thousand times, or until the client hangs up; how many bytes were taken."""
    taken: list[int] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def talk() -> None:
            with listener.accept()[0] as client, suppress(OSError):
                client.sendall(head)
                for _ in range(1000):
                    client.sendall(more)
                    taken.append(len(more))
                    threading.Event().wait(pause)

        thread = threading.Thread(target=talk)
        thread.start()
        yield taken
        thread.join(30)


def test_a_stranger_behind_the_socket_is_told(path: Path) -> None:
    with (
        answering(path, b"\x1b[31mhello\n"),
        pytest.raises(CannotAsk, match=r"is it the agent's socket\?") as caught,
    ):
        fetch(path)

    assert "\x1b" not in str(caught.value)


def test_silence_is_told(path: Path) -> None:
    with answering(path, None), pytest.raises(CannotAsk, match=r"no answer within 0\.05 s"):
        fetch(path, timeout=0.05)


def test_an_answer_without_end_is_refused_and_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.http.admin_client.MAX_ANSWER_BYTES", 1 << 20)

    with (
        going_on(path, b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 16), 0) as taken,
        pytest.raises(CannotAsk, match="it answers with more than 1 MiB, as no agent does"),
    ):
        fetch(path)

    assert sum(taken) < 4 << 20  # the rest of it lies in the kernel's buffers


def test_an_answer_may_be_as_long_as_the_longest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.http.admin_client.MAX_ANSWER_BYTES", 1 << 20)

    with answering(path, b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1 << 20)):
        assert len(fetch(path)) == 1 << 20


def test_an_answer_that_breaks_off_is_told(path: Path) -> None:
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"
    with answering(path, short), pytest.raises(CannotAsk, match=r"IncompleteRead\(2 bytes read, 7 more"):
        fetch(path)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["head", "body"]
)
def test_an_answer_that_drips_has_no_more_time_than_any_other(path: Path, head: bytes) -> None:
    with going_on(path, head, b"x", 0.01), pytest.raises(CannotAsk, match=r"no answer within 0\.1 s"):
        fetch(path, timeout=0.1)


#: Asks as nobody where the test runs as root, who may always ask.
ASKING = """
import os, sys
from pathlib import Path
from agent.http.admin_client import CannotAsk, fetch
if os.geteuid() == 0:
    os.setuid(65534)
try:
    fetch(Path(sys.argv[1]))
except CannotAsk as refusal:
    print(refusal)
"""


def test_a_socket_of_somebody_else_is_told(path: Path) -> None:
    path.parent.chmod(0o711)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        path.chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", ASKING, str(path)], capture_output=True, text=True, check=True
        )

    assert "ask as root" in done.stdout

"""An operator's words: heard on the admin socket alone, in small JSON, from whom the kernel says."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from support.http_views import VIEW
from support.short_places import SHORT_PLACE
from support.waiting import eventually

from agent.core.errors import NoSuchDevice, NotOnDisk, NotServing
from agent.core.model import Command
from agent.core.publishing.agent_status import AgentStatus
from agent.http import serving
from agent.http.operator_commands import answer_command

ME = pwd.getpwuid(os.getuid()).pw_name


def view() -> AgentStatus:
    return VIEW


class Agent:
    """Takes commands, and fails as asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.commands: list[Command] = []

    async def apply(self, command: Command) -> str:
        self.commands.append(command)
        if self.error is not None:
            raise self.error
        return "done"


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHORT_PLACE) as directory:
        yield Path(directory) / "agent.sock"


def post(target: str, body: bytes, more: str = "") -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def said(**words: Any) -> bytes:
    return json.dumps({"device": "GPU-0", **words}).encode()


async def talk(at: str, sent: bytes) -> tuple[int, str]:
    async with asyncio.timeout(30):
        if at.startswith("/"):
            reader, writer = await asyncio.open_unix_connection(at)
        else:
            host, _, port = at.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    return int(head.split(b" ", 2)[1]), body.decode()


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "clear"])
async def test_a_command_is_done_and_answered_with_what_came_of_it(path: Path, verb: str) -> None:
    agent = Agent()
    async with serving(view, path, apply=agent.apply) as at:
        answer = await talk(at, post(f"/health/{verb}", said(reason="maintenance")))

    assert answer == (200, "done\n")
    assert [(it.verb, it.device, it.reason) for it in agent.commands] == [(verb, "GPU-0", "maintenance")]


@pytest.mark.parametrize(
    ("user", "author"),
    [("", ME), (ME, ME), ("alice", f"{ME} (alice)"), ("root\n\x1b[0m", f"{ME} (root\\n\\x1b[0m)")],
)
async def test_the_author_is_who_the_kernel_says_with_who_they_say_they_are_behind(
    path: Path, user: str, author: str
) -> None:
    agent = Agent()
    async with serving(view, path, apply=agent.apply) as at:
        await talk(at, post("/health/cordon", said(user=user)))

    assert [it.author for it in agent.commands] == [author]


async def test_a_user_whom_nobody_knows_is_told_by_number() -> None:
    agent = Agent()

    await answer_command(agent.apply, "/health/clear", said(), uid=4_000_000_000)

    assert [it.author for it in agent.commands] == ["uid 4000000000"]


async def test_a_user_database_that_hangs_keeps_nobody_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def hangs(uid: int) -> None:
        asked.set()
        goes_on.wait(60)
        raise KeyError

    monkeypatch.setattr("agent.http.operator_commands.pwd.getpwuid", hangs)
    agent = Agent()
    try:
        async with asyncio.timeout(30), anyio.create_task_group() as group:
            group.start_soon(answer_command, agent.apply, "/health/clear", said(), 0)
            await eventually(asked.is_set)
            group.cancel_scope.cancel()
    finally:
        goes_on.set()

    assert agent.commands == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NoSuchDevice("GPU-9", (), ("GPU-0",)), 404),
        (NotOnDisk("cordoned", "no space"), 507),
        (NotServing("pid 7"), 409),
    ],
)
async def test_a_refusal_is_told_in_its_own_words(path: Path, error: Exception, status: int) -> None:
    async with serving(view, path, apply=Agent(error).apply) as at:
        answer = await talk(at, post("/health/cordon", said()))

    assert answer == (status, f"{error}\n")


async def test_what_is_not_on_disk_is_told_so() -> None:
    told = str(NotOnDisk("GPU-0: cordoned", "/var/lib/xpu-agent/checkpoint.json: no space left"))

    assert told == (
        "GPU-0: cordoned, but only until the agent ends: this is not on disk: "
        "/var/lib/xpu-agent/checkpoint.json: no space left"
    )


@pytest.mark.parametrize(
    ("target", "body", "status", "words"),
    [
        ("/health/dance", said(), 404, "there is /health/cordon, /health/uncordon, /health/clear"),
        ("/inspect", said(), 404, "no command is at /inspect"),
        ("/health/cordon", b"", 400, "not understood"),
        ("/health/cordon", b"\xff", 400, "not understood"),
        ("/health/cordon", b"[" * 10_000, 400, "not understood"),
        ("/health/cordon", b"{}", 400, "`device`"),
        ("/health/cordon", b'{"device": 1}', 400, "$.device"),
        ("/health/cordon", said(force=True), 400, "`force`"),
        ("/health/cordon", said(device=""), 400, "device: is empty"),
        ("/health/cordon", said(device="x" * 129), 400, "device: has 129 characters, at most 128 work"),
        ("/health/cordon", said(reason="x" * 257), 400, "reason: has 257 characters, at most 256 work"),
        ("/health/cordon", said(user="x" * 65), 400, "user: has 65 characters, at most 64 work"),
        ("/health/cordon", b" " * 16_385, 413, "longer than 16384 bytes"),
        ("/health/cordon", b" " * 1_000_000, 413, "longer than 16384 bytes"),
    ],
)
async def test_what_is_no_word_is_refused_and_nothing_is_done(
    path: Path, target: str, body: bytes, status: int, words: str
) -> None:
    agent = Agent()
    async with serving(view, path, apply=agent.apply) as at:
        found, told = await talk(at, post(target, body))

    assert (found, agent.commands) == (status, [])
    assert words in told


async def test_a_body_in_pieces_is_one_word(path: Path) -> None:
    agent = Agent()
    pieces = b"".join(b"1\r\n%c\r\n" % letter for letter in said()) + b"0\r\n\r\n"
    head = b"POST /health/cordon HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    async with serving(view, path, apply=agent.apply) as at:
        answer = await talk(at, head + b"Transfer-Encoding: chunked\r\n\r\n" + pieces)

    assert answer == (200, "done\n")


async def test_words_and_views_follow_each_other_on_one_connection(path: Path) -> None:
    agent = Agent()
    first = post("/health/cordon", said()).replace(b"Connection: close\r\n", b"")
    async with serving(view, path, apply=agent.apply) as at:
        _, told = await talk(at, first + post("/health/clear", said()))

    assert [it.verb for it in agent.commands] == ["cordon", "clear"]
    assert told.count("done") == 2


@pytest.mark.parametrize("at", ["127.0.0.1:0", "0.0.0.0:0"])
async def test_nobody_is_heard_over_the_network_nor_on_loopback(at: str) -> None:
    agent = Agent()
    async with serving(view, at, apply=agent.apply) as where:
        status, told = await talk(where, post("/health/cordon", said()))

    assert (status, told, agent.commands) == (405, "only GET and HEAD are served\n", [])


async def test_other_methods_are_refused_on_the_admin_socket_too(path: Path) -> None:
    async with serving(view, path, apply=Agent().apply) as at:
        status, told = await talk(at, b"PUT /health/cordon HTTP/1.1\r\nHost: x\r\n\r\n")

    assert (status, told) == (405, "only GET, HEAD and POST are served\n")


async def test_a_bug_behind_a_word_is_an_error_of_ours_and_logged_once(path: Path) -> None:
    with structlog.testing.capture_logs() as logged:
        async with serving(view, path, apply=Agent(RuntimeError("secret")).apply) as at:
            status, told = await talk(at, post("/health/cordon", said()))

    assert status == 500
    assert "secret" not in told
    assert [entry["event"] for entry in logged] == ["command failed"]


@given(st.binary(max_size=200) | st.text(max_size=50).map(lambda it: json.dumps({"device": it}).encode()))
def test_any_body_is_heard_or_refused(body: bytes) -> None:
    agent = Agent()

    answer = asyncio.run(answer_command(agent.apply, "/health/cordon", body, uid=0))

    assert (answer.status, len(agent.commands)) in ((200, 1), (400, 0))
    assert replace(answer).body.decode().strip().isprintable()

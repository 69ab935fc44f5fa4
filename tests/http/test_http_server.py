"""The HTTP server: what it answers, and what clients cannot do to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from support.http_views import VIEW
from support.short_places import SHORT_PLACE
from support.waiting import eventually

from agent.core.errors import AgentError, ConfigError
from agent.core.publishing.agent_status import AgentStatus
from agent.http import CannotServe, answer_cache, serve, serving
from agent.http import listen as listeners
from agent.http.client_limits import ClientLimits

LOOPBACK = "127.0.0.1:0"
SHORT = ClientLimits(request=0.05, idle=0.05)


def view() -> AgentStatus:
    return VIEW


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHORT_PLACE) as directory:
        yield Path(directory) / "agent.sock"


async def talk(at: str, sent: bytes) -> bytes:
    """Send bytes, and return everything until the server hangs up."""
    async with asyncio.timeout(30):
        if at.startswith("/"):
            reader, writer = await asyncio.open_unix_connection(at)
        else:
            host, _, port = at.rpartition(":")
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            writer.write(sent)
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


def get(target: str, method: str = "GET", more: str = "Connection: close\r\n") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_get_is_answered() -> None:
    async with serving(view, LOOPBACK) as at:
        answer = await talk(at, get("/healthz?verbose=1"))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length: 3" in head.lower()
    assert b"x-content-type-options: nosniff" in head.lower()
    assert body == b"ok\n"


async def test_a_disk_that_hangs_does_not_keep_a_socket_from_its_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thaws, left = threading.Event(), threading.Event()

    def listen() -> None:
        with listeners.on_path(str(path)):
            pass
        left.set()

    monkeypatch.setattr(listeners, "REMOVED_WITHIN", 0.01)
    monkeypatch.setattr(Path, "unlink", lambda path: thaws.wait())
    threading.Thread(target=listen, daemon=True).start()

    assert await anyio.to_thread.run_sync(left.wait, 10)
    thaws.set()


async def test_head_is_answered_without_the_body() -> None:
    async with serving(view, LOOPBACK) as at:
        head, _, body = (await talk(at, get("/inspect", "HEAD"))).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length" in head.lower()
    assert body == b""


async def test_a_connection_is_kept_for_further_requests() -> None:
    async with serving(view, LOOPBACK) as at:
        answer = await talk(at, get("/healthz", more="") + get("/readyz", more="") + get("/version"))

    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.endswith(b'{"version":"1.2.3"}\n')


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("LocalHost:9808", 200),
        ("127.0.0.1", 200),
        ("127.0.0.9:9808", 200),
        ("[::1]", 200),
        ("[::1]:9808", 200),
        ("evil.example", 421),
        ("evil.example:9808", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("10.0.0.1:9808", 421),
        ("[::2]:9808", 421),
        (":9808", 421),
        ("localhost:x", 421),
    ],
)
async def test_loopback_answers_to_its_own_names_alone(host: str, expected: int) -> None:
    async with serving(view, LOOPBACK) as at:
        asked = f"GET /inspect HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        answer = await talk(at, asked.encode())

    assert status(answer) == expected
    assert (b"ask 127.0.0.1, [::1] or localhost" in answer) == (expected == 421)


async def test_loopback_answers_who_names_no_host_as_http_1_0_may() -> None:
    async with serving(view, LOOPBACK) as at:
        assert status(await talk(at, b"GET /healthz HTTP/1.0\r\n\r\n")) == 200


async def test_other_addresses_are_asked_by_any_name() -> None:
    async with serving(view, "0.0.0.0:0") as at:
        asked = b"GET /healthz HTTP/1.1\r\nHost: node-1.example\r\nConnection: close\r\n\r\n"

        assert status(await talk(at, asked)) == 200


async def test_ipv6_loopback_shows_everything() -> None:
    try:
        async with serving(view, "[::1]:0") as at:
            assert status(await talk(at, get("/inspect"))) == 200
    except CannotServe:
        pytest.skip("no IPv6 here")


async def test_another_address_shows_probes_and_metrics_only() -> None:
    async with serving(view, "0.0.0.0:0") as at:
        shown = {
            path: status(await talk(at, get(path)))
            for path in ("/healthz", "/metrics", "/inspect", "/version")
        }

    assert shown == {"/healthz": 200, "/metrics": 200, "/inspect": 404, "/version": 404}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (get("/healthz", "POST"), 405),
        (get("/healthz", "DELETE"), 405),
        (get("/healthz", "POST", "Content-Length: 5\r\n") + b"hello", 405),
        (get("/healthz", "POST", "Content-Length: 99999999\r\n") + b"x" * 100_000, 405),
        (get("/healthz", "POST", "Transfer-Encoding: chunked\r\n") + b"zz", 405),
        (b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.9\r\nConnection: close\r\n\r\n", 404),
        (b"GET / HTTP/x\r\n\r\n", 400),
        (get("/\x00"), 400),
        (get("/ü"), 400),
        (get("/healthz", more="Content-Length: -1\r\n"), 400),
        (get("/" + "x" * 40_000), 431),
        (get("/healthz", more="X: " + "x" * 40_000 + "\r\n"), 431),
        (get("/healthz", more="X: x\r\n" * 10_000), 431),
        (get("//etc/passwd"), 404),
        (get("/../../etc/passwd"), 404),
        (get("http://else/healthz"), 404),
        (get("*", "OPTIONS"), 405),
    ],
)
async def test_hostile_input_is_refused_without_a_traceback(sent: bytes, expected: int) -> None:
    with structlog.testing.capture_logs() as logged:
        async with serving(view, LOOPBACK) as at:
            answer = await talk(at, sent)
            alive = await talk(at, get("/healthz"))

    assert status(answer) == expected
    assert b"Traceback" not in answer
    assert status(alive) == 200
    assert logged == []


@given(st.binary(max_size=300) | st.binary(max_size=100).map(lambda it: b"GET " + it + b" HTTP/1.1\r\n\r\n"))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_answered_with_http_or_silence(sent: bytes) -> None:
    async def check() -> bytes:
        async with serving(view, LOOPBACK, SHORT) as at:
            return await talk(at, sent)

    answer = asyncio.run(check())

    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")


async def test_a_client_that_never_finishes_its_request_is_hung_up_on() -> None:
    async with serving(view, LOOPBACK, SHORT) as at:
        assert await talk(at, b"GET / HT") == b""
        assert await talk(at, b"") == b""
        # On a busy machine this client, too, may be too slow for the short limits.
        await eventually(lambda: is_well(at))


async def is_well(at: str) -> bool:
    return (await talk(at, get("/healthz", more=""))).startswith(b"HTTP/1.1 200")


async def test_clients_that_only_hold_connections_make_room_for_one_that_asks() -> None:
    async with serving(view, LOOPBACK, ClientLimits(connections=2)) as at:
        host, _, port = at.rpartition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(2)]

        for _ in range(3):
            assert (await talk(at, get("/healthz"))).startswith(b"HTTP/1.1 200")

        with contextlib.suppress(OSError):
            assert await idle[0][0].read() == b""
        for _, writer in idle:
            writer.close()


async def test_a_view_that_breaks_is_an_error_of_ours_and_logged_once() -> None:
    def broken() -> AgentStatus:
        raise RuntimeError("secret")

    with structlog.testing.capture_logs() as logged:
        async with serving(broken, LOOPBACK) as at:
            answer = await talk(at, get("/inspect"))

    assert status(answer) == 500
    assert b"secret" not in answer
    assert [entry["event"] for entry in logged] == ["view failed"]


async def test_leaving_hangs_up_on_everybody() -> None:
    async with serving(view, LOOPBACK) as at:
        host, _, port = at.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(get("/healthz", more=""))
        await reader.readline()

    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            await reader.read()
    writer.close()


async def test_clients_that_come_while_the_server_leaves_are_hung_up_on() -> None:
    async with serving(view, LOOPBACK) as at:
        host, _, port = at.rpartition(":")
        late = [await asyncio.open_connection(host, int(port)) for _ in range(10)]

    async with asyncio.timeout(30):
        for reader, writer in late:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()


async def test_others_are_answered_while_a_view_is_prepared_and_the_view_after_that() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def prepare() -> None:
        begun.set()
        await may_end.wait()

    async with serving(view, LOOPBACK, prepare_use=prepare) as at:
        async with asyncio.timeout(30):
            asked = asyncio.create_task(talk(at, get("/metrics")))
            await begun.wait()
            assert status(await talk(at, get("/healthz"))) == 200
            assert not asked.done()
            may_end.set()
            assert status(await asked) == 200


async def test_a_view_that_cannot_be_prepared_is_an_error_of_its_own() -> None:
    async def prepare() -> None:
        raise RuntimeError("broken")

    async with serving(view, LOOPBACK, prepare_use=prepare) as at:
        assert status(await talk(at, get("/metrics"))) == 500
        assert status(await talk(at, get("/healthz"))) == 200


async def test_a_kept_answer_needs_no_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_cache, "KEPT_SECONDS", 3600.0)
    prepared: list[None] = []

    async def prepare() -> None:
        prepared.append(None)

    async with serving(view, LOOPBACK, prepare_use=prepare) as at:
        for _ in range(3):
            assert status(await talk(at, get("/metrics"))) == 200
    assert len(prepared) == 1


async def test_serving_ends_when_cancelled(path: Path) -> None:
    task = asyncio.create_task(serve(view, path))
    async with asyncio.timeout(30):
        await eventually(path.exists)
        assert status(await talk(str(path), get("/inspect"))) == 200
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert os.listdir(path.parent) == []


# The admin socket


async def test_the_admin_socket_shows_everything_to_its_owner_only(path: Path) -> None:
    async with serving(view, str(path)) as at:
        mode = stat.S_IMODE(os.stat(at).st_mode)
        assert status(await talk(at, get("/inspect"))) == 200

    assert mode == 0o600


async def test_what_a_dead_agent_left_behind_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async with serving(view, path) as at:
        assert status(await talk(at, get("/healthz"))) == 200


async def test_the_socket_of_an_agent_that_answers_is_left_alone(path: Path) -> None:
    async with serving(view, path) as at:
        with pytest.raises(CannotServe, match="another agent answers there; stop it or choose another"):
            await serve(view, path)

        assert status(await talk(at, get("/healthz"))) == 200


async def test_a_successors_socket_is_left_alone(path: Path) -> None:
    async with serving(view, path):
        os.unlink(path)
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))

    assert os.listdir(path.parent) == ["agent.sock"]


async def test_a_file_in_the_place_of_the_socket_is_left_alone(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT))

    with pytest.raises(CannotServe, match="something else is there"):
        await serve(view, path)

    assert os.listdir(path.parent) == ["agent.sock"]


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("/tmp/" + "x" * 120, "longer than 107 bytes; choose a shorter --state-dir"),
        ("/no/such/agent.sock", "No such file or directory; choose a writable --state-dir"),
        ("192.0.2.1:0", r"choose another with --http ADDR:PORT, or none with --http \"\""),
    ],
)
async def test_an_address_that_can_not_be_had_is_named(at: str, why: str) -> None:
    with pytest.raises(CannotServe, match=why) as caught:
        await serve(view, at)

    assert str(caught.value).startswith(f"cannot serve on {at}: ")
    assert isinstance(caught.value, AgentError)


async def test_a_port_that_is_taken_is_named() -> None:
    async with serving(view, LOOPBACK) as at:
        with pytest.raises(CannotServe, match=r"127\.0\.0\.1:\d+: Address already in use; choose"):
            await serve(view, at)


async def test_what_is_no_address_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="has no port"):
        await serve(view, "nowhere")


def test_the_metrics_library_is_loaded_by_the_first_scrape_only() -> None:
    code = "import sys, agent.http; print('prometheus_client' in sys.modules, 'rich' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split()[0] == "False"

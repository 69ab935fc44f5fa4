"""What answers at the port of an agent: bounded, however it answers or falls silent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from agent.doctor import inspect_questions
from agent.doctor.inspect_questions import inspected_on_port


@contextmanager
def port(answer: bytes, drip: bytes = b"") -> Iterator[str]:
    """The address of a stranger; with `drip` it goes on with that for ten seconds or until it is left."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            with server.accept()[0] as client, suppress(OSError):
                client.recv(1000)
                client.sendall(answer)
                for _ in range(1000 if drip else 0):
                    client.sendall(drip)
                    threading.Event().wait(0.01)

        thread = threading.Thread(target=talk)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(30)


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


async def test_a_port_that_answers_without_end_is_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.http.admin_client.MAX_ANSWER_BYTES", 1 << 20)

    with port(HEAD + bytes(2 << 20)) as address:
        found = await inspected_on_port(address)

    assert found.why == f"{address}: it answers with more than 1 MiB, as no agent does"


async def test_a_port_that_drips_has_no_more_time_than_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_questions, "AGENT_PATIENCE", 0.1)

    with port(HEAD, b"{") as address:
        found = await inspected_on_port(address)

    assert found.why == f"{address}: timed out"

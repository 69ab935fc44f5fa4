"""Work that goes on after its RPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from agent.kubelet.pending_calls import PendingCalls

pytestmark = pytest.mark.anyio


@contextmanager
def timed_out() -> Iterator[list[str]]:
    words: list[str] = []
    with pytest.raises(TimeoutError) as caught:
        yield words
    words.append(str(caught.value))


@pytest.mark.parametrize("first", ["the deadline of the work", "the patience of the caller"])
async def test_late_work_is_called_late_whichever_timer_runs_first(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    real, difference = asyncio.timeout, 60 if first == "the deadline of the work" else -0.04
    monkeypatch.setattr("agent.kubelet.pending_calls.asyncio.timeout", lambda it: real(it + difference))
    async with anyio.create_task_group() as group:
        with timed_out() as words:
            await PendingCalls(group).run(anyio.sleep_forever, 0.05)

    assert words == ["not done within 0.05 s"]


async def test_work_that_is_cancelled_as_the_server_ends_does_not_claim_to_be_late() -> None:
    async with anyio.create_task_group() as group:
        calls, begun = PendingCalls(group), anyio.Event()

        async def work() -> None:
            begun.set()
            await anyio.sleep_forever()

        async def end() -> None:
            await begun.wait()
            await calls.drain(0)

        group.start_soon(end)
        with timed_out() as words:
            await calls.run(work, 600)

    assert words == ["cancelled: the server of this resource ends"]

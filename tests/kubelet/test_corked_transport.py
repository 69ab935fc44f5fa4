"""What is written within one turn of the event loop leaves as one piece."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from agent.kubelet.corked_transport import CorkedTransport


class Wire:
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        self.seen: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.seen.append(data)

    def close(self) -> None:
        self.seen.append("closed")


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def corked(wire: Wire) -> CorkedTransport:
    return CorkedTransport(cast("asyncio.Transport", wire))


async def test_what_is_written_in_one_turn_leaves_in_one_piece_and_in_order(
    corked: CorkedTransport, wire: Wire
) -> None:
    corked.write(b"a")
    corked.write(b"b")
    assert wire.seen == []

    await asyncio.sleep(0)
    assert wire.seen == [b"ab"]
    corked.write(b"c")
    await asyncio.sleep(0)
    assert wire.seen == [b"ab", b"c"]


async def test_what_was_written_leaves_before_the_end(corked: CorkedTransport, wire: Wire) -> None:
    corked.write(b"goodbye")
    corked.close()
    await asyncio.sleep(0)

    assert wire.seen == [b"goodbye", "closed"]

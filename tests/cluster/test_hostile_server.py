"""A mirror over the wire with a server that is broken, or means harm: said, and asked ever more slowly."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agent.cluster import reflector
from agent.cluster.api_client import CallTimeouts, open_api
from agent.cluster.api_protocol import Object
from agent.cluster.credentials import ApiAccess
from agent.cluster.object_fields import text
from agent.cluster.reflector import FollowTiming, Reflector
from agent.scheduler_api.document_parts import part_of

from .wire import Answer, Asked, head, line, says, sends, wire

SMALL = CallTimeouts(call=30, connect=30, silence=30, body=2000, line=1000)
LIST = {"metadata": {"resourceVersion": "5"}, "items": []}
GONE = b'{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}\n'
TRIES = 5


class Enough(Exception):
    """The mirror has tried as often as the test looks."""


def endless(*parts: bytes) -> Answer:
    """The first part, and then the others again and again."""

    async def answer(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200) + parts[0])
        rest = b"".join(parts[1:])  # Python 3.13.0 never has `writelines` wait for who reads slowly
        while True:
            writer.write(rest)
            await writer.drain()

    return answer


@asynccontextmanager
async def mirrored(listed: Answer, watched: Answer) -> AsyncIterator[tuple[Reflector[str], list[float]]]:
    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (watched if "watch=true" in asked.target else listed)(asked, writer)

    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == TRIES:
            raise Enough

    def version(it: Object) -> str:
        return text(part_of(it, "metadata"), "resourceVersion")

    following = FollowTiming(shortest=1, longest=3600)  # no watch of a slow machine lasts as long
    async with wire(answer) as server:
        client = await open_api(ApiAccess(server.url), SMALL)
        try:
            yield (
                Reflector(client, "/api/v1/pods", {}, version, following, jitter=lambda: 1.0, sleep=sleep),
                sleeps,
            )
        finally:
            await client.close()


@pytest.mark.parametrize(
    ("listed", "watched", "said"),
    [
        (says(200, gzip.compress(b" " * 10**7), **{"Content-Encoding": "gzip"}), says(404), "compressed"),
        (says(200, LIST), says(200, gzip.compress(GONE), **{"Content-Encoding": "gzip"}), "compressed"),
        (endless(b"{", b" " * 1000), says(404), "its answer is longer than 2000 bytes"),
        (says(200, {**LIST, "metadata": {"continue": "more"}}), says(404), "list has no end: 3 pages"),
        (says(200, LIST), endless(b'{"type": "', b"x" * 500), "1000"),
        (says(200, LIST), sends(line("MODIFIED", name="a", resourceVersion="5")), ""),
        (says(200, LIST), sends(line("MODIFIED", name="a", resourceVersion="6"), GONE), ""),
    ],
    ids=["list-bomb", "watch-bomb", "body", "pages", "line", "repeated", "too-old"],
)
async def test_a_server_without_bounds_is_said_and_asked_ever_more_slowly(
    monkeypatch: pytest.MonkeyPatch, listed: Answer, watched: Answer, said: str
) -> None:
    monkeypatch.setattr(reflector, "PAGES", 3)
    async with mirrored(listed, watched) as (mirror, sleeps):
        with pytest.raises(Enough):
            await mirror.run()

    assert sleeps == [1, 2, 4, 8, 16]
    assert said in mirror.cell.value.error
    assert bool(said) == bool(mirror.cell.value.error)

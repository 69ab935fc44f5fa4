"""How a list is mirrored, whatever the server does; the server here is a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.api_errors import ApiAway, ApiError, Busy, Forbidden, Gone, TooLong
from agent.cluster.api_protocol import Object, WatchMessage
from agent.cluster.reflector import (
    MISSES,
    PAGES,
    PATIENCE,
    FollowTiming,
    MirroredObjects,
    Reflector,
    after,
    kept,
)

from .fakes import Unasked

AWAY = ApiAway("nobody there")
GONE = Gone(410, "Expired", "too old")


class EndOfScript(Exception):
    """The reflector asked for more than the test has an answer for."""


class Script(Unasked):
    """Answers lists and watches in turn: an error is raised, a watch brings its messages and ends."""

    def __init__(self, *steps: Any) -> None:
        self._steps = list(steps)
        self.asked: list[Mapping[str, str]] = []
        self.sleeps: list[float] = []
        self.open = 0
        self.opened = asyncio.Event()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        answer = self._next(query or {})
        assert isinstance(answer, dict), "a list was asked for"
        return answer

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        messages = self._next(query)
        assert isinstance(messages, list), "a watch was asked for"
        self.open += 1
        self.opened.set()
        try:
            yield self._brought(messages)
        finally:
            self.open -= 1

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)

    def _next(self, query: Mapping[str, str]) -> Any:
        if not self._steps:
            raise EndOfScript
        self.asked.append(query)
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    async def _brought(self, messages: list[Any]) -> AsyncIterator[WatchMessage]:
        for message in messages:
            if isinstance(message, Exception):
                raise message
            if isinstance(message, asyncio.Event):
                await message.wait()
            else:
                yield message


def item(name: str, value: int = 0, version: str = "1", namespace: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "resourceVersion": version}, "value": value}


def listed(version: str, *items: Any, more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version, "continue": more}, "items": list(items)}


def seen(kind: str, name: str = "", value: int = 0, version: str = "1") -> WatchMessage:
    return WatchMessage(kind, item(name, value, version))


def value_of(it: Object) -> int | None:
    """Keeps the value of what has one."""
    value: int = it.get("value", 0)
    return value if value >= 0 else None


async def reflected(*steps: Any, query: Mapping[str, str] | None = None) -> tuple[Script, Reflector[int]]:
    """Run until the script is over."""
    script = Script(*steps)
    reflector = following(script, query)
    with pytest.raises(EndOfScript):
        await reflector.run()
    return script, reflector


def following(script: Script, query: Mapping[str, str] | None = None) -> Reflector[int]:
    return Reflector(
        script,
        "/api/v1/pods",
        query or {},
        value_of,
        FollowTiming(shortest=1, longest=8),
        jitter=lambda: 1.0,
        sleep=script.sleep,
    )


async def test_a_list_is_read_page_by_page_and_shown_at_once() -> None:
    script, reflector = await reflected(
        listed("5", item("a", 1), item("b", 2, namespace="n"), more="token"),
        listed("5", item("c", 3), item("d", -1)),
        query={"fieldSelector": "f"},
    )

    assert reflector.cell.value == MirroredObjects({"a": 1, "n/b": 2, "c": 3}, synced=True)
    assert script.asked == [
        {"fieldSelector": "f", "resourceVersion": "0", "limit": "250"},
        {"fieldSelector": "f", "limit": "250", "continue": "token"},
    ]


async def test_nothing_is_synced_before_the_last_page() -> None:
    _, reflector = await reflected(listed("5", item("a"), more="token"), AWAY)

    assert reflector.cell.value == MirroredObjects({}, synced=False, error="nobody there")


async def test_a_list_that_is_too_long_for_one_answer_is_read_in_ever_smaller_pages() -> None:
    """What the server has in memory it sends in one answer, whatever the limit."""
    long = TooLong("longer than 8 MiB")
    script, reflector = await reflected(long, long, listed("5", item("a"), more="t"), listed("5", item("b")))

    assert reflector.cell.value.objects == {"a": 0, "b": 0}
    assert script.asked == [
        {"resourceVersion": "0", "limit": "250"},
        {"limit": "125"},
        {"limit": "62"},
        {"limit": "62", "continue": "t"},
    ]


async def test_pages_of_a_list_that_is_always_too_long_do_not_end_up_empty() -> None:
    script, _ = await reflected(*[TooLong("longer than 8 MiB")] * 7)

    assert [it["limit"] for it in script.asked][-3:] == ["15", "10", "10"]
    assert script.sleeps[:4] == [1, 2, 4, 8]


async def test_a_list_without_end_is_given_up() -> None:
    _, reflector = await reflected(*[listed("5", item("a"), more="token")] * PAGES)

    assert reflector.cell.value.error.startswith("the API server's list has no end")


async def test_a_watch_goes_on_from_the_list_and_then_from_the_newest_message() -> None:
    script, reflector = await reflected(
        listed("5", item("a", 1)),
        [seen("ADDED", "b", 2, "6"), seen("BOOKMARK", version="9")],
        [seen("DELETED", "a", version="11"), seen("MODIFIED", "b", 3, "12")],
        [],
        query={"fieldSelector": "f"},
    )

    assert reflector.cell.value == MirroredObjects({"b": 3}, synced=True)
    assert [it["resourceVersion"] for it in script.asked[1:]] == ["5", "9", "12"]
    assert script.asked[1] == {
        "fieldSelector": "f",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "timeoutSeconds": "225",
    }


async def test_what_is_no_longer_kept_is_dropped() -> None:
    _, reflector = await reflected(
        listed("5", item("a", 1)), [seen("MODIFIED", "a", -1, "6"), seen("ADDED", "b", -1, "7")]
    )

    assert reflector.cell.value == MirroredObjects({}, synced=True)


@pytest.mark.parametrize(
    "watch", [GONE, [seen("ADDED", "b", 2, "6"), GONE]], ids=["at connect", "in the stream"]
)
async def test_a_version_that_is_too_old_is_listed_anew_and_nothing_vanishes_meanwhile(watch: Any) -> None:
    script, reflector = await reflected(listed("5", item("a", 1)), watch, AWAY)

    assert "a" in reflector.cell.value.objects
    assert reflector.cell.value.synced
    assert "limit" in script.asked[2]


async def test_a_new_list_replaces_the_old_one() -> None:
    _, reflector = await reflected(listed("5", item("a", 1)), GONE, listed("8", item("b", 2)))

    assert reflector.cell.value == MirroredObjects({"b": 2}, synced=True)
    assert reflector.cell.value.version == 8


@pytest.mark.parametrize("error", [AWAY, Forbidden(403, "Forbidden", "no"), Busy(429, "Busy", "later", 1)])
async def test_while_the_server_is_away_the_last_objects_stay_and_the_error_is_said(error: ApiError) -> None:
    script, reflector = await reflected(
        listed("5", item("a", 1)), [seen("BOOKMARK", version="7"), AWAY], error
    )

    refused = isinstance(error, Forbidden)
    assert reflector.cell.value == MirroredObjects({"a": 1}, synced=True, error=str(error), refused=refused)
    assert script.asked[-1]["resourceVersion"] == "7"


async def test_an_error_is_over_when_the_watch_is_taken() -> None:
    _, reflector = await reflected(AWAY, listed("5", item("a", 1)), AWAY, [])

    assert reflector.cell.value == MirroredObjects({"a": 1}, synced=True)


async def test_pauses_grow_until_something_is_brought() -> None:
    script, _ = await reflected(AWAY, AWAY, listed("5"), AWAY, [], [seen("BOOKMARK", version="7")], AWAY)

    assert script.sleeps == [1, 2, 4, 8, 1, 2]


async def test_a_busy_server_is_not_asked_for_the_list_again() -> None:
    busy = [Busy(429, "TooManyRequests", "")] * 5
    script, _ = await reflected(listed("5"), *busy)

    assert ["limit" in it for it in script.asked] == [True] + [False] * 5


async def test_a_server_that_ends_every_watch_at_once_is_asked_ever_more_slowly() -> None:
    script, _ = await reflected(listed("5"), [], [], [], listed("5"), [])

    assert script.sleeps == [1, 2, 4, 8]


@pytest.mark.parametrize(
    "end", [[], [GONE], [AWAY]], ids=["ends its watch", "calls the version too old", "breaks off"]
)
async def test_a_server_that_repeats_what_it_said_is_asked_ever_more_slowly(end: list[Any]) -> None:
    again = [listed("5")] if end == [GONE] else []
    steps = [[seen("MODIFIED", "a", 1, "5"), *end], *again]
    script, _ = await reflected(listed("5"), *steps * 4)

    assert script.sleeps[:4] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    "watches",
    [
        [[seen("MODIFIED", "a", 1, "5"), seen("MODIFIED", "b", 1, "6")]] * 5,
        [[seen("MODIFIED", "a", 1, "6")], [seen("MODIFIED", "b", 1, "5")]] * 3,
    ],
    ids=["in one watch", "in turns"],
)
async def test_a_server_that_repeats_two_objects_is_asked_ever_more_slowly(watches: list[Any]) -> None:
    """Their versions differ each time; what is new has a version above all that were seen."""
    script, _ = await reflected(listed("4"), *watches)

    assert script.sleeps[:4] == [1, 2, 4, 8]


async def test_a_server_that_was_set_back_brings_news_below_the_versions_of_before() -> None:
    watches: list[Any] = [[], [], []]
    script, _ = await reflected(
        listed("500"), *watches, listed("20"), [seen("MODIFIED", "a", 1, "21")], AWAY, AWAY
    )

    assert script.sleeps == [1, 2, 4, 1, 2, 4]


async def test_versions_that_are_no_numbers_are_news_where_they_differ_from_the_last_one() -> None:
    script, _ = await reflected(
        listed("x"), [seen("MODIFIED", "a", 1, "y")], [seen("MODIFIED", "a", 1, "z")], [], []
    )

    assert script.sleeps == [1, 1, 2, 4]


async def test_a_server_that_calls_every_version_too_old_is_asked_ever_more_slowly() -> None:
    """Each time for everything."""
    script, _ = await reflected(*[listed("5"), [seen("MODIFIED", "a", 1, "6"), GONE]] * 4)

    assert script.sleeps == [1, 2, 4, 8]


async def test_a_watch_that_the_server_does_not_end_when_asked_to_is_left() -> None:
    """It may say the same for ever."""
    endless = [seen("MODIFIED", "a", 1, str(version)) for version in range(6, 9)]
    script = Script(listed("5"), endless, [])
    reflector = Reflector(
        script, "/api/v1/pods", {}, value_of, FollowTiming(watch=0.0, longest=0.0), sleep=script.sleep
    )
    with pytest.raises(EndOfScript):
        await reflector.run()

    assert [it["resourceVersion"] for it in script.asked] == ["0", "5", "6"]


@pytest.mark.parametrize(("asked", "waited"), [(20.0, 20.0), (0.1, 1.0), (None, 1.0), (1e9, PATIENCE)])
async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(asked: float | None, waited: float) -> None:
    script, _ = await reflected(Busy(429, "TooManyRequests", "", asked))

    assert script.sleeps == [waited]


async def test_a_list_that_may_not_be_read_is_asked_for_ever_more_seldom_until_it_may() -> None:
    no = Forbidden(403, "Forbidden", "no")
    steps = [*[no] * 12, listed("5"), [seen("BOOKMARK", version="7")], no, no]
    script, _ = await reflected(*steps)

    assert script.sleeps == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 1, 2, 4]


async def test_a_token_that_is_not_taken_is_no_want_of_a_right() -> None:
    script, reflector = await reflected(*[Forbidden(401, "Unauthorized", "no")] * 5)

    assert script.sleeps == [1, 2, 4, 8, 8]
    assert not reflector.cell.value.refused


async def test_after_watches_that_brought_nothing_the_list_is_read_anew_and_as_of_now() -> None:
    watches: list[Any] = [[seen("BOOKMARK", version="7")], [], [], []]
    script, reflector = await reflected(listed("5", item("a", 1)), *watches, listed("2", item("b", 2)), [])

    assert reflector.cell.value.objects == {"b": 2}
    assert [it.get("resourceVersion") for it in script.asked] == ["0", "5", "7", "7", "7", None, "2"]


async def test_after_an_outage_it_goes_on_from_where_it_was_however_long_that_took() -> None:
    outage = [AWAY] * (2 * MISSES)
    script, _ = await reflected(listed("5"), [seen("BOOKMARK", version="7")], *outage, [])

    assert [it.get("resourceVersion") for it in script.asked] == ["0", "5", *["7"] * len(outage), "7"]


async def test_the_first_list_is_what_the_server_has_in_memory_and_one_after_gone_is_as_of_now() -> None:
    script, _ = await reflected(AWAY, listed("5"), GONE, listed("8"), [])

    assert [it.get("resourceVersion") for it in script.asked] == ["0", "0", "5", None, "8"]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"metadata": []},
        {"metadata": {"resourceVersion": 5}},
        {**listed("5"), "items": {"a": 1}},
        listed("5", 7),
    ],
)
async def test_an_answer_that_is_no_list_is_a_server_away(answer: Any) -> None:
    _, reflector = await reflected(answer)

    assert not reflector.cell.value.synced
    assert reflector.cell.value.error.startswith("the API server sent")


async def test_an_empty_list_may_come_without_items() -> None:
    _, reflector = await reflected({"metadata": {"resourceVersion": "5"}, "items": None})

    assert reflector.cell.value == MirroredObjects({}, synced=True)


async def test_it_is_cancelled_with_its_watch_closed() -> None:
    script = Script(listed("5"), [asyncio.Event()])
    reflector = following(script)
    task = asyncio.create_task(reflector.run())
    await reflector.cell.until(MirroredObjects({}, synced=True))
    await script.opened.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not script.open


@pytest.mark.parametrize(
    "message", [seen("BOOKMARK"), seen("ODD", "b"), seen("MODIFIED", "a", 1, "9"), seen("DELETED", "b")]
)
def test_what_changes_nothing_wakes_nobody(message: WatchMessage) -> None:
    objects = {"a": 1}

    assert after(objects, message, value_of) is objects


names = st.sampled_from("abc")
messages = st.lists(
    st.builds(seen, st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]), names, st.integers(-1, 2))
)


@given(messages)
def test_what_a_watch_told_is_what_a_list_would_have(told: list[WatchMessage]) -> None:
    objects: Mapping[str, int] = {}
    there: dict[str, Object] = {}
    for message in told:
        objects = after(objects, message, value_of)
        name = message.object["metadata"]["name"]
        if message.kind == "DELETED":
            there.pop(name, None)
        elif message.kind != "BOOKMARK":
            there[name] = message.object

    assert objects == kept(there.values(), value_of)

"""Annotations of vendors on the Node: as they are wanted, theirs alone, and gone with what wanted them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kubelet.fakes import eventually

from agent.cluster.annotated import patch
from agent.cluster.annotations import AnnotationWriter
from agent.cluster.errors import ApiAway, Forbidden
from agent.cluster.node import ANNOTATED, OwnNode, own_node, path
from agent.core.annotations import Annotated
from agent.core.cell import Cell
from agent.core.pauses import Pauses

from .fakes import FakeApi

NODE = path("n")
KEY, MORE = "acme.com/devices", "acme.com/more"
THEIRS = {"other.com/x": "1", "xpu-agent.io/labels": "acme.com/count"}


def changes(there: Mapping[str, str], wanted: Annotated) -> Mapping[str, Any] | None:
    found = patch(there, wanted)
    return None if found is None else found["metadata"]["annotations"]


ONE = Annotated({KEY: "1"})
OURS = {KEY: "1", ANNOTATED: KEY}


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        pytest.param(THEIRS, ONE, OURS, id="it is not there"),
        pytest.param({**THEIRS, **OURS}, ONE, None, id="it is there"),
        pytest.param({**THEIRS, **OURS, KEY: "0"}, ONE, OURS, id="it has another text"),
        pytest.param({KEY: "1"}, ONE, {ANNOTATED: KEY}, id="another program wrote the same"),
        pytest.param(OURS, Annotated({KEY: None}), {KEY: None, ANNOTATED: None}, id="it shall not be there"),
        pytest.param({KEY: "0"}, Annotated({KEY: None}), {KEY: None, ANNOTATED: None}, id="nor theirs"),
        pytest.param(THEIRS, Annotated({KEY: None}), None, id="it is not there and shall not be"),
        pytest.param({**THEIRS, **OURS}, Annotated(), {KEY: None, ANNOTATED: None}, id="its vendor left"),
        pytest.param({KEY: "0"}, Annotated(), None, id="nobody of ours wrote it"),
        pytest.param(OURS, Annotated({}, frozenset({KEY})), None, id="its vendor has not spoken"),
        pytest.param(
            OURS,
            Annotated({MORE: "2"}, frozenset({KEY})),
            {MORE: "2", ANNOTATED: f"{KEY},{MORE}"},
            id="one has not spoken and another has",
        ),
        pytest.param({ANNOTATED: KEY}, Annotated(), {ANNOTATED: None}, id="somebody removed it"),
        pytest.param(
            {ANNOTATED: "a b,node.kubernetes.io/x,xpu-agent.io/labels,plain", "node.kubernetes.io/x": "1"},
            Annotated(),
            {ANNOTATED: None},
            id="what it names can be no vendor's",
        ),
    ],
)
def test_only_what_differs_is_written_and_nobody_elses_is_touched(
    there: Mapping[str, str], wanted: Annotated, expected: Mapping[str, Any] | None
) -> None:
    assert changes(there, wanted) == expected


class Here:
    """A Node at a fake API server, the cells that a writer follows, and the writer."""

    def __init__(self, wanted: Annotated | None, **there: str) -> None:
        self.api = FakeApi()
        self.put({**THEIRS, **there})
        self.wanted = Cell(wanted)
        self.node: Cell[OwnNode | None] = Cell(None)
        self.writer = AnnotationWriter(
            self.api, "n", self.wanted, self.node, pauses=Pauses(0.001, 0.004), between=0.001, every=3600.0
        )
        self.see()

    def put(self, annotations: Mapping[str, str]) -> None:
        self.api.put_object(NODE, {"metadata": {"name": "n", "annotations": dict(annotations)}})

    def see(self) -> None:
        """Let the watch tell of the Node as it is."""
        self.node.set(own_node(self.api.objects[NODE]))

    @property
    def annotations(self) -> dict[str, str]:
        """Without those of others."""
        found: Mapping[str, str] = self.api.objects[NODE]["metadata"]["annotations"]
        assert found.items() >= THEIRS.items()
        return {key: it for key, it in found.items() if key not in THEIRS}

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.writer.run(Cell(0)))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_node_follows_what_is_wanted_and_keeps_it_after_the_end() -> None:
    here = Here(ONE)
    async with here.runs():
        await eventually(lambda: here.annotations == OURS)
        here.see()
        here.wanted.set(Annotated({KEY: "2"}))
        await eventually(lambda: here.annotations == {**OURS, KEY: "2"})
        here.wanted.set(Annotated({KEY: None}))
        await eventually(lambda: here.annotations == {})
        here.wanted.set(ONE)
        await eventually(lambda: here.annotations == OURS)

    assert here.annotations == OURS
    assert here.writer.writes == 4


async def test_what_somebody_changes_is_written_again() -> None:
    here = Here(ONE)
    async with here.runs():
        await eventually(lambda: here.annotations == OURS)

        here.put({**THEIRS, **OURS, KEY: "theirs"})
        here.see()

        await eventually(lambda: here.annotations == OURS)


@pytest.mark.parametrize("wanted", [None, Annotated()])
async def test_a_node_of_which_nothing_is_wanted_is_not_asked_for(wanted: Annotated | None) -> None:
    here = Here(wanted, **{KEY: "theirs"})

    await here.writer.once()

    assert here.api.calls == []


async def test_a_node_as_it_should_be_is_read_once_and_not_written() -> None:
    here = Here(ONE, **OURS)

    await here.writer.once()
    await here.writer.once()

    assert here.api.verbs() == ["get"]


async def test_before_the_node_is_seen_nothing_is_written() -> None:
    here = Here(ONE)
    here.node.set(None)

    await here.writer.once()

    assert here.api.calls == []


async def test_a_watch_that_lags_behind_writes_nothing_twice() -> None:
    here = Here(ONE)
    await here.writer.once()

    await here.writer.once()

    assert here.writer.writes == 1
    assert here.api.verbs().count("patch") == 1


async def test_a_server_that_is_away_or_refuses_is_told_and_asked_again() -> None:
    here = Here(ONE)
    here.api.fails = [ApiAway("gone"), None, Forbidden(403, "Forbidden", "no patch")]
    async with here.runs():
        await eventually(lambda: here.annotations == OURS)
    assert here.writer.error == ""

    here.wanted.set(Annotated({KEY: "2"}))
    here.api.refuses = {"patch": Forbidden(403, "Forbidden", "no patch")}
    await here.writer.once()
    assert "no patch" in here.writer.error


async def test_uninstalling_removes_what_an_agent_wrote_and_nothing_else() -> None:
    here = Here(None, **OURS, **{MORE: "theirs"})

    assert await AnnotationWriter.remove(here.api, "n")
    assert here.annotations == {MORE: "theirs"}
    assert not await AnnotationWriter.remove(here.api, "n")

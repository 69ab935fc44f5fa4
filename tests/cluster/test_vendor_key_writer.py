"""What vendors want on the Node under keys of their own: as wanted, and nothing of others."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.waiting import eventually

from agent.cluster.api_errors import ApiAway, Forbidden
from agent.cluster.extended_resource_writer import EXTENDED, ExtendedWriter
from agent.cluster.node_annotation_writer import AnnotationWriter
from agent.cluster.own_node import ANNOTATED, OwnNode, own_node, path
from agent.cluster.vendor_key_writer import OwnedWriter
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.publishing.vendor_key_rules import WantedKeys

from .fakes import FakeApi

NODE = path("n")


class Sort(ABC):
    """Values of one sort on a Node, beside those of others."""

    writer: type[OwnedWriter[Any]]
    record: str
    #: Keys of the vendor's, and two values of the first.
    key: str
    more: str
    one: Any
    two: Any

    @abstractmethod
    def node(self, values: Mapping[str, object]) -> dict[str, Any]:
        """The Node with these values beside those of others, and no record."""

    @abstractmethod
    def values(self, node: Mapping[str, Any]) -> Mapping[str, str]:
        """Those of the Node without those of others, which are as they were."""


class Annotations(Sort):
    writer = AnnotationWriter
    record = ANNOTATED
    key, more, one, two = "acme.com/devices", "acme.com/more", "1", "2"
    others: Mapping[str, str] = {"other.com/x": "1", "xpu-agent.io/labels": "acme.com/count"}

    def node(self, values: Mapping[str, object]) -> dict[str, Any]:
        its = {key: str(it) for key, it in values.items()}
        return {"metadata": {"name": "n", "annotations": {**self.others, **its}}}

    def values(self, node: Mapping[str, Any]) -> Mapping[str, str]:
        found: Mapping[str, str] = node["metadata"]["annotations"]
        assert found.items() >= self.others.items()
        return {key: it for key, it in found.items() if key not in self.others and key != self.record}


class ExtendedResources(Sort):
    writer = ExtendedWriter
    record = EXTENDED
    key, more, one, two = "acme.com/card-count", "acme.com/board-count", 8, 7
    others: Mapping[str, str] = {"cpu": "8", "acme.com/card": "2"}

    def node(self, values: Mapping[str, object]) -> dict[str, Any]:
        its = {**self.others, **{key: str(it) for key, it in values.items()}}
        metadata = {"name": "n", "annotations": {}}
        return {"metadata": metadata, "status": {"capacity": its, "allocatable": dict(its)}}

    def values(self, node: Mapping[str, Any]) -> Mapping[str, str]:
        status = node["status"]
        assert status["capacity"] == status["allocatable"]
        assert status["capacity"].items() >= self.others.items()
        return {key: it for key, it in status["capacity"].items() if key not in self.others}


SORTS = [Annotations(), ExtendedResources()]


class Here:
    """A Node at a fake API server, the cells that a writer follows, and the writer."""

    def __init__(self, sort: Sort, wanted: WantedKeys[Any] | None, ours: str = "", **there: Any) -> None:
        """`ours`: what an agent recorded; `there`: `key` and `more` as they stand on the Node."""
        self.sort = sort
        self.api = FakeApi()
        self.put(ours, **there)
        self.wanted = Cell(wanted)
        self.node: Cell[OwnNode | None] = Cell(None)
        self.writer = sort.writer(
            self.api, "n", self.wanted, self.node, pauses=Pauses(0.001, 0.004), between=0.001, every=3600.0
        )
        self.see()

    def put(self, ours: str = "", **there: Any) -> None:
        node = self.sort.node({getattr(self.sort, name): it for name, it in there.items()})
        if ours:
            node["metadata"]["annotations"][self.sort.record] = ours
        self.api.put_object(NODE, node)

    def see(self) -> None:
        """Let the watch tell of the Node as it is."""
        self.node.set(own_node(self.api.objects[NODE]))

    @property
    def values(self) -> Mapping[str, str]:
        return self.sort.values(self.api.objects[NODE])

    @property
    def recorded(self) -> str | None:
        found: str | None = self.api.objects[NODE]["metadata"]["annotations"].get(self.sort.record)
        return found

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.writer.run(Cell(0)))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(params=SORTS, ids=lambda it: type(it).__name__)
def sort(request: pytest.FixtureRequest) -> Sort:
    found: Sort = request.param
    return found


async def test_the_node_follows_what_is_wanted_and_keeps_it_after_the_end(sort: Sort) -> None:
    here = Here(sort, WantedKeys({sort.key: sort.one}))
    async with here.runs():
        await eventually(lambda: here.values == {sort.key: str(sort.one)})
        await eventually(lambda: here.recorded == sort.key)
        here.see()
        here.wanted.set(WantedKeys({sort.key: sort.two}))
        await eventually(lambda: here.values == {sort.key: str(sort.two)})
        here.see()
        here.wanted.set(WantedKeys({sort.key: None}))
        await eventually(lambda: here.values == {})
        await eventually(lambda: here.recorded is None)
        here.see()
        here.wanted.set(WantedKeys({sort.key: sort.one}))
        await eventually(lambda: here.writer.writes == 4)

    assert here.values == {sort.key: str(sort.one)}
    assert here.recorded == sort.key


async def test_what_somebody_changes_is_written_again(sort: Sort) -> None:
    """Or the kubelet, which sets the count of a resource without device plugin to 0."""
    here = Here(sort, WantedKeys({sort.key: sort.one}))
    async with here.runs():
        await eventually(lambda: here.values == {sort.key: str(sort.one)})
        here.see()

        here.put(sort.key, key=0)
        here.see()

        await eventually(lambda: here.values == {sort.key: str(sort.one)})


async def test_uninstalling_removes_what_an_agent_wrote_and_nothing_else(sort: Sort) -> None:
    here = Here(sort, None, sort.key, key=sort.one, more=sort.two)

    assert await sort.writer.remove(here.api, "n")

    assert here.values == {sort.more: str(sort.two)}
    assert here.recorded is None
    assert not await sort.writer.remove(here.api, "n")


async def test_a_node_as_it_should_be_is_read_once_and_not_written(sort: Sort) -> None:
    here = Here(sort, WantedKeys({sort.key: sort.one}), sort.key, key=sort.one)

    await here.writer.once()
    await here.writer.once()

    assert here.api.verbs() == ["get"]


# What is the same of every sort


ONE = SORTS[0]
WANTED = WantedKeys({ONE.key: ONE.one})


@pytest.mark.parametrize("wanted", [None, WantedKeys()])
async def test_a_node_of_which_nothing_is_wanted_is_not_asked_for(wanted: WantedKeys[Any] | None) -> None:
    here = Here(ONE, wanted, key=ONE.one)

    await here.writer.once()

    assert here.api.calls == []


async def test_before_the_node_is_seen_nothing_is_written() -> None:
    here = Here(ONE, WANTED)
    here.node.set(None)

    await here.writer.once()

    assert here.api.calls == []


async def test_a_watch_that_lags_behind_writes_nothing_twice() -> None:
    here = Here(ONE, WANTED)
    await here.writer.once()

    await here.writer.once()

    assert here.writer.writes == 1
    assert here.api.verbs().count("patch") == 1


async def test_a_server_that_is_away_or_refuses_is_told_and_asked_again() -> None:
    here = Here(ONE, WANTED)
    here.api.fails = [ApiAway("gone"), None, Forbidden(403, "Forbidden", "no patch")]
    async with here.runs():
        await eventually(lambda: here.values == {ONE.key: str(ONE.one)})
        await eventually(lambda: here.writer.error == "")

    here.wanted.set(WantedKeys({ONE.key: ONE.two}))
    here.api.refuses = {"patch": Forbidden(403, "Forbidden", "no patch")}
    await here.writer.once()
    assert "no patch" in here.writer.error

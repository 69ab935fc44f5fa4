"""Extended resources of vendors in the Node's status: which patches make them as they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agent.cluster.api_errors import Forbidden
from agent.cluster.extended_resource_writer import EXTENDED, ExtendedWriter, patches
from agent.cluster.own_node import OwnNode, own_node, path
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.publishing.extended_resource_rules import Extended

from .fakes import FakeApi

NODE = path("n")
NAME, MORE = "acme.com/card-count", "acme.com/board-count"
KUBELETS = {"cpu": "8", "acme.com/card": "2"}


def node(counts: Mapping[str, int], ours: str = "", allocatable: Mapping[str, int] | None = None) -> OwnNode:
    can = counts if allocatable is None else allocatable
    return OwnNode("n", annotations={EXTENDED: ours} if ours else {}, capacity=counts, allocatable=can)


def both(**counts: str | None) -> Mapping[str, Any]:
    its = {f"acme.com/{key.replace('_', '-')}": count for key, count in counts.items()}
    return {"status": {"capacity": its, "allocatable": its}}


def record(names: str | None) -> Mapping[str, Any]:
    return {"metadata": {"annotations": {EXTENDED: names}}}


EIGHT = Extended({NAME: 8})
AWAITED = Extended({}, frozenset({NAME}))


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        pytest.param(node({}), EIGHT, {**both(card_count="8"), **record(NAME)}, id="it is not there"),
        pytest.param(node({NAME: 8}, NAME), EIGHT, None, id="it is there"),
        pytest.param(node({NAME: 0}, NAME), EIGHT, both(card_count="8"), id="the kubelet set it to 0"),
        pytest.param(
            node({NAME: 8}, NAME, {}),
            EIGHT,
            {"status": {"allocatable": {NAME: "8"}}},
            id="the kubelet has not made allocatable of it",
        ),
        pytest.param(node({NAME: 8}), EIGHT, record(NAME), id="another program wrote the same"),
        pytest.param(
            node({NAME: 8}, NAME),
            Extended({NAME: None}),
            {**both(card_count=None), **record(None)},
            id="it shall not be there",
        ),
        pytest.param(node({NAME: 8}), Extended({NAME: None}), None, id="nobody of ours wrote it"),
        pytest.param(
            node({NAME: 8}, NAME), Extended(), {**both(card_count=None), **record(None)}, id="its vendor left"
        ),
        pytest.param(node({NAME: 8}, NAME), AWAITED, None, id="its vendor has not spoken"),
        pytest.param(
            node({NAME: 8}, NAME),
            Extended({MORE: 1}, frozenset({NAME})),
            {**both(board_count="1"), **record(f"{MORE},{NAME}")},
            id="one has not spoken and another has",
        ),
        pytest.param(node({}, NAME), Extended(), record(None), id="somebody removed it"),
        pytest.param(
            node({"a.kubernetes.io/x": 1}, "cpu,a.kubernetes.io/x,xpu-agent.io/x"),
            Extended(),
            record(None),
            id="what it names can be no vendor's",
        ),
    ],
)
def test_only_what_differs_is_written_and_nobody_elses_is_touched(
    there: OwnNode, wanted: Extended, expected: Mapping[str, Any] | None
) -> None:
    assert patches(there, wanted) == ([expected] if expected else [])


OLD, NEW = node({NAME: 8}, NAME), Extended({MORE: 1})


def test_what_is_wanted_comes_first_and_what_is_to_go_by_itself() -> None:
    first, last = patches(OLD, NEW)

    assert first == {**both(board_count="1"), **record(f"{MORE},{NAME}")}
    assert last == {**both(card_count=None), **record(MORE)}


def test_what_is_there_already_and_what_was_removed_by_another_leave_one_patch() -> None:
    there = node({NAME: 8, MORE: 1}, f"{MORE},{NAME}")

    assert patches(there, NEW) == [{**both(card_count=None), **record(MORE)}]
    assert patches(node({MORE: 1}, f"{MORE},{NAME}"), NEW) == [record(MORE)]


class Here:
    """A Node at a fake API server, whose status is patched by a path of its own, and the writer."""

    def __init__(self, wanted: Extended | None, ours: str = "", **counts: str) -> None:
        self.api = FakeApi()
        self.put(ours, counts)
        self.wanted = Cell(wanted)
        self.node: Cell[OwnNode | None] = Cell(None)
        self.writer = ExtendedWriter(
            self.api, "n", self.wanted, self.node, pauses=Pauses(0.001, 0.004), between=0.001, every=3600.0
        )
        self.see()

    def put(self, ours: str, counts: Mapping[str, str]) -> None:
        its = {**KUBELETS, **{f"acme.com/{key.replace('_', '-')}": it for key, it in counts.items()}}
        metadata = {"name": "n", "annotations": {EXTENDED: ours} if ours else {}}
        self.api.put_object(NODE, {"metadata": metadata, "status": {"capacity": its, "allocatable": its}})

    def see(self) -> None:
        """Let the watch tell of the Node as it is."""
        self.node.set(own_node(self.api.objects[NODE]))

    @property
    def counts(self) -> Mapping[str, str]:
        """Beside those of the kubelet."""
        status = self.api.objects[NODE]["status"]
        assert status["capacity"] == status["allocatable"]
        assert status["capacity"].items() >= KUBELETS.items()
        return {key: it for key, it in status["capacity"].items() if key not in KUBELETS}


async def test_a_name_that_may_not_be_removed_holds_up_none_that_is_wanted() -> None:
    """As the chart's admission policy does once its nodeStatus.resources has the old name no more."""
    here = Here(EIGHT, NAME, card_count="8")
    here.wanted.set(NEW)
    here.api.fails = [None, None, Forbidden(403, "Forbidden", "no such name")]

    await here.writer.once()

    assert here.counts == {NAME: "8", MORE: "1"}
    assert {at for verb, at in here.api.calls if verb == "patch"} == {f"{NODE}/status"}
    assert "no such name" in here.writer.error
    assert here.writer.writes == 1

    here.see()
    await here.writer.once()
    assert here.counts == {MORE: "1"}
    assert here.writer.error == ""
    assert here.api.objects[NODE]["metadata"]["annotations"][EXTENDED] == MORE

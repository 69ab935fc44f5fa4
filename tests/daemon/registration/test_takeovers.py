"""How another plugin on a resource of ours shows in the kubelet's checkpoint, and what does not show one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from agent.core.cell import Cell
from agent.core.model import AdvertisedDevice, IdRange, Plan, Resource
from agent.daemon.allocation.allocator import ALLOCATION
from agent.daemon.registration.takeovers import REMEMBERED, Strangers
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint
from agent.kubelet.kubelet_errors import KubeletError
from agent.vendor_api.agent import ContainerEdits, ResourceRule

XPU = "example.com/xpu"
OURS = {ALLOCATION: "a1"}
THEIRS = {"other/plugin": "it"}


def listing(*uuids: str, count: int | None = None) -> Resource:
    cards = tuple(AdvertisedDevice(uuid, IdRange(uuid, count), healthy=True) for uuid in uuids)
    return Resource(XPU, "acme", ResourceRule(XPU), "distributed", cards)


def entry(pod: str, annotations: dict[str, str], *ids: str, resource: str = XPU) -> CheckpointEntry:
    return CheckpointEntry(pod, "main", resource, ids or ("a",), ContainerEdits(annotations=annotations))


@dataclass
class Node:
    """What the kubelet's checkpoint says, and what we serve."""

    entries: Sequence[CheckpointEntry] = ()
    ids: tuple[str, ...] = ("a", "b")
    served: tuple[str, ...] = (XPU,)
    unreadable: bool = False
    missing: bool = False
    told: list[Mapping[str, bool]] = field(default_factory=list)
    plan: Cell[Plan] = field(default_factory=lambda: Cell[Plan]({XPU: listing("a", "b")}))

    def __post_init__(self) -> None:
        self.strangers = Strangers(
            self.read,
            self.plan,
            lambda: self.served,
            self.told.append,
            sure=0.0,
        )

    def read(self) -> KubeletCheckpoint | None:
        if self.unreadable:
            raise KubeletError("torn")
        return None if self.missing else KubeletCheckpoint(tuple(self.entries), {XPU: self.ids})

    async def lists(self, *ids: str) -> None:
        """Let the kubelet have this list."""
        self.ids = ids
        await self.strangers.act()

    async def shows(self) -> bool:
        found = await self.strangers.look()
        assert found.keys() <= {XPU}
        return bool(found)


@pytest.fixture
async def node() -> Node:
    """One at which we have looked already, and found nobody else."""
    node = Node()
    assert not await node.shows()
    return node


async def test_our_answers_and_our_ids_show_nobody(node: Node) -> None:
    node.entries = [entry("web", OURS)]

    assert not await node.shows()


async def test_an_answer_without_our_mark_shows_a_stranger_for_as_long_as_its_pod_is_there(
    node: Node,
) -> None:
    node.entries = [entry("web", OURS), entry("db", THEIRS)]

    assert "pod with uid db" in (await node.strangers.look())[XPU]
    assert await node.shows()
    node.entries = [entry("web", OURS)]
    assert not await node.shows()


async def test_ids_that_we_never_listed_show_a_stranger(node: Node) -> None:
    node.ids = ("a", "alien-1", "alien-0")

    assert "(alien-0, alien-1)" in (await node.strangers.look())[XPU]


async def test_the_lists_of_a_resource_that_is_not_planned_any_more_are_forgotten(node: Node) -> None:
    node.plan.set({})
    await node.strangers.look()

    node.plan.set({XPU: listing("a")})

    assert "(b)" in (await node.strangers.look())[XPU]


async def test_what_stood_there_when_we_came_shows_nobody() -> None:
    node = Node(entries=[entry("db", THEIRS)])

    assert not await node.shows()
    assert not await node.shows()


async def test_an_earlier_answer_that_went_and_comes_again_shows_a_stranger() -> None:
    node = Node(entries=[entry("db", THEIRS)])
    assert not await node.shows()
    node.entries = []
    assert not await node.shows()

    node.entries = [entry("db", THEIRS)]

    assert await node.shows()


async def test_what_was_answered_while_we_did_not_serve_the_resource_shows_nobody(node: Node) -> None:
    node.served = ()
    node.entries = [entry("db", THEIRS)]
    node.ids = ("alien",)
    assert not await node.shows()

    node.served, node.ids = (XPU,), ("a",)

    assert not await node.shows()
    node.entries = [*node.entries, entry("db", THEIRS, "b")]
    assert await node.shows()


async def test_answers_of_other_resources_show_nobody(node: Node) -> None:
    node.entries = [entry("db", THEIRS, resource="other.com/gpu")]

    assert not await node.shows()


async def test_ids_of_a_list_that_the_kubelet_had_before_show_nobody(node: Node) -> None:
    node.plan.set({XPU: listing("a", "b", count=4)})
    assert not await node.shows()

    for count in range(REMEMBERED - 2):
        node.plan.set({XPU: listing("a", count=count)})
        assert not await node.shows()
    node.ids = ("a::3", "b")
    assert not await node.shows()
    node.ids = ("a::4",)
    assert await node.shows()


async def test_a_file_that_can_not_be_read_changes_nothing(node: Node) -> None:
    node.unreadable = True

    assert not await node.shows()


async def test_without_a_file_nobody_shows_and_whoever_answers_next_is_a_stranger() -> None:
    node = Node(missing=True)
    assert not await node.shows()

    node.missing = False
    node.entries = [entry("db", THEIRS)]

    assert await node.shows()


async def test_what_is_seen_once_and_not_again_is_not_told(node: Node) -> None:
    looks = 0

    def read() -> KubeletCheckpoint:
        nonlocal looks
        looks += 1
        ids = ("alien",) if looks == 2 else ("a",)
        return KubeletCheckpoint((), {XPU: ids})

    strangers = Strangers(read, node.plan, lambda: [XPU], node.told.append, sure=0.0)
    found = [await strangers.checked() for _ in range(3)]

    assert found == [{}, {}, {}]
    assert looks == 4


async def test_whose_list_the_kubelet_has_is_told_at_each_look(node: Node) -> None:
    await node.lists("a", "b")
    await node.lists("alien")
    await node.lists("a", "alien")
    await node.lists("a")

    assert node.told == [{XPU: True}, {XPU: False}, {XPU: False}, {XPU: True}]


async def test_our_list_is_ours_though_a_pod_of_another_plugin_is_still_there(node: Node) -> None:
    node.entries = [entry("db", THEIRS)]

    await node.lists("a", "b")

    assert node.strangers.found
    assert node.told == [{XPU: True}]


async def test_of_a_resource_that_we_do_not_serve_now_no_list_is_told(node: Node) -> None:
    node.served = ()

    await node.lists("alien")

    assert node.told == [{}]


async def test_a_list_that_is_another_s_at_one_of_two_looks_is_nobody_s(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checked() -> Mapping[str, str]:
        await node.strangers.look()
        return {}

    monkeypatch.setattr(node.strangers, "checked", checked)

    await node.lists("alien")

    assert node.told == [{}]

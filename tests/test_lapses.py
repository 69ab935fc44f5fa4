"""When a resource that we serve is registered again because the kubelet takes its devices for dead."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from agent.kubelet.errors import KubeletError
from agent.lapses import IN_VAIN, Lapses

XPU, GPU = "example.com/xpu", "example.com/gpu"
#: What the kubelet lists at one look after the other; the last one stays. None: it can not be asked.
Listed = Sequence[Collection[str] | None]


@dataclass
class Node:
    """What we offer, what the kubelet lists, and what was registered again."""

    listed: Listed = ((XPU,),)
    offered: dict[str, int] = field(default_factory=lambda: {XPU: 1})
    registers: bool = False  # a new registration makes a new number
    now: float = 0.0
    asked: int = 0
    renewed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lapses = Lapses(
            lambda: dict(self.offered), self.allocatable, self.renewed.append, sure=0, clock=lambda: self.now
        )

    async def allocatable(self, names: Collection[str]) -> Collection[str]:
        found = self.listed[min(self.asked, len(self.listed) - 1)]
        self.asked += 1
        if self.registers:
            self.offered = {name: number + 1 for name, number in self.offered.items()}
        if found is None:
            raise KubeletError("no such call")
        return {*names} & {*found}


@pytest.mark.parametrize(
    ("listed", "renewed"),
    [
        ([[XPU]], []),
        ([[]], [XPU]),
        ([[GPU]], [XPU]),
        ([[], [XPU]], []),
        ([[], None], []),
        ([None], []),
    ],
    ids=["listed", "nothing", "another", "listed-a-moment-later", "away-a-moment-later", "away"],
)
async def test_what_is_offered_and_twice_not_listed_is_registered_again(
    listed: Listed, renewed: list[str]
) -> None:
    node = Node(listed)

    await node.lapses.look()

    assert node.renewed == renewed


async def test_of_several_resources_those_are_registered_again_that_are_not_listed() -> None:
    node = Node([[GPU]], {GPU: 1, XPU: 1})

    await node.lapses.look()

    assert node.renewed == [XPU]


async def test_the_kubelet_is_not_asked_where_nothing_healthy_was_offered() -> None:
    node = Node([[]], {})

    await node.lapses.look()

    assert (node.asked, node.renewed) == (0, [])


async def test_a_registration_that_is_younger_than_the_first_look_is_left_alone() -> None:
    node = Node([[]], registers=True)

    await node.lapses.look()

    assert node.renewed == []


async def test_what_is_not_listed_after_that_either_is_registered_again_seldom() -> None:
    node = Node([[]])
    for _ in range(3):
        await node.lapses.look()
    assert node.renewed == [XPU]

    node.now = IN_VAIN
    await node.lapses.look()

    assert node.renewed == [XPU, XPU]


async def test_what_was_listed_since_may_lapse_again_at_once() -> None:
    node = Node([[], [], [XPU], []])

    for _ in range(3):
        await node.lapses.look()

    assert node.renewed == [XPU, XPU]

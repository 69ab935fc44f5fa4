"""Where it is looked for registrations that the kubelet may ask nobody for, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import anyio
import pytest
from support.waiting import eventually

from agent.core.cell import Cell
from agent.core.registration.renewal_rules import Registration
from agent.daemon.registration.other_device_plugins import ServedSockets
from agent.daemon.registration.renewals import Renewals
from agent.daemon.registration.sessions import Sessions
from agent.kubelet.kubelet_directory import FileIdentity, OtherSocket
from agent.kubelet.kubelet_errors import KubeletError
from agent.kubelet.kubelet_view import KubeletView

XPU, GPU = "example.com/xpu", "example.com/gpu"
BOB, EVE = (OtherSocket(name, FileIdentity(1, n, 1)) for n, name in enumerate(["bob.sock", "eve.sock"]))
NEVER = 3600.0


@dataclass
class Node:
    """What we have registered, what the kubelet lists, who else is there, and what was registered again."""

    its: dict[str, Registration] = field(default_factory=lambda: {XPU: Registration(1, 1)})
    #: What the kubelet lists at one look after the other; the last one stays. None: it cannot be asked.
    listed: Sequence[Collection[str] | None] = ((XPU, GPU),)
    #: What happens while the kubelet is asked.
    meanwhile: Callable[[], None] = lambda: None
    other_sockets: Cell[frozenset[OtherSocket]] = field(
        default_factory=lambda: Cell(frozenset[OtherSocket]())
    )
    #: Sockets at which nobody listens, and those that were tried.
    dead: set[OtherSocket] = field(default_factory=set)
    tried: list[OtherSocket] = field(default_factory=list)
    asked: list[Collection[str]] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    planned: list[str] = field(default_factory=lambda: [XPU, GPU])
    again: float = 0.0

    def __post_init__(self) -> None:
        kubelet = cast("KubeletView", self)
        sockets = ServedSockets(kubelet)
        self.renewals = Renewals(cast("Sessions", self), kubelet, sockets, every=NEVER, again=self.again)

    @property
    def statuses(self) -> list[str]:
        return self.planned

    def registrations(self) -> Mapping[str, Registration]:
        return dict(self.its)

    def renew(self, resource: str) -> None:
        self.renewed.append(resource)

    async def allocatable(self, names: Collection[str]) -> Collection[str]:
        found = self.listed[min(len(self.asked), len(self.listed) - 1)]
        self.asked.append([*names])
        self.meanwhile()
        if found is None:
            raise KubeletError("no such call")
        return {*names} & {*found}

    def is_served(self, it: OtherSocket) -> bool:
        self.tried.append(it)
        return it not in self.dead

    def sends(self, name: str = XPU) -> None:
        before = self.its[name]
        self.its[name] = Registration(before.number, before.lists + 1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.renewals.run())
        with anyio.fail_after(30):
            await anyio.wait_all_tasks_blocked()
            yield
        task.cancel()
        await asyncio.wait([task])


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
    listed: Sequence[Collection[str] | None], renewed: list[str]
) -> None:
    node = Node(listed=listed)

    await node.renewals.look()

    assert node.renewed == renewed


async def test_of_several_resources_those_are_registered_again_that_are_not_listed() -> None:
    node = Node({GPU: Registration(1), XPU: Registration(1)}, [[GPU]])

    await node.renewals.look()

    assert node.renewed == [XPU]


async def test_the_kubelet_is_asked_for_what_it_was_told_a_healthy_device_of_alone() -> None:
    node = Node({GPU: Registration(1), XPU: Registration(1, offers=False)}, [[]])
    await node.renewals.look()
    node.its = {XPU: Registration(1, offers=False)}
    await node.renewals.look()

    assert (node.asked, node.renewed) == ([[GPU], [GPU]], [GPU])


async def test_a_registration_that_is_younger_than_the_first_look_is_left_alone() -> None:
    node = Node(listed=[[]])
    node.meanwhile = lambda: node.its.update({XPU: Registration(len(node.asked) + 1)})

    await node.renewals.look()

    assert node.renewed == []


async def test_a_list_that_goes_out_while_the_kubelet_is_asked_makes_the_look_worth_nothing() -> None:
    node = Node()
    node.other_sockets.set(frozenset({BOB}))
    await node.renewals.look()
    node.other_sockets.set(frozenset())
    node.meanwhile = node.sends
    await node.renewals.look()
    assert node.renewed == []

    node.meanwhile = lambda: None
    await node.renewals.look()

    assert node.renewed == [XPU]


async def test_a_plugin_that_comes_while_the_kubelet_is_asked_has_not_gone() -> None:
    node = Node()
    await node.renewals.look()
    node.sends()
    async with node.running():

        async def comes(names: Collection[str]) -> Collection[str]:
            node.other_sockets.set(frozenset({BOB}))
            await eventually(lambda: BOB in node.tried)  # it was taken in
            return names

        node.allocatable = comes  # type: ignore[method-assign]
        await node.renewals.look()

    assert node.renewed == []


async def test_a_plugin_that_was_just_missed_is_looked_for_again_before_it_has_gone() -> None:
    node = Node(again=0.01)
    node.other_sockets.set(frozenset({BOB}))
    await node.renewals.look()

    node.other_sockets.set(frozenset())
    node.sends()
    await node.renewals.look()

    assert len(node.asked) >= 3  # there, missed, gone
    assert node.renewed == [XPU]


async def test_of_a_resource_that_is_not_planned_any_more_nothing_is_remembered() -> None:
    node = Node({XPU: Registration(1), GPU: Registration(2)})
    await node.renewals.look()
    node.planned, node.its = [GPU], {GPU: Registration(2)}

    await node.renewals.look()

    assert node.renewals._known.keys() == {GPU}


async def test_of_a_planned_resource_without_a_registration_it_is_remembered_that_it_was_made_in_vain() -> (
    None
):
    node = Node(listed=[[]])
    await node.renewals.look()
    node.its = {}
    await node.renewals.look()
    node.its = {XPU: Registration(2)}
    await node.renewals.look()

    assert node.renewed == [XPU]


async def test_a_socket_that_nobody_serves_any_more_is_a_plugin_that_has_gone() -> None:
    node = Node()
    node.other_sockets.set(frozenset({BOB, EVE}))
    node.dead = {EVE}
    await node.renewals.look()

    node.dead = {BOB, EVE}
    node.sends()
    await node.renewals.look()

    assert node.renewed == [XPU]


async def test_a_socket_that_nobody_ever_served_is_nobody() -> None:
    node = Node()
    node.dead = {EVE}
    node.other_sockets.set(frozenset({EVE}))
    for _ in range(3):
        await node.renewals.look()
        node.sends()

    assert node.renewed == []


async def test_a_plugin_is_knocked_at_once_and_again_after_a_list_of_ours_alone() -> None:
    node = Node()
    node.other_sockets.set(frozenset({BOB}))
    for _ in range(3):
        await node.renewals.look()
    assert node.tried == [BOB]

    node.sends()
    await node.renewals.look()
    await node.renewals.look()

    assert node.tried == [BOB, BOB]


async def test_a_plugin_that_is_there_when_we_register_was_there() -> None:
    node = Node()
    node.other_sockets.set(frozenset({BOB}))
    await node.renewals.look()
    node.its = {XPU: Registration(2, 5)}
    node.renewals.in_force({XPU: True})

    node.other_sockets.set(frozenset())
    node.sends()
    await node.renewals.look()

    assert node.renewed == [XPU]


async def test_the_kubelet_is_asked_once_where_all_is_well() -> None:
    node = Node()

    await node.renewals.look()

    assert node.asked == [[XPU]]


async def test_a_plugin_that_comes_and_goes_between_two_looks_was_there() -> None:
    node = Node()
    async with node.running():
        node.other_sockets.set(frozenset({BOB}))
        await eventually(lambda: node.tried)
        node.sends()
        node.other_sockets.set(frozenset())

        await eventually(lambda: node.renewed == [XPU])


async def test_it_is_looked_at_once_where_a_plugin_goes() -> None:
    node = Node(listed=[[]])
    async with node.running():
        node.other_sockets.set(frozenset({BOB}))
        await eventually(lambda: node.tried)
        assert not node.asked
        node.other_sockets.set(frozenset())

        await eventually(lambda: node.renewed == [XPU])


async def test_our_list_after_another_s_is_followed_by_one_registration() -> None:
    node = Node()
    for ours in ({XPU: True}, {XPU: False}, {}, {XPU: True}, {XPU: True}):
        node.renewals.in_force(ours)

    assert node.renewed == [XPU]


@pytest.mark.parametrize("gap", [True, False], ids=["registers-now", "registered-since"])
async def test_a_registration_since_another_s_list_is_left_alone(gap: bool) -> None:
    node = Node()
    node.renewals.in_force({XPU: False})

    if gap:
        node.its = {}
        node.renewals.in_force({XPU: True})
    node.its = {XPU: Registration(2)}
    node.renewals.in_force({XPU: True})

    assert node.renewed == []

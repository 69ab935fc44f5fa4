"""Other plugins on a vendor's cards, known by their sockets, and on our resources, seen in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from structlog.testing import capture_logs

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.cell import Cell
from agent.core.model import AdvertisedDevice, IdRange, Plan, Resource, SessionStatus
from agent.daemon.node_state import NodeState
from agent.daemon.registration.other_device_plugins import REMEMBERED, CardPlugins, Takeovers
from agent.daemon.registration.sessions import Sessions
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint
from agent.kubelet.kubelet_directory import FileIdentity, OtherSocket
from agent.kubelet.kubelet_errors import KubeletError
from agent.kubelet.kubelet_view import KubeletView
from agent.vendor_api.agent import ContainerEdits, ReplacedPlugins, ResourceRule, Vendor

VENDOR = Vendor(
    "acme",
    "acme:Backend",
    "acme.com/xpu",
    lambda devices, request: ContainerEdits(),
    replaces=ReplacedPlugins(sockets=("acme*.sock",)),
)


@dataclass
class Directory:
    """The sockets in the kubelet's directory, and which of them somebody serves."""

    other_sockets: Cell[frozenset[OtherSocket]] = field(default_factory=lambda: Cell(frozenset()))
    vendors: Mapping[str, Vendor] = field(default_factory=lambda: {"acme": VENDOR})
    served: set[str] = field(default_factory=set)
    now: float = 100.0
    yields: bool = False

    def put(self, *names: str) -> None:
        self.other_sockets.set(
            frozenset(OtherSocket(name, FileIdentity(1, n, 1)) for n, name in enumerate(names))
        )
        self.served = set(names)

    def is_served(self, other: OtherSocket) -> bool:
        return other.name in self.served

    def plugins(self) -> CardPlugins:
        return CardPlugins(
            cast("NodeState", self),
            cast("KubeletView", self),
            dict,
            lambda vendor: self.yields,
            gone_after=5.0,
            clock=lambda: self.now,
        )


def test_a_plugin_is_known_by_the_name_of_its_socket_and_named_with_what_would_help() -> None:
    directory = Directory()
    directory.put("other.sock", "acme-7.sock")

    closed = directory.plugins().closed("acme")

    assert closed == SessionStatus(
        "refused",
        "another device plugin serves cards of acme at acme-7.sock: remove it from this node, or let "
        "vendors.acme.foreign be `yield`, which leaves the cards to it",
    )


def test_where_the_config_yields_the_cards_are_left_to_it() -> None:
    directory = Directory(yields=True)
    directory.put("acme.sock")

    closed = directory.plugins().closed("acme")

    assert closed is not None
    assert (closed.state, closed.reason.rpartition(": ")[2]) == (
        "yielded",
        "the cards are left to it until it goes",
    )


def test_a_socket_that_nobody_serves_or_of_another_name_keeps_nobody_out() -> None:
    directory = Directory()
    directory.put("acme.sock", "xacme.sock", "nvidia-gpu.sock")
    directory.served = {"xacme.sock", "nvidia-gpu.sock"}

    assert directory.plugins().closed("acme") is None
    assert directory.plugins().closed("nobody") is None


def test_one_that_went_a_moment_ago_may_come_back() -> None:
    directory = Directory()
    directory.put("acme.sock")
    plugins = directory.plugins()
    assert plugins.closed("acme") is not None

    directory.put()
    directory.now += 4.9
    assert plugins.closed("acme") is not None
    directory.now += 0.2
    assert plugins.closed("acme") is None
    assert plugins.found == {}


def test_what_became_another_is_told_by_whoever_looks_first() -> None:
    directory = Directory()
    plugins = directory.plugins()
    directory.put("acme.sock")

    with capture_logs() as told:
        plugins.closed("acme")
        plugins.look()

    assert [it["event"] for it in told] == ["other device plugins"]
    assert plugins.changes.value == 1
    directory.put()
    directory.now += 5.1
    plugins.closed("acme")
    assert plugins.changes.value == 2


# On our resources

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
        self.takeovers = Takeovers(self.plan, cast("KubeletView", self), cast("Sessions", self), again=0.0)

    def registrations(self) -> tuple[str, ...]:
        return self.served

    def read_checkpoint(self) -> KubeletCheckpoint | None:
        if self.unreadable:
            raise KubeletError("torn")
        return None if self.missing else KubeletCheckpoint(tuple(self.entries), {XPU: self.ids})

    async def lists(self, *ids: str) -> None:
        """Let the kubelet have this list."""
        self.ids = ids
        await self.takeovers.act(self.told.append)

    async def shows(self) -> bool:
        found = await self.takeovers.look()
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

    assert "pod with uid db" in (await node.takeovers.look())[XPU]
    assert await node.shows()
    node.entries = [entry("web", OURS)]
    assert not await node.shows()


async def test_ids_that_we_never_listed_show_a_stranger(node: Node) -> None:
    node.ids = ("a", "alien-1", "alien-0")

    assert "(alien-0, alien-1)" in (await node.takeovers.look())[XPU]


async def test_the_lists_of_a_resource_that_is_not_planned_any_more_are_forgotten(node: Node) -> None:
    node.plan.set({})
    await node.takeovers.look()

    node.plan.set({XPU: listing("a")})

    assert "(b)" in (await node.takeovers.look())[XPU]


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


async def test_what_is_seen_once_and_not_again_is_not_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def read_checkpoint() -> KubeletCheckpoint:
        nonlocal looks
        looks += 1
        ids = ("alien",) if looks == 2 else ("a",)
        return KubeletCheckpoint((), {XPU: ids})

    monkeypatch.setattr(node, "read_checkpoint", read_checkpoint)
    node.takeovers = Takeovers(node.plan, cast("KubeletView", node), cast("Sessions", node), again=0.0)
    found = [await node.takeovers.checked() for _ in range(3)]

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

    assert node.takeovers.found
    assert node.told == [{XPU: True}]


async def test_of_a_resource_that_we_do_not_serve_now_no_list_is_told(node: Node) -> None:
    node.served = ()

    await node.lists("alien")

    assert node.told == [{}]


async def test_a_list_that_is_another_s_at_one_of_two_looks_is_nobody_s(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checked() -> Mapping[str, str]:
        await node.takeovers.look()
        return {}

    monkeypatch.setattr(node.takeovers, "checked", checked)

    await node.lists("alien")

    assert node.told == [{}]

"""Other plugins that give out a vendor's cards: known by their sockets, and believed to have gone in time."""

from __future__ import annotations

from dataclasses import dataclass, field

from structlog.testing import capture_logs

from agent.core.cell import Cell
from agent.core.model import SessionStatus
from agent.daemon.registration.other_plugins import Rivals
from agent.kubelet.directory import FileIdentity, OtherSocket
from agent.vendor_api.agent import ContainerEdits, OtherPlugin, Vendor

VENDOR = Vendor(
    "acme",
    "acme:Backend",
    "acme.com/xpu",
    lambda devices, request: ContainerEdits(),
    replaces=OtherPlugin(sockets=("acme*.sock",)),
)


@dataclass
class Directory:
    """The sockets in the kubelet's directory, and which of them somebody serves."""

    there: Cell[frozenset[OtherSocket]] = field(default_factory=lambda: Cell(frozenset()))
    served: set[str] = field(default_factory=set)
    now: float = 100.0
    yields: bool = False

    def put(self, *names: str) -> None:
        self.there.set(frozenset(OtherSocket(name, FileIdentity(1, n, 1)) for n, name in enumerate(names)))
        self.served = set(names)

    def rivals(self) -> Rivals:
        return Rivals(
            lambda: [VENDOR],
            self.there,
            lambda it: it.name in self.served,
            lambda vendor: self.yields,
            gone_after=5.0,
            clock=lambda: self.now,
        )


def test_a_plugin_is_known_by_the_name_of_its_socket_and_named_with_what_would_help() -> None:
    directory = Directory()
    directory.put("other.sock", "acme-7.sock")

    closed = directory.rivals().closed("acme")

    assert closed == SessionStatus(
        "refused",
        "another device plugin serves cards of acme at acme-7.sock: remove it from this node, or let "
        "vendors.acme.foreign be `yield`, which leaves the cards to it",
    )


def test_where_the_config_yields_the_cards_are_left_to_it() -> None:
    directory = Directory(yields=True)
    directory.put("acme.sock")

    closed = directory.rivals().closed("acme")

    assert closed is not None
    assert (closed.state, closed.reason.rpartition(": ")[2]) == (
        "yielded",
        "the cards are left to it until it goes",
    )


def test_a_socket_that_nobody_serves_or_of_another_name_keeps_nobody_out() -> None:
    directory = Directory()
    directory.put("acme.sock", "xacme.sock", "nvidia-gpu.sock")
    directory.served = {"xacme.sock", "nvidia-gpu.sock"}

    assert directory.rivals().closed("acme") is None
    assert directory.rivals().closed("nobody") is None


def test_one_that_went_a_moment_ago_may_come_back() -> None:
    directory = Directory()
    directory.put("acme.sock")
    rivals = directory.rivals()
    assert rivals.closed("acme") is not None

    directory.put()
    directory.now += 4.9
    assert rivals.closed("acme") is not None
    directory.now += 0.2
    assert rivals.closed("acme") is None
    assert rivals.found == {}


def test_what_became_another_is_told_by_whoever_looks_first() -> None:
    directory = Directory()
    rivals = directory.rivals()
    directory.put("acme.sock")

    with capture_logs() as told:
        rivals.closed("acme")
        rivals.look()

    assert [it["event"] for it in told] == ["other device plugins"]
    assert rivals.changes.value == 1
    directory.put()
    directory.now += 5.1
    rivals.closed("acme")
    assert rivals.changes.value == 2

"""Which sockets and devices are those of another plugin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from agent.config import Config, VendorSettings
from agent.daemon.vendor_plugins import VendorPlugin, load
from agent.doctor import plugin_conflicts
from agent.doctor.socket_listeners import SocketListener
from agent.doctor.surroundings import Sockets
from agent.scheduler_api.findings import Severity
from agent.scheduler_api.node_checks import Observed
from agent.vendor_api.agent import ReplacedPlugins

from .surveyed import around, vendor


def found(name: str) -> VendorPlugin:
    """The vendor's own plugin, as it is installed."""
    return next(it for it in load({}, [name]) if it.name == name)


def test_devices_that_the_agent_lists_in_any_form_are_not_foreign() -> None:
    document = {
        "devices": [{"uuid": "GPU-1", "minor": 7}],
        "absent": [{"uuid": "GPU-2"}],
        "allocations": [{"ids": ["GPU-old-3", "GPU-gone::2"]}],
    }
    known = plugin_conflicts._known_ids(around(told=document))

    ours = ("GPU-1", "GPU-1::3", "7", "7::0", "GPU-2", "GPU-old-3", "GPU-gone::2")
    assert all(plugin_conflicts._is_known(it, known) for it in ours)
    assert not any(plugin_conflicts._is_known(it, known) for it in ("GPU-3", "GPU-11", "70", "GPU-gone::3"))


@pytest.mark.parametrize(
    ("there", "serving", "remedy"),
    [
        (SocketListener("listens", pid=7), 7, ""),
        (SocketListener("listens", pid=8), 7, "kill 8"),
        (SocketListener("listens"), 7, "kubectl get daemonsets -A -l xpu-agent.io/pool"),  # in another pod
        (SocketListener("listens", is_busy=True), 7, ""),
        (SocketListener("listens"), 0, ""),  # the agent itself is in another pod than the doctor
    ],
)
def test_a_socket_of_an_agent_that_is_not_the_one_asked_is_another_one_s(
    there: SocketListener, serving: int, remedy: str
) -> None:
    found = list(plugin_conflicts._agent(Path("/xpu-1.sock"), there, serving))

    assert [(it.kind, remedy in it.remedy) for it in found] == ([("foreign-agent", True)] if remedy else [])


def test_a_vendors_other_plugin_is_known_by_the_name_that_the_vendor_says() -> None:
    made = vendor("xy")
    assert made.vendor is not None
    wide = around(
        structs.replace(
            made, vendor=replace(made.vendor, replaces=ReplacedPlugins(sockets=("sharing-*.sock",)))
        )
    )
    listens = SocketListener("listens")
    there = {Path(name): listens for name in ("/sharing-7.sock", "/xsharing-7.sock", "/xy.sock")}

    found = list(plugin_conflicts._sockets(replace(wide, sockets=Sockets(others=Observed(there)))))

    assert [(it.kind, "/sharing-7.sock" in it.remedy) for it in found] == [("foreign-plugin", True)]


#: The sockets that each known plugin serves in the kubelet's directory.
PEERS = [
    *(("nvidia", it) for it in ("nvidia-gpu.sock", "nvidia-gpu.shared.sock", "nvidia-mig-1g.10gb.sock")),
    ("nvidia", "nvidia.sock"),  # up to v0.6.0, as in document 003
    *(("nvidia", it) for it in ("vcore.sock", "vmemory.sock")),  # gpu-manager
    *(("enflame", it) for it in ("enflame.sock", "enflamegcushare.sock", "enflamegcushare-drs.sock")),
    ("metax", "metax-gpu.sock"),
]


@pytest.mark.parametrize(("name", "socket"), PEERS)
def test_a_known_plugin_that_listens_is_named_whether_its_cards_are_seen_or_not(
    name: str, socket: str
) -> None:
    plugin = found(name)
    sockets = Sockets(others=Observed({Path(f"/k/{socket}"): SocketListener("listens", pid=7)}))
    seen = replace(around(plugin), sockets=sockets)
    unseen = replace(around(plugin, found={name: Observed(why="library-not-found")}), sockets=sockets)

    told = {it.kind: it for one in (seen, unseen) for it in plugin_conflicts.device_plugins(one)}

    assert [it for it in told if it] == ["foreign-plugin", "plugin-of-unseen-cards"]
    assert f"vendors.{name}.enabled to false" in told["plugin-of-unseen-cards"].remedy
    assert not [it.what for it in told.values() if it.what.startswith("nobody")]


def test_where_no_vendor_has_cards_nobody_is_said_to_serve_no_resource() -> None:
    plugin = found("nvidia")
    bare = around(plugin, found={"nvidia": Observed(why="library-not-found")})

    told = [
        it.what for it in plugin_conflicts.device_plugins(replace(bare, sockets=Sockets(others=Observed({}))))
    ]

    assert told == ["no vendor has cards here, and no other plugin for cards listens in /nowhere/k"]


def test_another_plugin_to_which_the_configuration_leaves_the_cards_is_no_fault() -> None:
    made = vendor("xy")
    assert made.vendor is not None
    plugin = structs.replace(
        made, vendor=replace(made.vendor, replaces=ReplacedPlugins(sockets=("sharing-*.sock",)))
    )
    config = Config(vendors={"xy": VendorSettings(foreign="yield")})
    there = {Path("/sharing-7.sock"): SocketListener("listens")}

    found = list(
        plugin_conflicts._sockets(
            replace(around(plugin, config=config), sockets=Sockets(others=Observed(there)))
        )
    )

    assert [(it.kind, it.severity) for it in found] == [("yielded-plugin", Severity.WARNS)]


def test_a_vendor_of_two_letters_is_in_the_name_of_no_socket() -> None:
    wide = around(vendor("nv"), vendor("nvidia"))

    assert plugin_conflicts._marks(wide) == {"nvidia"}

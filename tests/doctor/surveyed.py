"""Surroundings as a survey finds them, in short words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.config import AgentSettings, Config
from agent.daemon.scheduler_plugins import registered
from agent.daemon.vendor_plugins import VendorPlugin
from agent.doctor.surroundings import Cluster, Configuration, Surroundings
from agent.http.inspect_document import from_builtins
from agent.scheduler_api.node_checks import Observed
from agent.vendor_api.agent import ContainerEdits, Device, Host, Offers, Vendor

GPU = "nvidia.com/gpu"
CARD = Device("GPU-1", 0)
Devices = Observed[tuple[Device, ...]]
#: A node of which nothing is here.
NOWHERE = AgentSettings(
    kubelet_dir=Path("/nowhere/k"),
    pod_resources_socket=Path("/nowhere/pods.sock"),
    state_dir=Path("/nowhere/state"),
    cdi_dir=Path("/nowhere/cdi"),
)


def vendor(name: str = "nvidia", *, by_cdi: bool = False) -> VendorPlugin:
    edits, visible = ContainerEdits(), "NVIDIA_VISIBLE_DEVICES"
    made = Vendor(
        name,
        "a:B",
        f"{name}.com/gpu",
        lambda *_: edits,
        offers=Offers(cdi_only=by_cdi),
        host=Host(devices_variable=visible),
    )
    return VendorPlugin(name, "here", "1", made)


def around(
    *plugins: VendorPlugin,
    config: Config | None = None,
    found: Mapping[str, Devices] | None = None,
    told: Mapping[str, Any] | None = None,
    node: Mapping[str, Any] | None = None,
    its_pods: tuple[Mapping[str, Any], ...] = (),
    root: Path = Path("/"),
) -> Surroundings:
    cards: Devices = Observed((CARD,))
    looked = dict.fromkeys([it.name for it in plugins], cards) if found is None else found
    cluster = Cluster(
        Observed(node) if node is not None else Observed(why="403 Forbidden"),
        Observed(its_pods),
        Observed(()),
    )
    return Surroundings(
        "a-node",
        "1",
        root,
        Configuration(config or Config(NOWHERE), plugins=plugins, schedulers=registered()),
        looked,
        Observed(from_builtins(told) if told else None, "" if told else "nobody"),
        cluster=cluster,
    )

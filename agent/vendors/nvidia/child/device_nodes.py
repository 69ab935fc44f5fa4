"""Device nodes of the driver that belong to no single card: its control nodes and the IMEX channels."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from agent.vendors.nvidia import constants
from agent.vendors.nvidia.driver_root import Root

Settings = Mapping[str, Any]

#: In the order in which NVIDIA's plugin lists them.
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
#: Any node of the driver.
NODES = "/dev/nvidia*"
#: Below what the agent has its own /dev.
OURS = "/"


def attributes(settings: Settings) -> dict[str, str]:
    """Which control nodes and IMEX channels exist now, and where /dev lies if not where the settings say."""
    root = dev_root(settings)
    there = set(root.nodes(NODES))
    found = {
        constants.CONTROL_NODES: [path for path in CONTROL if path in there],
        constants.IMEX_CHANNELS: [
            str(it) for it in settings.get("imexChannelIDs") or () if _is_channel(root, it)
        ],
    }
    found[constants.DEV_ROOT] = [root.host] if root.host != _said(settings) else []
    return {name: ",".join(each) for name, each in found.items() if each}


def dev_root(settings: Settings) -> Root:
    """Below what /dev lies, as this process sees it.

    In a container that is where the driver's root is mounted, if it has a /dev (k8s-device-plugin v0.20,
    cmd/nvidia-device-plugin/root.go); without a container around us it is the host's own path; and else our
    own /dev, into which a container runtime may have put the nodes. NVIDIA's plugin looks for control nodes
    in its own /dev alone, and so hands out none where they lie in the driver's root.

    A driver that was only unpacked into its root has an empty /dev there, or none: the kernel's nodes are in
    the host's own. NVIDIA's plugin names nodes below the root all the same, and no container starts.
    """
    host = _said(settings)
    candidates = (settings.get("containerDriverRoot") or constants.DRIVER_ROOT, host)
    seen = next((seen for seen in candidates if os.path.isdir(os.path.join(seen, "dev"))), OURS)
    root, ours = Root(seen, host), Root(OURS, "/")
    is_elsewhere = not settings.get("devRoot") and not root.nodes(NODES) and ours.nodes(NODES)
    return ours if is_elsewhere else root


def _said(settings: Settings) -> str:
    """What the settings say: below which directory of the host its /dev lies."""
    return settings.get("devRoot") or settings.get("driverRoot") or "/"


def _is_channel(root: Root, number: int) -> bool:
    """Whether the channel is there: in the dev root, or put into our own /dev (internal/imex/imex.go)."""
    node = constants.channel_node(str(number)).lstrip("/")
    return any(_is_character_device(os.path.join(place, node)) for place in (root.seen, OURS))


def _is_character_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False

"""The driver's device nodes that belong to no single card: control nodes and IMEX channels."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from agent.vendors.nvidia.shared import constants
from agent.vendors.nvidia.shared.driver_root import Root

Settings = Mapping[str, Any]

#: The control nodes, in the order of NVIDIA's plugin.
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
#: Every node of the driver.
NODES = "/dev/nvidia*"
#: The directory with this process's own /dev.
OWN_ROOT = "/"


def attributes(settings: Settings) -> dict[str, str]:
    """Attributes of all cards: existing control nodes and IMEX channels, and the root of /dev.

    The root is present if it is another one than in the settings.
    """
    root = dev_root(settings)
    existing = set(root.nodes(NODES))
    channels = settings.get("imexChannelIDs") or ()
    lists = {
        constants.CONTROL_NODES: [path for path in CONTROL if path in existing],
        constants.IMEX_CHANNELS: [str(channel) for channel in channels if _is_channel(root, channel)],
        constants.DEV_ROOT: [root.host] if root.host != _configured_root(settings) else [],
    }
    return {name: ",".join(values) for name, values in lists.items() if values}


def dev_root(settings: Settings) -> Root:
    """The root of the /dev that has the driver's nodes, as this process sees it.

    In a container this is the mounted root of the driver, if that has a /dev (k8s-device-plugin v0.20,
    cmd/nvidia-device-plugin/root.go). Outside of a container it is the host's own path. Otherwise it is this
    process's own /dev, where a container runtime may have put the nodes. NVIDIA's plugin looks for control
    nodes in its own /dev alone, and so gives none to containers if the nodes are in the driver's root.

    A driver that was only unpacked into its root has no nodes there: they are in the host's /dev. NVIDIA's
    plugin nevertheless names nodes below that root, and then no container starts.
    """
    host = _configured_root(settings)
    candidates = (settings.get("containerDriverRoot") or constants.DRIVER_ROOT, host)
    seen = next((seen for seen in candidates if os.path.isdir(os.path.join(seen, "dev"))), OWN_ROOT)
    root, own = Root(seen, host), Root(OWN_ROOT, "/")
    is_elsewhere = not settings.get("devRoot") and not root.nodes(NODES) and own.nodes(NODES)
    return own if is_elsewhere else root


def _configured_root(settings: Settings) -> str:
    """The host's directory with /dev, by the settings."""
    return settings.get("devRoot") or settings.get("driverRoot") or "/"


def _is_channel(root: Root, number: int) -> bool:
    """Whether the channel's node exists in the root or in the process's own /dev (internal/imex/imex.go)."""
    node = constants.channel_node(str(number)).lstrip("/")
    return any(_is_character_device(os.path.join(place, node)) for place in (root.seen, OWN_ROOT))


def _is_character_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False

"""The container runtime, set up as on a node: its paths are the usual ones, which the node has for itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from .place import TOOLS, Place
from .unit import Unit
from .until import until

SOCKET = Path("/run/containerd/containerd.sock")
CONFIG = Path("/etc/containerd/config.toml")
NETWORKS = Path("/etc/cni/net.d")
PAUSE = "localhost/pause:latest"
CTR = (str(TOOLS / "ctr"), "--namespace", "k8s.io")


def containerd(place: Place) -> Unit:
    """Write its configuration, and return it, not started."""
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    CONFIG.write_text(_CONFIG)
    NETWORKS.mkdir(parents=True, exist_ok=True)
    (NETWORKS / "10-alone.conflist").write_text(json.dumps(_NETWORK))
    return Unit(place, "containerd", [TOOLS / "containerd", "--config", CONFIG])


async def serving() -> None:
    await until(_version, bool, "containerd to answer")


async def import_image(archive: Path) -> None:
    """Load an image archive, as docs/install.md has it for a node without a registry.

    Raises:
        subprocess.CalledProcessError: ctr did not take it.
    """
    await asyncio.to_thread(_run, "images", "import", str(archive))


async def _version() -> bool:
    try:
        await asyncio.to_thread(_run, "version")
    except subprocess.CalledProcessError:
        return False
    return True


def _run(*arguments: str) -> str:
    return subprocess.run([*CTR, *arguments], check=True, capture_output=True, text=True, timeout=300).stdout


#: An interface of the pod's own that leads nowhere: nothing of it is seen on the host.
_NETWORK = {
    "cniVersion": "1.0.0",
    "name": "alone",
    "plugins": [{"type": "tap", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/16"}]]}}],
}
#: Neither AppArmor nor the right to lower a process's OOM score is everywhere that root is.
_CONFIG = f"""
version = 3
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{TOOLS}"]
conf_dir = "{NETWORKS}"
"""

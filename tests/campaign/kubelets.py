"""A kubelet, simulated or real, in the hands of the campaign."""

from __future__ import annotations

import shutil
from pathlib import Path

from peers.process import PeerDown, PeerError
from peers.real import RealKubelet
from scenarios.kubelets import MODULES, SIMULATED, Kind, real_kind

from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import NodeKubelet
from agent.testing.simkubelet.container_start import StartError

#: What a kubelet answers with that is down, that does not know its pods yet, or that ends while it is asked.
Down = (PeerDown, PeerError, RuntimeError, LookupError, ConnectionError)
#: What it says where a container cannot be started now.
NotStarted = (StartError, PeerError)


def kinds() -> dict[str, Kind]:
    """Every kubelet by its name, built or not."""
    found = [*map(Kind, SIMULATED), *map(real_kind, MODULES)]
    return {kind.id: kind for kind in found}


def lists_ended(kind: Kind) -> bool:
    """Whether PodResources lists pods that have ended, too: up to 1.33."""
    major, minor = kind.release.split(".")[:2]
    return (int(major), int(minor)) < (1, 34)


async def die(kubelet: NodeKubelet) -> None:
    """Die without cleanup; one that is dead already stays so."""
    if lives(kubelet):
        await kubelet.kill()


async def rise(kubelet: NodeKubelet) -> None:
    """Start anew on what is on disk; one that lives goes on."""
    if not lives(kubelet):
        await kubelet.start()


def lives(kubelet: NodeKubelet) -> bool:
    assert isinstance(kubelet, SimKubelet | RealKubelet)
    return kubelet.running


def pid(kubelet: NodeKubelet) -> int | None:
    """The kubelet's process, where it is one of its own."""
    return kubelet.pid if isinstance(kubelet, RealKubelet) and lives(kubelet) else None


async def restart_in_order(kubelet: NodeKubelet) -> None:
    if isinstance(kubelet, SimKubelet):
        await kubelet.stop()
        await kubelet.start()
    else:
        assert isinstance(kubelet, RealKubelet)
        await kubelet.restart_in_process()


def recreate(directory: Path, keep: Path) -> None:
    """Make the directory anew, with one of its files."""
    content = keep.read_bytes() if keep.exists() else None
    while directory.exists():  # the agent may tidy up in it, too
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o750)
    if content is not None:
        keep.write_bytes(content)
        keep.chmod(0o600)

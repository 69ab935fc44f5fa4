"""A kubelet, simulated or real, in the hands of the campaign: it dies, comes back, and loses what it has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.process import PeerDown, PeerError
from peers.real import RealKubelet
from scenarios.kubelets import MODULES, SIMULATED, Kind, real_kind

from agent.testing.kubelet import SimKubelet
from agent.testing.node import NodeKubelet
from agent.testing.simkubelet.runtime import StartError

#: What a kubelet answers with that is down, or that ends while it is asked.
Down = (PeerDown, RuntimeError, LookupError, ConnectionError)
#: What it says where a container can not be started now.
NotStarted = (StartError, PeerError)


def kinds() -> dict[str, Kind]:
    """Every kubelet by its name, built or not."""
    found = [*map(Kind, SIMULATED), *map(real_kind, MODULES)]
    return {kind.id: kind for kind in found}


async def die(kubelet: NodeKubelet) -> None:
    """Die without cleanup; one that is dead already stays so."""
    if isinstance(kubelet, SimKubelet):
        if lives(kubelet):
            await kubelet.kill()
    else:
        assert isinstance(kubelet, RealKubelet)
        await kubelet.kill()


async def rise(kubelet: NodeKubelet) -> None:
    """Start anew on what is on disk; one that lives goes on."""
    if lives(kubelet):
        return
    if isinstance(kubelet, SimKubelet):
        await kubelet.start()
    else:
        assert isinstance(kubelet, RealKubelet)
        await kubelet.restart()


def lives(kubelet: NodeKubelet) -> bool:
    if isinstance(kubelet, SimKubelet):
        return kubelet._life is not None
    assert isinstance(kubelet, RealKubelet)
    return kubelet._process.running


async def restart_in_order(kubelet: NodeKubelet) -> None:
    if isinstance(kubelet, SimKubelet):
        await kubelet.stop()
        await kubelet.start()
    else:
        assert isinstance(kubelet, RealKubelet)
        await kubelet.restart_in_process()


def checkpoint(kubelet: NodeKubelet) -> Path:
    return kubelet.plugin_dir / "kubelet_internal_checkpoint"


def recreate(directory: Path, keep: Path | None) -> None:
    """Make the directory anew, with one of its files or with none."""
    content = keep.read_bytes() if keep is not None and keep.exists() else None
    while directory.exists():  # the agent may tidy up in it, too
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o750)
    if keep is not None and content is not None:
        keep.write_bytes(content)
        keep.chmod(0o600)


@contextmanager
def moved(path: Path) -> Iterator[Path]:
    """A file that is somewhere else for a while, unless another one has come in its place."""
    aside = path.with_name(f".{path.name}.away")
    path.rename(aside)
    try:
        yield aside
    finally:
        if path.exists():
            aside.unlink()
        else:
            aside.rename(path)

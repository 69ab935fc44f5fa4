"""A cluster of one real node: brought up here, or joined where another process keeps it up."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from peers.apiserver import RealApiServer, built_cluster

from . import cards, containerd, controlplane, kubelet, release
from .api import Api, Object
from .cards import NvmlStub
from .place import IMAGES, Place, free_ports
from .unit import Unit
from .until import until

#: Told of each step that is done.
Say = Callable[[str], None]


class Progress:
    """Says what is done and how many seconds into the start."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._began = time.monotonic()

    def done(self, what: str) -> None:
        self._say(f"{time.monotonic() - self._began:6.1f} s  {what}")


@dataclass(frozen=True)
class Cluster:
    """What a scenario reaches. `server` is none where the cluster is joined: it is not ours to restart."""

    place: Place
    api: Api
    containerd: Unit
    kubelet: Unit
    controllers: Unit
    scheduler: Unit
    cards: NvmlStub
    agent: release.Release
    server: RealApiServer | None = None

    async def node(self) -> Object:
        return await self.api.get(f"/api/v1/nodes/{kubelet.NODE}")

    async def allocatable(self, resource: str = "nvidia.com/gpu") -> int | None:
        """What the Node offers of it; none where it has not heard of it."""
        count = (await self.node())["status"]["allocatable"].get(resource)
        return None if count is None else int(count)

    async def offers(self, count: int | None, resource: str = "nvidia.com/gpu") -> None:
        """Wait until the Node offers so many of the resource."""
        await until(
            lambda: self.allocatable(resource), lambda it: it == count, f"{count} allocatable {resource}"
        )

    async def label(self, *labels: str) -> None:
        """Set labels of the Node, KEY=VALUE, or remove them, KEY-."""
        await self.api.kubectl("label", "node", kubelet.NODE, "--overwrite", *labels)

    async def ready(self) -> None:
        """Wait until the Node is Ready."""
        await until(self._conditions, lambda it: it.get("Ready") == "True", "the Node to be Ready")

    async def _conditions(self) -> dict[str, str]:
        nodes = await self.api.items("/api/v1/nodes")
        return {cond["type"]: cond["status"] for it in nodes for cond in it["status"].get("conditions", ())}


@asynccontextmanager
async def up(place: Place, progress: Progress) -> AsyncIterator[Cluster]:
    """Bring it up, with our images on the node and without the agent. All of it ends with the node."""
    binary = built_cluster()
    assert binary is not None, "no cluster is built: tests/realnode/build.sh"
    assert not _ports(place).exists(), f"in this node is one already that is not kept up: no {place.ready}"
    shutil.rmtree(place.logs, ignore_errors=True)
    _write_ports(place)
    for directory in (place.api, place.pod_logs):
        directory.mkdir(parents=True, exist_ok=True)
    # What is written to it outlives the node.
    (place.api / "kube-apiserver.log").symlink_to(place.logs / "kube-apiserver.log")
    users = {kubelet.USER: (kubelet.GROUP,)}
    server = RealApiServer(binary, place.api, users=users, flags=kubelet.api_server_flags(place))
    images = asyncio.create_task(_runtime(place, progress))
    try:
        async with server:
            progress.done("API server ready")
            server.kubeconfig(place.kubeconfig)
            server.kubeconfig(kubelet.kubeconfig(place), server.token_for(kubelet.USER))
            cluster = _cluster(place, binary, cards.plug_in(place), server)
            for unit in (cluster.controllers, cluster.scheduler):
                unit.start()
            await images
            cluster.kubelet.start()
            await _address(cluster)
            await cluster.ready()
            await cluster.label(release.LABEL)
            progress.done("Node Ready")
            yield cluster
            await server.kill()  # in good order takes seconds, and nobody is left to see it
    finally:
        images.cancel()


def joined(place: Place) -> Cluster:
    """The cluster that another process keeps up in this node; its cards are all whole again."""
    binary = built_cluster()
    assert binary is not None
    return _cluster(place, binary, cards.plug_in(place), None)


def is_up(place: Place) -> bool:
    """Whether another process keeps a cluster up in this node, and has said that it is complete."""
    return place.ready.exists()


def _cluster(place: Place, binary: Path, stub: NvmlStub, server: RealApiServer | None) -> Cluster:
    ports = json.loads(_ports(place).read_text())
    api = Api(place.kubeconfig)
    return Cluster(
        place,
        api,
        containerd.containerd(place),
        kubelet.kubelet(place, binary, ports["kubelet"]),
        controlplane.controllers(place, binary, ports["controllers"]),
        controlplane.scheduler(place, binary, ports["scheduler"]),
        stub,
        release.Release(place, api, ports["agent"]),
        server,
    )


def _ports(place: Place) -> Path:
    return place.work / "ports.json"


def _write_ports(place: Place) -> None:
    names = ("kubelet", "controllers", "scheduler", "agent")
    _ports(place).write_text(json.dumps(dict(zip(names, free_ports(len(names)), strict=True))))


async def _runtime(place: Place, progress: Progress) -> None:
    """containerd with the images."""
    containerd.containerd(place).start()
    await containerd.serving()
    for archive in ("pause.tar", "xpu-agent.tar"):
        await containerd.import_image(IMAGES / archive)
    progress.done("images imported")


async def _address(cluster: Cluster) -> None:
    """Give the Node its address, and let pods onto it, as a cloud's controller would."""
    await until(lambda: cluster.api.items("/api/v1/nodes"), bool, "the Node to be registered")
    patch = ["--type=merge", f"--patch={kubelet.address()}"]
    await cluster.api.kubectl("patch", "node", kubelet.NODE, "--subresource=status", *patch)
    await cluster.api.kubectl(
        "taint", "node", kubelet.NODE, "node.cloudprovider.kubernetes.io/uninitialized-"
    )

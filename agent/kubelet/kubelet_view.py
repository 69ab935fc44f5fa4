"""What the kubelet of this node shows: its directory, its checkpoint and its PodResources service."""

from __future__ import annotations

from collections.abc import Collection

from agent.core.cell import Cell
from agent.kubelet.checkpoint_reader import CheckpointReader
from agent.kubelet.kubelet_checkpoint import KubeletCheckpoint
from agent.kubelet.kubelet_directory import (
    KUBELET_CHECKPOINT,
    KUBELET_SOCKET,
    KubeletDirectory,
    OtherSocket,
    identify_socket,
)
from agent.kubelet.plugin_sockets import is_served
from agent.kubelet.pod_resources import PodResources


class KubeletView:
    """Reads the kubelet's files and asks its PodResources service."""

    def __init__(self, directory: KubeletDirectory, pod_resources: PodResources) -> None:
        self.directory = directory
        self._pod_resources = pod_resources
        self._checkpoint = CheckpointReader(directory.path / KUBELET_CHECKPOINT)

    @property
    def other_sockets(self) -> Cell[frozenset[OtherSocket]]:
        """The sockets of other plugins in the kubelet's directory, served or not."""
        return self.directory.other_sockets

    def is_served(self, other: OtherSocket) -> bool:
        """Whether a server listens at the socket; yes where that cannot be found out. Opens a connection."""
        return is_served(self.directory.path / other.name)

    def life(self) -> str:
        """The life of the kubelet that serves now, read from the directory at each call; empty without one.

        A cached value could name the life before: the directory reports a change with a delay.
        """
        return str(identify_socket(self.directory.path / KUBELET_SOCKET) or "")

    def read_checkpoint(self, prove: bool = False) -> KubeletCheckpoint | None:
        """The kubelet's checkpoint; None where there is no file. `prove` verifies its checksum.

        Raises:
            KubeletError: The file cannot be read or is corrupt.
        """
        return self._checkpoint.read(prove=prove)

    async def allocatable(self, resources: Collection[str]) -> Collection[str]:
        """The given resources that have a healthy device in the kubelet.

        Raises:
            KubeletError: The kubelet did not answer, or is older than 1.23.
        """
        return await self._pod_resources.allocatable(resources)

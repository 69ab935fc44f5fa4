"""Evidence: what the kubelet, the hardware and the kernel say of allocations, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from agent.vendor_api.agent import ContainerEdits, Partition

#: Prefix of ids of allocations that another plugin answered.
FOREIGN = "kubelet-"
#: (namespace, pod) to container to resource to device IDs, as PodResources lists them.
Pods = Mapping[tuple[str, str], Mapping[str, Mapping[str, frozenset[str]]]]


@dataclass(frozen=True, slots=True)
class CheckpointAnswer:
    """One answer in the kubelet's checkpoint, of this agent or of another plugin."""

    allocation: str
    uid: str
    container: str
    resource: str = ""
    ids: tuple[str, ...] = ()
    _: KW_ONLY
    #: The cards that the answer names, where its IDs name other cards.
    cards: tuple[str, ...] = ()
    #: The parameters of the claim with which the answer was made.
    share: Mapping[str, str] = field(default_factory=dict)
    #: The memory unit of its IDs; "" where they count no memory; None where another plugin answered.
    unit: str | None = ""
    #: Where another plugin answered: the number of IDs of the first ID's card; 0 where that is not known.
    ids_of_card: int = 0
    #: What the container got, which may name its cards.
    edits: ContainerEdits = field(default_factory=ContainerEdits)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What all sources say at one moment. None stands for a source that could not be read."""

    #: The kubelet's checkpoint, and whether its checksum was proven.
    granted: tuple[CheckpointAnswer, ...] | None = None
    _: KW_ONLY
    proven: bool = True
    pods: Pods | None = None
    #: Vendor to the slices on its hardware, for vendors that could be asked.
    partitions: Mapping[str, tuple[Partition, ...]] | None = None
    #: uids of the pods with a cgroup; None where cgroups cannot be read.
    running: frozenset[str] | None = None
    #: The life of the kubelet, read before its checkpoint. The kubelet loads that file before it listens: a
    #: proven checkpoint is what this life began with, or what it wrote.
    life: str = ""
    #: Whether the kubelet has served for long enough that what it does not list is gone.
    settled: bool = False
    #: Whether the same life still served when the last source was read.
    steady: bool = True

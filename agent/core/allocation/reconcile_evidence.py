"""What the kubelet, the hardware and the kernel say of our allocations, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.vendor_api.agent import ContainerEdits, Partition

#: How the id of an allocation begins that another plugin answered.
FOREIGN = "kubelet-"
#: (namespace, pod) to container to resource to device IDs, as PodResources lists them.
Pods = Mapping[tuple[str, str], Mapping[str, Mapping[str, frozenset[str]]]]


@dataclass(frozen=True, slots=True)
class CheckpointAnswer:
    """One answer of ours as the kubelet's checkpoint keeps it."""

    allocation: str
    uid: str
    container: str
    resource: str = ""
    ids: tuple[str, ...] = ()
    #: The cards that it was answered with, where they are not those of its IDs.
    cards: tuple[str, ...] = ()
    #: What of a claim it was made with, where that had something to say.
    share: Mapping[str, str] = field(default_factory=dict)
    #: What its IDs count memory in, empty where something else; None where another plugin answered.
    unit: str | None = ""
    #: Where another plugin answered: how many IDs it made of the first one's card; 0 where nobody knows.
    of: int = 0
    #: The answer itself, which may name its cards.
    answer: ContainerEdits = field(default_factory=ContainerEdits)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What every source says at one moment. `None` stands for a source that could not be read."""

    #: The kubelet's checkpoint, and whether its checksum was proven.
    granted: tuple[CheckpointAnswer, ...] | None = None
    proven: bool = True
    pods: Pods | None = None
    #: Vendor to the slices on its hardware, of those that could be asked.
    partitions: Mapping[str, tuple[Partition, ...]] | None = None
    #: uids of the pods whose cgroup is there; None where cgroups cannot be seen.
    running: frozenset[str] | None = None
    #: Which life of the kubelet this is, read before its checkpoint. It loads that file before it listens:
    #: what proves is what this life began with, or wrote.
    life: str = ""
    #: Whether it has served for long enough to be believed when it does not list something.
    settled: bool = False
    #: Whether it was still this life when the last source was read.
    steady: bool = True

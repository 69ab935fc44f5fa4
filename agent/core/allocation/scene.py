"""The scene: all that an answer to the kubelet depends on, as of one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from agent.core.allocation.known_pods import KnownPods
from agent.core.devices.resource_waits import ResourceWait
from agent.core.devices.topology import Topology
from agent.core.model import (
    Allocation,
    NodeSnapshot,
    Plan,
)
from agent.scheduler_api.scheduler import Scheduler
from agent.vendor_api.agent import Vendor


@dataclass(frozen=True, slots=True)
class Scene:
    """All that one answer depends on, as of one moment. A scene is out of date after an `await`."""

    plan: Plan
    snapshot: NodeSnapshot
    topology: Topology
    vendors: Mapping[str, Vendor]
    _: KW_ONLY
    #: Vendor or resource to why none of its devices is given out.
    withheld: Mapping[str, str] | None = None
    #: The pods bound to this node that the agent knows.
    candidates: KnownPods = field(default_factory=KnownPods)
    #: (namespace, name) of the pods that schedulers' locks of the node name.
    locked: frozenset[tuple[str, str]] = frozenset()
    #: The uids of the pods that waited when the kubelet started.
    pods_at_kubelet_start: frozenset[str] = frozenset()
    #: The cards that change their resource once they are free.
    waits: tuple[ResourceWait, ...] = ()
    #: Card in external use to the allocation that has the card.
    external: Mapping[str, Allocation] = field(default_factory=dict)
    #: Resource to device ID that the kubelet takes for free to the forgotten allocation that has the ID.
    forgotten: Mapping[str, Mapping[str, Allocation]] = field(default_factory=dict)
    #: Why the agent never sees a pod; empty where it does.
    unseen: str = ""
    #: The registered schedulers, in the order in which their dialects are read.
    schedulers: tuple[Scheduler, ...] = ()

    @property
    def alive(self) -> frozenset[str]:
        """The uids of the pods that have not ended."""
        return self.candidates.alive

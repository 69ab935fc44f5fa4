"""The pods of this node, as the API server shows them to schedulers' dialects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: Prefix of annotation keys that are meant for this agent alone.
OWN = "xpu-agent.io/"
#: Name of Kubernetes' own scheduler. It writes nothing of cards, so cards on its pods are another writer's.
DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container and its limits: resource name to count. `restartable` init containers are sidecars."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    init: bool = False
    restartable: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod bound to this node, as the API server shows it. Its author may have written anything in it."""

    uid: str
    namespace: str
    name: str
    containers: tuple[PodContainer, ...] = ()
    #: The annotations that schedulers' plugins read.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Unix time, seconds.
    created: float = 0.0
    #: Whether the pod gets no more devices: it failed, succeeded, or is deleted after its start.
    over: bool = False
    #: The kubelet's message in the status, such as the reason of a refusal.
    message: str = ""
    #: Whether the pod is static. A static pod names its uid itself; the API server gives every other uid.
    static: bool = False
    #: Whether the pod failed or succeeded: no container runs.
    ended: bool = False
    #: The scheduler that the pod asks for, or that wrote its cards; empty where neither is known.
    scheduler: str = ""
    #: Whether no container has started yet, or one has not started since the last boot of the node.
    pending: bool = True
    #: The resourceVersion of the first sight of the pod before its start; 0 where unknown. The kubelet learns
    #: of pods in this order, also of pods that a scheduler binds at the same time. Only the pods that the
    #: kubelet finds at its own start are taken by age.
    appeared: int = field(default=0, compare=False)
    #: Time of the bind, Unix time in whole seconds of the API server's clock; 0 where unknown.
    bound: float = 0.0
    #: The pod's resourceVersion; 0 where unknown. The versions of an API server only grow (KEP-5504).
    version: int = field(default=0, compare=False)
    #: The runtime's id of a container to the container's name: of a pod with several containers, where the
    #: use of cards is sampled.
    container_ids: Mapping[str, str] = field(default_factory=dict)
    #: Claims that `agent.core.attribution.claim_reading` has read from this version of the pod.
    claims_cache: dict[tuple[object, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def waits(self) -> bool:
        """Whether the pod may still ask for devices."""
        return self.pending and not self.over


def one_of_each_uid(pods: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The pods, oldest first, with every uid once: a static pod yields to another pod of the same uid."""
    oldest_first = sorted(pods, key=lambda it: (it.created, it.uid))
    taken = {it.uid for it in oldest_first if not it.static}
    found: list[Candidate] = []
    for pod in oldest_first:
        if not pod.static or pod.uid not in taken:
            taken.add(pod.uid)
            found.append(pod)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PodList:
    """The pods of this node that had not ended at this resourceVersion."""

    pods: tuple[Candidate, ...]
    version: int = 0


def merged(known: Iterable[Candidate], reached: int, listed: PodList) -> tuple[Candidate, ...]:
    """The pods that a watch knows, merged with a live list: of each pod the newer state.

    `reached`: the resourceVersion that the watch has reached; 0 where unknown. A known pod that is older than
    the list and not in the list is over. A listed pod that the watch has passed without knowing it is gone. A
    pod that is over stays over.
    """
    others = {(it.namespace, it.name, it.uid): it for it in listed.pods}
    found: list[Candidate] = []
    for pod in known:
        other = others.pop((pod.namespace, pod.name, pod.uid), None)
        if other is None:
            is_over = pod.over or 0 < pod.version <= listed.version
            found.append(pod if is_over == pod.over else replace(pod, over=True))
        elif pod.over or other.version < pod.version or 0 < other.version == pod.version:
            found.append(pod)
        else:
            found.append(replace(other, appeared=pod.appeared or other.appeared))
    found += [it for it in others.values() if not (reached and 0 < it.version <= reached)]
    return one_of_each_uid(found)

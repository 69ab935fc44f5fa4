"""Which container has a process, by name. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from agent.core.allocation.known_pods import KnownPods
from agent.core.model import Allocation
from agent.core.usage.cgroup_paths import CgroupOwner

#: Namespace and name of a pod.
PodName = tuple[str, str]


class NodeProcess(Struct, frozen=True):
    """What the node says of one process."""

    owner: CgroupOwner
    #: The name of the program, at most 15 bytes; empty where it cannot be read.
    name: str = ""


class PodNames(Struct, frozen=True):
    """The pods of the node, by uid: as the API server, the ledger or the kubelet's log directories name them.

    The kubelet and all of these know a static pod by the uid that its manifest gives.
    """

    known: KnownPods
    #: Pods with an allocation, by the kubelet's or their scheduler's word.
    holders: Mapping[str, PodName]
    #: Pods with a directory of logs.
    logs: Mapping[str, PodName]

    def of(self, uid: str) -> PodName | None:
        """The pod of this uid; None where no source names one."""
        pod = self.known.by_uid.get(uid)
        return (pod.namespace, pod.name) if pod is not None else self.holders.get(uid) or self.logs.get(uid)

    def container(self, owner: CgroupOwner, holders: Collection[str]) -> str:
        """The container of the process; empty where only the pod is known.

        `holders`: the containers of the pod that have an allocation on the process's card.
        """
        pod = self.known.by_uid.get(owner.uid)
        if pod is not None and owner.container in pod.container_ids:
            return pod.container_ids[owner.container]
        if len(holders) == 1:
            return next(iter(holders))
        return pod.containers[0].name if pod is not None and len(pod.containers) == 1 else ""


def holder_names(allocations: Iterable[Allocation]) -> dict[str, PodName]:
    """The names of the pods that have these allocations, by uid."""
    holders = (it for allocation in allocations for it in (allocation.owner, allocation.claim) if it)
    return {it.uid: (it.namespace, it.pod) for it in holders if it.uid and it.namespace and it.pod}


def pods_of_log_directories(names: Iterable[str]) -> dict[str, PodName]:
    """The pods that have directories of these names in the kubelet's directory of logs, by uid.

    Source: k8s.io/kubernetes, pkg/kubelet/kuberuntime/helpers.go, BuildPodLogsDirectory: NAMESPACE_NAME_UID.
    No name of a namespace or pod has a low line.
    """
    parts = (name.split("_") for name in names)
    return {it[2]: (it[0], it[1]) for it in parts if len(it) == 3 and all(it)}

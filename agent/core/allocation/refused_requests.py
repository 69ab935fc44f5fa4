"""Which pods were refused: a request does not say whose it is; a pod's status does, a moment later. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from agent.scheduler_api import Candidate

#: Requests that are remembered, the last ones.
KEPT = 64


@dataclass(frozen=True, slots=True)
class RefusedAllocate:
    """An Allocate that was refused."""

    resource: str
    #: The device IDs of each container.
    containers: tuple[tuple[str, ...], ...]
    #: Why, as the kubelet shows it on the pod.
    text: str

    @classmethod
    def of(cls, resource: str, containers: Iterable[Sequence[str]], exc: Exception) -> RefusedAllocate:
        """The refusal with this error."""
        return cls(resource, tuple(map(tuple, containers)), str(exc))

    @property
    def ids(self) -> tuple[str, ...]:
        """The device IDs of all containers."""
        return tuple(chain.from_iterable(self.containers))


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """One pod was refused with it. The kubelet writes the text into the status of that pod.

    Source: k8s.io/kubernetes, pkg/kubelet/kubelet.go, rejectPod.
    """

    text: str
    #: The uids of the pods that may have sent it, the most likely one first.
    uids: tuple[str, ...]
    #: The uids of pods that have the text from another request.
    others: frozenset[str] = frozenset()
    #: The life of the kubelet: the next one asks again for each pod that still waits.
    life: str = ""

    def is_told_by(self, pod: Candidate) -> bool:
        """Whether the pod's status says that it was refused with this request."""
        return bool(self.text) and self.text in pod.message and pod.uid not in self.others


def unexplained(requests: Sequence[RefusedRequest], pods: Sequence[Candidate]) -> tuple[RefusedRequest, ...]:
    """The requests that no pod's status explains, where one that may have sent it seems to wait.

    Each pod explains one of them.
    """
    left = list(requests)
    told: set[str] = set()
    for pod in pods if left else ():
        if its := [request for request in left if request.is_told_by(pod)]:
            left.remove(min(its, key=lambda request: (*request.uids, pod.uid).index(pod.uid)))
            told.add(pod.uid)
    waiting = {pod.uid for pod in pods if pod.waits}
    return tuple(
        replace(request, uids=_without(told, request), others=request.others | told)
        for request in left
        if not waiting.isdisjoint(request.uids)
    )[-KEPT:]


def answered(uid: str, requests: Iterable[RefusedRequest]) -> tuple[RefusedRequest, ...]:
    """The requests once this pod got an answer: it sent none of them."""
    return tuple(replace(request, uids=_without({uid}, request)) for request in requests)


def suspects(requests: Sequence[RefusedRequest], pods: Sequence[Candidate]) -> frozenset[str]:
    """The uids of the pods that were refused most likely, though they still seem to wait: one a request."""
    return frozenset(uid for uid, _ in _suspected(requests, pods))


def guessed(requests: Sequence[RefusedRequest], pods: Sequence[Candidate]) -> frozenset[str]:
    """Those of them that are suspected of a request which another pod may have sent as well."""
    return frozenset(uid for uid, request in _suspected(requests, pods) if len(request.uids) > 1)


def _suspected(
    requests: Sequence[RefusedRequest], pods: Sequence[Candidate]
) -> Iterator[tuple[str, RefusedRequest]]:
    waiting = {pod.uid for pod in pods if pod.waits}
    found: set[str] = set()
    for request in unexplained(requests, pods):
        uid = next((uid for uid in request.uids if uid not in found), "")
        if uid in waiting:  # whose pod is over without the text may have been refused: no other is suspected
            found.add(uid)
            yield uid, request


def _without(uids: Iterable[str], request: RefusedRequest) -> tuple[str, ...]:
    gone = set(uids)
    return tuple(uid for uid in request.uids if uid not in gone)

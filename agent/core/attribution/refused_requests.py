"""Which pods were refused. A request names no pod; the status of its pod shows the refusal later. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from agent.core.allocation.known_pods import KnownPods
from agent.scheduler_api.candidate import Candidate

#: Requests that are remembered, the last ones.
MAX_REMEMBERED = 64


class RefusedAllocate(Struct, frozen=True):
    """An Allocate that was refused."""

    resource: str
    #: The device IDs of each container.
    containers: tuple[tuple[str, ...], ...]
    #: Why, as the kubelet shows it on the pod.
    text: str

    @classmethod
    def from_error(
        cls, resource: str, containers: Iterable[Sequence[str]], exc: Exception
    ) -> RefusedAllocate:
        """The refusal with this error."""
        return cls(resource, tuple(map(tuple, containers)), str(exc))

    @property
    def ids(self) -> tuple[str, ...]:
        """The device IDs of all containers."""
        return tuple(chain.from_iterable(self.containers))


class RefusedRequest(Struct, frozen=True):
    """A request of one container that was refused. The kubelet writes the text into the status of its pod.

    Source: k8s.io/kubernetes, pkg/kubelet/kubelet.go, rejectPod.
    """

    text: str
    #: The uids of the pods that may have sent it, the most likely one first.
    uids: tuple[str, ...]
    #: The uids of pods that show the same text from another request.
    others: frozenset[str] = frozenset()
    #: The life of the kubelet. The next life asks again for each pod that still waits.
    life: str = ""

    def is_shown_by(self, pod: Candidate) -> bool:
        """Whether the pod's status says that it was refused with this request."""
        return bool(self.text) and self.text in pod.message and pod.uid not in self.others


def unexplained_requests(requests: Sequence[RefusedRequest], pods: KnownPods) -> tuple[RefusedRequest, ...]:
    """The requests that no pod's status shows yet, while a pod that may have sent them seems to wait.

    The status of one pod explains one request.
    """
    left = list(requests)
    explained: set[str] = set()
    for pod in pods.with_message if left else ():
        if matching := [request for request in left if request.is_shown_by(pod)]:
            left.remove(min(matching, key=lambda request: (*request.uids, pod.uid).index(pod.uid)))
            explained.add(pod.uid)
    waiting = {pod.uid for pod in pods.waiting}
    return tuple(
        replace(request, uids=_uids_without(explained, request), others=request.others | explained)
        for request in left
        if not waiting.isdisjoint(request.uids)
    )[-MAX_REMEMBERED:]


def without_answered_pod(uid: str, requests: Iterable[RefusedRequest]) -> tuple[RefusedRequest, ...]:
    """The requests after this pod got an answer: the pod sent none of them."""
    return tuple(replace(request, uids=_uids_without({uid}, request)) for request in requests)


def suspected_uids(requests: Sequence[RefusedRequest], pods: KnownPods) -> frozenset[str]:
    """The uids of pods that were refused most likely and still seem to wait, one for each request."""
    return frozenset(uid for uid, _ in _suspects_with_requests(requests, pods))


def guessed_suspects(requests: Sequence[RefusedRequest], pods: KnownPods) -> frozenset[str]:
    """The uids of suspects for requests that another pod may have sent as well."""
    return frozenset(uid for uid, request in _suspects_with_requests(requests, pods) if len(request.uids) > 1)


def _suspects_with_requests(
    requests: Sequence[RefusedRequest], pods: KnownPods
) -> Iterator[tuple[str, RefusedRequest]]:
    waiting = {pod.uid for pod in pods.waiting}
    suspected: set[str] = set()
    for request in unexplained_requests(requests, pods):
        uid = next((uid for uid in request.uids if uid not in suspected), "")
        # A pod that ended without the text may be the refused one. Then no other pod is suspected.
        if uid in waiting:
            suspected.add(uid)
            yield uid, request


def _uids_without(uids: Iterable[str], request: RefusedRequest) -> tuple[str, ...]:
    gone = set(uids)
    return tuple(uid for uid in request.uids if uid not in gone)

"""Finds pods for which koord-scheduler and this node count different cards, and pods that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from agent.scheduler_api import DEFAULT_SCHEDULER, Candidate
from agent.scheduler_api.document_parts import part_of, rows_of, text
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.node_checks import CheckedPod, NodeLook, Observed
from agent.schedulers.common.resource_names import CORE, MEMORY, RATIO
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED, allocated
from agent.schedulers.koordinator.device_object import VENDOR
from agent.schedulers.koordinator.doctor.device_check import entries
from agent.schedulers.koordinator.doctor.queries import WAITING_QUERY
from agent.vendor_api.text import shorten

PODS = "koord-pods"
#: Pods of a kind that are named one by one.
SHOWN = 5
METAX = "metax-tech.com/"
ISOLATION = "koordinator.sh/gpu-isolation-provider"

UNSEEN = FindingKind(
    PODS,
    "scheduler-choice-unheeded",
    Severity.WARNS,
    "koord-scheduler chose cards for pods here, and no resource of the pods' vendor follows "
    "koord-scheduler's choice",
    "Every resource of the vendor has placement `local`. The agent may give a pod other cards than "
    "koord-scheduler chose. It may also give away the cards of pods that ask for koordinator.sh/ "
    "resources alone.",
    "set placement: auto (or claim) on the vendor's resources in the config; no restart is needed",
)
UNBELIEVED = FindingKind(
    PODS,
    "annotation-not-believed",
    Severity.WARNS,
    "a pod of Kubernetes' own scheduler has an annotation with cards, as if Koordinator had chosen the cards",
    "Kubernetes' own scheduler does not write this annotation, and the API server does not protect the "
    "annotation from other writers. The agent ignores the cards.",
    "if Koordinator shall choose the cards set schedulerName: koord-scheduler in the pod's template; else "
    "remove the annotation " + ALLOCATED,
)
NOT_HEEDED = FindingKind(
    PODS,
    "choice-not-heeded",
    Severity.WARNS,
    "a scheduler chose cards for a pod, and the pod has or gets other cards",
    "The pod's annotation is malformed, names a card that is not here, or does not fit the pod's "
    "request. The agent ignores the annotation, and koord-scheduler counts by it. So koord-scheduler "
    "chooses cards that are in use, and keeps other cards free.",
    "let only koord-scheduler write the annotation "
    + ALLOCATED
    + ", and correct what the finding names; then let the pod's controller make a new pod: kubectl -n "
    "{namespace} delete pod {pod}",
)
TWICE = FindingKind(
    PODS,
    "card-given-twice",
    Severity.WARNS,
    "koord-scheduler gave a card of another pod to a pod that does not ask the kubelet for devices",
    "koord-scheduler counts by its own annotations. When the kubelet exchanged the cards of two pods, "
    "or a pod of another scheduler has a card, koord-scheduler takes a used card for free.",
    "delete the pod that the finding names, and let its controller make a new pod; if either of two "
    "pods will do: kubectl -n {namespace} delete pod {pod}",
)
UNBOOKED = FindingKind(
    PODS,
    "pod-not-booked",
    Severity.WARNS,
    "a pod has cards of this node, and koord-scheduler does not count the pod",
    "koord-scheduler counts a pod by its annotation. A pod that another scheduler placed has no such "
    "annotation, so koord-scheduler chooses the pod's cards for other pods.",
    "set schedulerName: koord-scheduler in the pod's template, then run kubectl -n {namespace} delete "
    "pod {pod}; or keep pods of other schedulers off this node with a taint",
)
NO_CORE = FindingKind(
    PODS,
    "metax-pod-without-core",
    Severity.WARNS,
    "a pod that asks for a share of a MetaX card names no koordinator.sh/gpu-core",
    "Without koordinator.sh/gpu-core koord-scheduler cannot record the share. It tries without end, and "
    "the pod stays Pending without a condition that says why.",
    "add koordinator.sh/gpu-core (percent of a card) to the limits of pod {pod} in {namespace}, and "
    "create the pod again",
)
NO_PROVIDER = FindingKind(
    PODS,
    "isolation-label-missing",
    Severity.WARNS,
    "a pod asks for an isolation of shares that the Node's label does not name",
    "koord-scheduler places the pod only on Nodes with the same label. All other Nodes fail its filter.",
    "if this node has the isolation: kubectl label node {node} " + ISOLATION + "={value}",
)

#: Judges one pod; None where nothing is wrong.
Judge = Callable[[NodeLook, CheckedPod, Candidate], Finding | None]


def pods(look: NodeLook) -> Iterator[Finding]:
    """Pods for which koord-scheduler and the agent count different cards of this node, and pods that wait."""
    kind = look.objects.has_kind
    if not kind.value:
        yield not_made(PODS, kind.why) if kind.value is None else well(PODS, "Koordinator is not installed")
        return
    waiting = look.queried[WAITING_QUERY]
    judged: tuple[tuple[Observed[tuple[CheckedPod, ...]], tuple[Judge, ...]], ...] = (
        (look.pods, (_unseen, _unbelieved, _not_heeded, _twice, _unbooked)),
        (waiting, (_without_core, _without_provider)),
    )
    found = []
    for observed, judges in judged:
        if observed.value is None:
            found.append(not_made(PODS, observed.why))
        for judge in judges:
            found += _first(look, observed.value or (), judge)
    number = len(look.pods.value or ()) + len(waiting.value or ())
    yield from found or [
        well(PODS, f"koord-scheduler and the agent count the same cards for all {number} pods")
    ]


def _first(look: NodeLook, checked: tuple[CheckedPod, ...], judge: Judge) -> list[Finding]:
    pairs = ((pod, pod.candidate) for pod in checked)
    judged = (judge(look, pod, candidate) for pod, candidate in pairs if candidate and not candidate.ended)
    found = [finding for finding in judged if finding is not None]
    if len(found) > SHOWN:
        found[SHOWN - 1 :] = [
            replace(found[SHOWN - 1], what=f"{found[SHOWN - 1].what} (and {len(found) - SHOWN} more pods)")
        ]
    return found


def _unseen(look: NodeLook, _: CheckedPod, pod: Candidate) -> Finding | None:
    promised = _promised(pod)
    if pod.scheduler == DEFAULT_SCHEDULER:
        return None
    for name, vendor in look.vendors.items():
        shared = promised.intersection(device.uuid for device in vendor.devices.value or ())
        if shared and vendor.is_local:
            return UNSEEN.found(
                f"koord-scheduler chose {', '.join(sorted(shared)[:3])} of {name} for {_name(pod)}"
            )
    return None


def _unbelieved(look: NodeLook, _: CheckedPod, pod: Candidate) -> Finding | None:
    if pod.scheduler != DEFAULT_SCHEDULER or ALLOCATED not in pod.annotations or not _asks(look, pod):
        return None
    return UNBELIEVED.found(f"{_name(pod)} has {ALLOCATED}, and its scheduler is {DEFAULT_SCHEDULER}")


def _not_heeded(_: NodeLook, checked: CheckedPod, pod: Candidate) -> Finding | None:
    names = {"namespace": shorten(pod.namespace), "pod": shorten(pod.name)}
    return NOT_HEEDED.found(checked.objection, **names) if checked.objection else None


def _twice(look: NodeLook, _: CheckedPod, pod: Candidate) -> Finding | None:
    for allocation in rows_of(look.status, "allocations"):
        is_external = allocation.get("source") == "annotation"
        is_of_pod = is_external and part_of(allocation, "owner").get("uid") == pod.uid
        if is_of_pod and allocation.get("state") != "released" and (why := text(allocation, "reason")):
            names = {"namespace": shorten(pod.namespace), "pod": shorten(pod.name)}
            return TWICE.found(f"{_name(pod)}: {why}", **names)
    return None


def _unbooked(look: NodeLook, _: CheckedPod, pod: Candidate) -> Finding | None:
    device = look.objects.object.value
    if not device or look.cards.isdisjoint(text(it, "id") for it in entries(device[0])):
        return None
    asks = _asks(look, pod)
    if not asks or ALLOCATED in pod.annotations or pod.over:
        return None
    what = f"{_name(pod)} asks for {', '.join(asks)}, and has no {ALLOCATED}"
    return UNBOOKED.found(what, namespace=shorten(pod.namespace), pod=shorten(pod.name))


def _without_core(look: NodeLook, _: CheckedPod, pod: Candidate) -> Finding | None:
    device = look.objects.object.value
    if not device or part_of(part_of(device[0], "metadata"), "labels").get(VENDOR) != "metax":
        return None
    names = {name for it in pod.containers for name in it.limits}
    if CORE in names or not names & {MEMORY, RATIO} or not any(it.startswith(METAX) for it in names):
        return None
    return NO_CORE.found(f"{_name(pod)} waits", namespace=shorten(pod.namespace), pod=shorten(pod.name))


def _without_provider(look: NodeLook, checked: CheckedPod, pod: Candidate) -> Finding | None:
    wanted = text(part_of(part_of(checked.document, "metadata"), "labels"), ISOLATION)
    node = look.node_object.value
    offered = part_of(part_of(node, "metadata"), "labels").get(ISOLATION)
    if node is None or not wanted or offered == wanted:
        return None
    has = f"the Node has {shorten(str(offered or 'none'))}"
    what = f"{_name(pod)} waits for {ISOLATION}={shorten(wanted)}, {has}"
    return NO_PROVIDER.found(what, node=look.node, value=shorten(wanted))


def _promised(pod: Candidate) -> frozenset[str]:
    """Uuids of the cards in koord-scheduler's annotation; none where the annotation cannot be read."""
    try:
        return frozenset(it.uuid for it in allocated(pod.annotations.get(ALLOCATED, "{}")))
    except ValueError:
        return frozenset()


def _asks(look: NodeLook, pod: Candidate) -> list[str]:
    return sorted({name for it in pod.containers for name in it.limits} & look.names)


def _name(pod: Candidate) -> str:
    return f"{shorten(pod.namespace)}/{shorten(pod.name)}"

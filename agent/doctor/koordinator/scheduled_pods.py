"""Pods that Koordinator's scheduler and this node do not agree about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.cluster.api import Object
from agent.cluster.object_fields import text
from agent.cluster.pods import candidate
from agent.core.allocation.external_pods import objection
from agent.core.allocation.pod_attribution import read_claims
from agent.core.model import AllocationSource
from agent.doctor.findings import Finding, FindingKind, Severity, not_made, well
from agent.doctor.koordinator.device_check import entries
from agent.doctor.surroundings import Observed, Surroundings
from agent.scheduler_api import DEFAULT_SCHEDULER, Candidate, Cards, Claim, common_dialects, reads
from agent.scheduler_api.document_parts import part_of, rows_of
from agent.schedulers.common.resource_names import CORE, MEMORY, RATIO
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED, allocated
from agent.schedulers.koordinator.device_object import VENDOR
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
    "koord-scheduler chose cards for pods here, and no resource of theirs heeds it",
    "Every resource of the vendor has placement `local`: a pod gets another card than it was promised, and "
    "cards of pods that ask for koordinator.sh/ resources alone are given away.",
    "set placement: auto (or claim) on the vendor's resources in the config; no restart is needed",
)
UNBELIEVED = FindingKind(
    PODS,
    "annotation-not-believed",
    Severity.WARNS,
    "a pod of Kubernetes' own scheduler names cards as if Koordinator had chosen them",
    "That scheduler writes no such thing, and the API server does not keep it as koord-scheduler's: the "
    "cards are not heeded.",
    "schedulerName: koord-scheduler in the pod's template, where Koordinator is to choose; else remove the "
    "annotation " + ALLOCATED,
)
NOT_HEEDED = FindingKind(
    PODS,
    "choice-not-heeded",
    Severity.WARNS,
    "a scheduler chose cards for a pod, and it has or gets others",
    "Its annotation makes no sense, names a card that is not here, or does not fit what the pod asks for, "
    "and is as if it were not there. koord-scheduler counts by it: it promises cards that are taken, and "
    "keeps others free.",
    "leave the annotation "
    + ALLOCATED
    + " to koord-scheduler, and mend what is said of it; then kubectl -n {namespace} delete pod {pod}, for "
    "its controller to make it anew",
)
TWICE = FindingKind(
    PODS,
    "card-given-twice",
    Severity.WARNS,
    "koord-scheduler gave a pod, which asks no device plugin, a card that another pod has",
    "It counts by its own annotations: where the kubelet gave two pods each other's cards, or a pod of "
    "another scheduler has one, it takes the wrong card for free.",
    "delete the pod that the finding says to delete, for its controller to make it anew; where it says one "
    "of the pods, kubectl -n {namespace} delete pod {pod}",
)
UNBOOKED = FindingKind(
    PODS,
    "pod-not-booked",
    Severity.WARNS,
    "a pod has cards of this node of which koord-scheduler knows nothing",
    "It counts what its own annotation says, whoever wrote it; a pod that another scheduler placed has none, "
    "and its cards are promised again.",
    "schedulerName: koord-scheduler in the pod's template, and kubectl -n {namespace} delete pod {pod}; or "
    "keep pods of other schedulers off this node by a taint",
)
NO_CORE = FindingKind(
    PODS,
    "metax-pod-without-core",
    Severity.WARNS,
    "a pod that asks for a share of a MetaX card names no koordinator.sh/gpu-core",
    "koord-scheduler cannot write the share down without it, tries again for ever, and the pod stays "
    "Pending without a condition that says why.",
    "add koordinator.sh/gpu-core to the limits of pod {pod} in {namespace} (percent of a card), and make it "
    "anew",
)
NO_PROVIDER = FindingKind(
    PODS,
    "isolation-label-missing",
    Severity.WARNS,
    "a pod asks for an isolation of shares that the Node does not name",
    "koord-scheduler places it only on Nodes with the same label; elsewhere its filter fails.",
    "where this node has it: kubectl label node {node} " + ISOLATION + "={value}",
)

Judge = Callable[[Surroundings, Object, Candidate], Finding | None]


def pods(around: Surroundings) -> Iterator[Finding]:
    """Pods of this node whose cards koord-scheduler and the agent see differently, and pods that wait."""
    kind, here = around.cluster.koordinator.kind, around.cluster.pods
    if not kind.value:
        yield not_made(PODS, kind.why) if kind.value is None else well(PODS, "Koordinator is not installed")
        return
    waiting = around.cluster.koordinator.waiting
    asked = (
        (here, (_unseen, _unbelieved, _not_heeded, _twice, _unbooked)),
        (waiting, (_without_core, _without_provider)),
    )
    found = []
    for look, judges in asked:
        if look.value is None:
            found.append(not_made(PODS, look.why))
        for judge in judges:
            found += _first(around, look.value or (), judge)
    number = len(here.value or ()) + len(waiting.value or ())
    yield from found or [well(PODS, f"none of {number} pods is in doubt")]


def _first(around: Surroundings, pods: tuple[Object, ...], judge: Judge) -> list[Finding]:
    kept = reads(around.configuration.schedulers)
    pairs = ((pod, candidate(pod, kept)) for pod in pods)
    judged = (judge(around, pod, it) for pod, it in pairs if it is not None and not it.ended)
    found = [it for it in judged if it is not None]
    if len(found) > SHOWN:
        found[SHOWN - 1 :] = [
            replace(found[SHOWN - 1], what=f"{found[SHOWN - 1].what} (and {len(found) - SHOWN} more pods)")
        ]
    return found


def _unseen(around: Surroundings, _: Object, pod: Candidate) -> Finding | None:
    promised = _promised(pod)
    if pod.scheduler == DEFAULT_SCHEDULER:
        return None
    for vendor, look in around.vendors.items():
        shared = promised.intersection(it.uuid for it in look.value or ())
        rules = around.config.vendor(vendor).resources
        if shared and all(it.placement == "local" for it in rules):
            return UNSEEN.found(f"{_name(pod)} was promised {', '.join(sorted(shared)[:3])} of {vendor}")
    return None


def _unbelieved(around: Surroundings, _: Object, pod: Candidate) -> Finding | None:
    if pod.scheduler != DEFAULT_SCHEDULER or ALLOCATED not in pod.annotations or not _asks(around, pod):
        return None
    return UNBELIEVED.found(f"{_name(pod)} has {ALLOCATED}, and its scheduler is {DEFAULT_SCHEDULER}")


def _not_heeded(around: Surroundings, _: Object, pod: Candidate) -> Finding | None:
    if pod.over or pod.scheduler == DEFAULT_SCHEDULER or not pod.annotations:
        return None
    why = next(_whys(around, pod), "")
    names = {"namespace": shorten(pod.namespace), "pod": shorten(pod.name)}
    return NOT_HEEDED.found(why, **names) if why else None


def _whys(around: Surroundings, pod: Candidate) -> Iterator[str]:
    rows = [it for it in rows_of(around.told.value or {}, "allocations") if it.get("state") != "released"]
    if any(part_of(it, "claim").get("uid") == pod.uid for it in rows):
        return  # the agent that runs heeds it
    schedulers = around.configuration.schedulers
    heeding, common = dict[str, Cards](), common_dialects(schedulers)
    for plugin in around.configuration.plugins:
        rules = [it for it in around.config.vendor(plugin.name).resources if it.placement != "local"]
        its = around.vendors.get(plugin.name, Observed()).value
        if plugin.vendor is None or not its or not rules:
            continue
        heeding[plugin.name] = known = {it.uuid: it.minor for it in its if it.parent is None}
        for name in [it.name for it in rules if any(it.name in one.limits for one in pod.containers)]:
            claims, wrong = read_claims(pod, name, (*plugin.vendor.schedulers, *common), known)
            yield from wrong[:1]
            yield from _elsewhere(rows, name, claims)
    if (wrong_one := objection(schedulers, pod, around.names, heeding)) is not None:
        yield f"{_name(pod)}: {wrong_one.why}"


def _elsewhere(rows: Sequence[Mapping[str, Any]], resource: str, claims: Sequence[Claim]) -> Iterator[str]:
    """That a container has other cards than were chosen for it."""
    for claim in claims:
        place = (resource, claim.uid, claim.container)
        for it in rows:
            owner, has = part_of(it, "owner"), [str(one) for one in it.get("devices") or ()]
            if (it.get("resource"), owner.get("uid"), owner.get("container")) != place or not claim.devices:
                continue
            if set(has) != set(claim.devices):
                its = f"container {claim.container} has {', '.join(has)}"
                yield f"{claim.namespace}/{claim.pod}: {its}, chosen was {', '.join(claim.devices)}"


def _twice(around: Surroundings, _: Object, pod: Candidate) -> Finding | None:
    for it in rows_of(around.told.value or {}, "allocations"):
        mine = it.get("source") == AllocationSource.ANNOTATION and part_of(it, "owner").get("uid") == pod.uid
        if mine and it.get("state") != "released" and (why := text(it, "reason")):
            names = {"namespace": shorten(pod.namespace), "pod": shorten(pod.name)}
            return TWICE.found(f"{_name(pod)}: {why}", **names)
    return None


def _unbooked(around: Surroundings, _: Object, pod: Candidate) -> Finding | None:
    device = around.cluster.koordinator.device.value
    if not device or around.cards.isdisjoint(text(it, "id") for it in entries(device[0])):
        return None
    asks = _asks(around, pod)
    if not asks or ALLOCATED in pod.annotations or pod.over:
        return None
    what = f"{_name(pod)} asks for {', '.join(asks)}, and has no {ALLOCATED}"
    return UNBOOKED.found(what, namespace=shorten(pod.namespace), pod=shorten(pod.name))


def _without_core(around: Surroundings, _: Object, pod: Candidate) -> Finding | None:
    device = around.cluster.koordinator.device.value
    if not device or part_of(part_of(device[0], "metadata"), "labels").get(VENDOR) != "metax":
        return None
    names = {name for it in pod.containers for name in it.limits}
    if CORE in names or not names & {MEMORY, RATIO} or not any(it.startswith(METAX) for it in names):
        return None
    return NO_CORE.found(f"{_name(pod)} waits", namespace=shorten(pod.namespace), pod=shorten(pod.name))


def _without_provider(around: Surroundings, pod: Object, it: Candidate) -> Finding | None:
    wanted = text(part_of(part_of(pod, "metadata"), "labels"), ISOLATION)
    node = around.cluster.node.value
    there = part_of(part_of(node, "metadata"), "labels").get(ISOLATION)
    if node is None or not wanted or there == wanted:
        return None
    what = (
        f"{_name(it)} waits for {ISOLATION}={shorten(wanted)}, the Node has {shorten(str(there or 'none'))}"
    )
    return NO_PROVIDER.found(what, node=around.node, value=shorten(wanted))


def _promised(pod: Candidate) -> frozenset[str]:
    try:
        return frozenset(it.uuid for it in allocated(pod.annotations.get(ALLOCATED, "{}")))
    except ValueError:
        return frozenset()


def _asks(around: Surroundings, pod: Candidate) -> list[str]:
    return sorted({name for it in pod.containers for name in it.limits} & around.names)


def _name(pod: Candidate) -> str:
    return f"{shorten(pod.namespace)}/{shorten(pod.name)}"

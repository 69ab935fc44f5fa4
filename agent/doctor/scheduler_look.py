"""Gives each registered scheduler's checks the look at the node that their contract has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from agent.cluster.api_protocol import Object
from agent.cluster.pods import candidate
from agent.config.validation import replicas_as_cards
from agent.core.attribution.claim_reading import read_claims
from agent.core.attribution.external_use_rules import objection
from agent.core.placement.placement_mismatch import differing_cards
from agent.doctor.surroundings import Surroundings
from agent.http.inspect_document import InspectedAllocation, InspectedOwner, to_builtins
from agent.scheduler_api import DEFAULT_SCHEDULER, Candidate, Cards, Claim, Scheduler, reads
from agent.scheduler_api.node_checks import CheckedPod, CheckedVendor, NodeLook, Observed, SchedulerObjects
from agent.scheduler_api.scheduler import common_dialects
from agent.vendor_api.text import shorten


def node_look(around: Surroundings, scheduler: Scheduler) -> NodeLook:
    """The surroundings as a check of this scheduler sees them."""
    report = around.config.report
    objects = around.cluster.schedulers.get(scheduler.name, SchedulerObjects())
    whole_cards = scheduler.report.whole_cards if scheduler.report is not None else ()
    queries = scheduler.checks.pods if scheduler.checks is not None else ()
    return NodeLook(
        around.node,
        objects,
        mode=report.mode,
        vendor=report.vendor,
        directory=report.device_infos_dir,
        shares=next((rule.name for _, _, rule in replicas_as_cards(around.config, whole_cards)), ""),
        node_object=around.cluster.node,
        pods=_checked(around, around.cluster.pods, are_here=True),
        queried={name: _checked(around, objects.pods.get(name, Observed())) for name in queries},
        vendors={name: _vendor(around, name) for name in around.known_vendors},
        status=json.loads(json.dumps(to_builtins(around.document))),  # with lists, as over the wire
        serves=around.serves,
        names=around.names,
        cards=around.cards,
        files=around.report_files,
    )


def _vendor(around: Surroundings, name: str) -> CheckedVendor:
    rules = around.config.vendor(name).resources
    is_local = all(rule.placement == "local" for rule in rules)
    return CheckedVendor(around.vendors.get(name, Observed()), around.has_cards(name), is_local)


def _checked(
    around: Surroundings, pods: Observed[tuple[Object, ...]], *, are_here: bool = False
) -> Observed[tuple[CheckedPod, ...]]:
    """The pods with what the agent makes of them; objections only of pods that are on this node."""
    if pods.value is None:
        return Observed(why=pods.why)
    kept = reads(around.configuration.schedulers)
    pairs = ((document, candidate(document, kept)) for document in pods.value)
    return Observed(
        tuple(
            CheckedPod(document, pod, _objection(around, pod) if are_here and pod is not None else "")
            for document, pod in pairs
        )
    )


def _objection(around: Surroundings, pod: Candidate) -> str:
    """Why the agent ignores a scheduler's choice of cards for the pod; empty without such a choice."""
    if pod.over or pod.ended or pod.scheduler == DEFAULT_SCHEDULER or not pod.annotations:
        return ""
    return next(_objections(around, pod), "")


def _objections(around: Surroundings, pod: Candidate) -> Iterator[str]:
    rows = around.document.in_use
    if any(row.claim is not None and row.claim.uid == pod.uid for row in rows):
        return  # the running agent follows the choice
    schedulers = around.configuration.schedulers
    heeding, common = dict[str, Cards](), common_dialects(schedulers)
    for plugin in around.configuration.plugins:
        rules = [rule for rule in around.config.vendor(plugin.name).resources if rule.placement != "local"]
        devices = around.vendors.get(plugin.name, Observed()).value
        if plugin.vendor is None or not devices or not rules:
            continue
        heeding[plugin.name] = known = {it.uuid: it.minor for it in devices if it.parent is None}
        for name in [it.name for it in rules if any(it.name in one.limits for one in pod.containers)]:
            claims, wrong = read_claims(pod, name, (*plugin.vendor.dialects, *common), known)
            yield from wrong[:1]
            yield from _elsewhere(rows, name, claims)
    if (wrong_one := objection(schedulers, pod, around.names, heeding)) is not None:
        yield f"{shorten(pod.namespace)}/{shorten(pod.name)}: {wrong_one.why}"


def _elsewhere(rows: Sequence[InspectedAllocation], resource: str, claims: Sequence[Claim]) -> Iterator[str]:
    """A sentence for each container that has other cards than its claim names."""
    for claim in claims:
        place = (resource, claim.uid, claim.container)
        for row in rows:
            owner = row.owner or InspectedOwner()
            if (row.resource, owner.uid, owner.container) != place or not claim.devices:
                continue
            if set(row.devices) != set(claim.devices):
                yield f"{claim.namespace}/{claim.pod}: {differing_cards(claim, row.devices)}"

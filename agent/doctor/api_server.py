"""Checks whether the API server can be reached, and what this identity may do there."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well

SERVER = "api-server"
RIGHTS = "rbac"

AWAY = FindingKind(
    SERVER,
    "api-server-away",
    Severity.WARNS,
    "the API server cannot be reached",
    "The agent serves cards without the API server. Labels, Events and a config that matches by the "
    "Node's labels wait until the API server answers.",
    "try the same file: kubectl --kubeconfig F get --raw /readyz; in a pod see that the pod has a "
    "service account (automountServiceAccountToken) and that no NetworkPolicy blocks the API server",
)
UNSEEN = FindingKind(
    SERVER,
    "claims-unseen",
    Severity.STOPS,
    "a scheduler must choose the cards of a resource, and the agent cannot see pods",
    "The scheduler's choice is an annotation of the pod. The agent refuses each pod that asks for the "
    "resource, and is not ready.",
    "let the agent use the API server and see its pods (in the chart api.enabled, pods.enabled and "
    "rbac.create), or set placement of {resource} to auto",
)
DENIED = FindingKind(
    RIGHTS,
    "right-missing",
    Severity.WARNS,
    "this identity may not do what the config needs",
    "The feature that the finding names does not work. All other features work.",
    "give the identity the chart's ClusterRole (helm upgrade with rbac.create=true), or add this rule: "
    'apiGroups ["{group}"], resources ["{resource}"], verbs ["{verb}"]; then check: kubectl auth can-i '
    "{verb} {kind} --as system:serviceaccount:NAMESPACE:xpu-agent",
)


def server(around: Surroundings) -> Iterator[Finding]:
    """Whether the API server is known and answers."""
    away = around.cluster.away
    why_unseen = _why_no_pod_is_seen(around)
    rules = (rule for vendor in around.config.vendors.values() for rule in vendor.resources)
    claimed = [it.name for it in rules if it.placement == "claim"]
    if why_unseen and claimed:
        yield UNSEEN.found(f"{claimed[0]} has placement 'claim', and {why_unseen}", resource=claimed[0])
    elif away:
        yield AWAY.found(away) if around.cluster.broken else not_made(SERVER, away)
    else:
        yield well(SERVER, "the API server answers")


def _why_no_pod_is_seen(around: Surroundings) -> str:
    """Why the agent cannot see pods.

    Empty where it can, or where the running agent may have other credentials.
    """
    cluster = around.cluster
    denied = [it for it in cluster.denied.value or () if it.resource == "pods"]
    if denied:
        return f"{denied[0]} is forbidden"
    return cluster.away if cluster.away and not cluster.broken and not around.serves else ""


def rights(around: Surroundings) -> Iterator[Finding]:
    """The result of a SelfSubjectAccessReview for each right that the config needs."""
    denied = around.cluster.denied
    if denied.value is None:
        yield not_made(RIGHTS, denied.why)
        return
    for need in denied.value:
        places = {"group": need.group, "resource": need.resource, "verb": need.verb}
        kind = f"{need.resource}.{need.group}" if need.group else need.resource
        yield DENIED.found(f"{need} is forbidden: {need.feature}", **places, kind=kind)
    if not denied.value:
        yield well(RIGHTS, "this identity may do all that the config needs")

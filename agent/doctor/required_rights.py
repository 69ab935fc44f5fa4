"""The rights at the API server that the configured features need, as SelfSubjectAccessReview states them."""

from __future__ import annotations

from dataclasses import dataclass

from agent.config.settings import PublishedAs
from agent.scheduler_api.node_report import NodeReport


@dataclass(frozen=True, slots=True)
class RequiredRight:
    """One right.

    An empty `name` means all objects of the kind. `feature` is what does not work without it.
    """

    verb: str
    resource: str
    feature: str
    group: str = ""
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}" + (f"/{self.name}" if self.name else "")

    @property
    def attributes(self) -> dict[str, str]:
        """The spec.resourceAttributes of the review (authorization.k8s.io/v1)."""
        resource, _, subresource = self.resource.partition("/")
        attributes = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "name": self.name,
            "namespace": self.namespace,
        }
        return {key: value for key, value in attributes.items() if value}


def required(
    node: str,
    namespace: str,
    published_as: PublishedAs | None,
    *,
    events: bool = True,
    pods: bool = True,
    report: NodeReport | None = None,
    writes: bool = False,
    withdraws: bool = False,
    locks: bool = False,
    annotates: bool = False,
    extends: bool = False,
    receipts: bool = False,
) -> tuple[RequiredRight, ...]:
    """All rights that the agent needs.

    `published_as` says how the labels are published, with `namespace` for NodeFeature objects. Each other
    argument is a feature. `events`, `pods`: the agent writes Events and follows pods. `writes`: the agent
    writes the cards to the API object of `report`. `withdraws`: an agent of this node wrote such objects
    before. `locks`: schedulers lock the Node until a pod has its devices. `annotates`, `extends`: vendors
    give the Node annotations and extended resources. `receipts`: schedulers read receipts on pods.
    """
    own = "the Node's labels, by which the config may be chosen"
    of_pods = "the pods of this node, for schedulers' claims and the doctor's findings on pods"
    of_events = "Events of cards and pods (kubectl describe)"
    needs = [RequiredRight(verb, "nodes", own, name=node) for verb in ("get", "list", "watch")]
    if pods:
        needs += [RequiredRight(verb, "pods", of_pods) for verb in ("list", "watch")]
    if pods and receipts:
        by = "what schedulers read on pods that have their devices (pods.receipts of the chart)"
        needs.append(RequiredRight("patch", "pods", by))
    if events:
        event_verbs = ("create", "patch")
        needs += [
            RequiredRight(verb, "events", of_events, "events.k8s.io", namespace="default")
            for verb in event_verbs
        ]
    patches = [
        *(["the labels that the cards give the Node"] if published_as == "node" else []),
        *(["schedulers' locks on the Node, which it frees (any labels.output but none)"] if locks else []),
        *(["the annotations that vendors give the Node (nodeAnnotations of the chart)"] if annotates else []),
    ]
    if patches:
        needs.append(RequiredRight("patch", "nodes", "; ".join(patches), name=node))
    if extends:
        by = "the extended resources that vendors count for the Node (nodeStatus.resources of the chart)"
        needs.append(RequiredRight("patch", "nodes/status", by, name=node))
    if published_as == "nodeFeature":
        by = "the labels that the cards give the Node, as a NodeFeature object"
        verbs = ("get", "create", "update", "delete")
        needs += [
            RequiredRight(verb, "nodefeatures", by, "nfd.k8s-sigs.io", namespace=namespace) for verb in verbs
        ]
    if report is not None and (writes or withdraws):
        granted = f"; {report.granted_by}" if report.granted_by else ""
        by = f"the {report.object.kind} with the node's cards for {report.scheduler} (report.mode{granted})"
        asked = "get list watch create update delete" if writes else "get update delete"
        kind = report.object
        needs += [RequiredRight(verb, kind.plural, by, kind.group) for verb in asked.split()]
    return tuple(needs)

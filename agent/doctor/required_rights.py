"""What the configured features ask of the API server, as SelfSubjectAccessReview words it."""

from __future__ import annotations

from dataclasses import dataclass

from agent.config.settings import PublishedAs


@dataclass(frozen=True, slots=True)
class RequiredRight:
    """One right. `name` empty: on all objects of the kind. `feature` says what goes without it."""

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
        """What spec.resourceAttributes of the review holds (authorization.k8s.io/v1)."""
        resource, _, subresource = self.resource.partition("/")
        given = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "name": self.name,
            "namespace": self.namespace,
        }
        return {key: value for key, value in given.items() if value}


def required(
    node: str,
    namespace: str,
    told_as: PublishedAs | None,
    *,
    events: bool = True,
    pods: bool = True,
    device: bool = False,
    withdraws: bool = False,
    locks: bool = False,
    annotates: bool = False,
    extends: bool = False,
    receipts: bool = False,
) -> tuple[RequiredRight, ...]:
    """Everything that the agent asks of the API server.

    `told_as`: how it tells labels, `namespace` where; `events`: whether it writes those;
    `pods`: whether it follows them; `device`: whether it is to tell Koordinator by the Device object,
    `withdraws` whether it did so before; `locks`: whether schedulers lock the Node until it has served a pod;
    `annotates`: whether vendors give the Node annotations, `extends` whether extended resources; `receipts`:
    whether schedulers read on pods that these have their devices.
    """
    own = "the Node's labels, by which the config may be chosen"
    of = "the pods of this node, for schedulers' claims and what the doctor says of them"
    told = "Events of cards and pods (kubectl describe)"
    needs = [RequiredRight(verb, "nodes", own, name=node) for verb in ("get", "list", "watch")]
    if pods:
        needs += [RequiredRight(verb, "pods", of) for verb in ("list", "watch")]
    if pods and receipts:
        by = "what schedulers read on pods that have their devices (pods.receipts of the chart)"
        needs.append(RequiredRight("patch", "pods", by))
    if events:
        writes = ("create", "patch")
        needs += [
            RequiredRight(verb, "events", told, "events.k8s.io", namespace="default") for verb in writes
        ]
    patches = [
        *(["the labels that the cards give the Node"] if told_as == "node" else []),
        *(["schedulers' locks on the Node, which it frees (any labels.output but none)"] if locks else []),
        *(["the annotations that vendors give the Node (nodeAnnotations of the chart)"] if annotates else []),
    ]
    if patches:
        needs.append(RequiredRight("patch", "nodes", "; ".join(patches), name=node))
    if extends:
        by = "the extended resources that vendors count for the Node (nodeStatus.resources of the chart)"
        needs.append(RequiredRight("patch", "nodes/status", by, name=node))
    if told_as == "nodeFeature":
        by = "the labels that the cards give the Node, as a NodeFeature object"
        verbs = ("get", "create", "update", "delete")
        needs += [
            RequiredRight(verb, "nodefeatures", by, "nfd.k8s-sigs.io", namespace=namespace) for verb in verbs
        ]
    if device or withdraws:
        by = "the cards as Koordinator's scheduler knows them (report.mode; koordinator.enabled of the chart)"
        asked = "get list watch create update delete" if device else "get update delete"
        needs += [RequiredRight(verb, "devices", by, "scheduling.koordinator.sh") for verb in asked.split()]
    return tuple(needs)

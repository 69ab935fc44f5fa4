"""What the configured features ask of the API server, as SelfSubjectAccessReview words it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
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


def required(node: str, *, labels: bool, events: bool) -> tuple[Need, ...]:
    """Everything that is asked of the API server. `labels`: the config asks for the Node's."""
    own = "the Node's labels, by which the config is chosen"
    needs = [Need("list", "pods", "what the doctor says of pods")]
    if labels:
        needs += [Need(verb, "nodes", own, name=node) for verb in ("get", "list", "watch")]
    if events:
        told = "Events of cards and pods (kubectl describe node)"
        needs += [Need(verb, "events", told, namespace="default") for verb in ("create", "patch")]
    return tuple(needs)

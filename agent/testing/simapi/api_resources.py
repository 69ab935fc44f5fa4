"""The resources of an API server, and the places that its paths name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: A Kubernetes object as JSON has it; what one part of this package hands to another is never changed.
Json = dict[str, Any]
#: Namespaced paths go on after these; anything else there is a subresource of the namespace itself.
OF_A_NAMESPACE = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of one API version.

    `custom` resources behave as those of a CRD: no strategic merge patch, no replacing without a
    resourceVersion, a generation that counts. `unconditional`, `creates`: what a PUT without a
    resourceVersion, or of an object that is not there, does with a built-in one. `fields`: what a
    fieldSelector may name beside metadata.name and metadata.namespace.
    """

    group: str
    version: str
    name: str
    kind: str
    namespaced: bool = True
    status: bool = False
    custom: bool = False
    unconditional: bool = True
    creates: bool = False
    returns_deleted: bool = False
    managed: bool = False
    fields: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def qualified(self) -> str:
        """The resource as error texts name it: `leases.coordination.k8s.io`."""
        return f"{self.name}.{self.group}" if self.group else self.name


@dataclass(frozen=True, slots=True)
class Place:
    """The thing that a path names: a collection (`name` empty), an object, or a subresource of an object."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


POD_FIELDS = ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName")
EVENT_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

#: Fields and what PUT does: pkg/apis/core/v1/conversion.go and pkg/registry of k8s.io/kubernetes 1.36.
WELL_KNOWN = (
    Resource("", "v1", "nodes", "Node", namespaced=False, status=True, fields=("spec.unschedulable",)),
    Resource(
        *("", "v1", "pods", "Pod"),
        status=True,
        returns_deleted=True,
        fields=(*POD_FIELDS, "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"),
    ),
    Resource(
        *("", "v1", "events", "Event"),
        creates=True,
        fields=(*(f"involvedObject.{it}" for it in EVENT_FIELDS), "reason", "type", "reportingComponent"),
    ),
    # The real server shows one store of events under both groups; here each has its own.
    Resource("events.k8s.io", "v1", "events", "Event", creates=True),
    Resource("", "v1", "configmaps", "ConfigMap"),
    Resource("", "v1", "secrets", "Secret", fields=("type",)),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", returns_deleted=True),
    Resource(
        *("", "v1", "namespaces", "Namespace"),
        namespaced=False,
        status=True,
        returns_deleted=True,
        fields=("status.phase",),
    ),
    Resource("coordination.k8s.io", "v1", "leases", "Lease", creates=True, unconditional=False),
    Resource("apps", "v1", "daemonsets", "DaemonSet", status=True),
    Resource("apps", "v1", "deployments", "Deployment", status=True),
    Resource(
        *("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
        namespaced=False,
        status=True,
    ),
    Resource(
        "scheduling.koordinator.sh",
        "v1alpha1",
        "devices",
        "Device",
        namespaced=False,
        custom=True,
        managed=True,
    ),
    Resource("nfd.k8s-sigs.io", "v1alpha1", "nodefeatures", "NodeFeature", custom=True),
)


class Catalog:
    """The resources that are served. Resources can be added and removed, as with CRDs."""

    def __init__(self, served: Iterable[Resource]) -> None:
        self._served = {(it.root, it.name): it for it in served}

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._served.values())

    def add(self, resource: Resource) -> None:
        self._served[resource.root, resource.name] = resource

    def drop(self, group: str, name: str) -> None:
        kept = {key: it for key, it in self._served.items() if (it.group, it.name) != (group, name)}
        if len(kept) == len(self._served):
            raise LookupError(f"no resource {name} of the group '{group}' is served")
        self._served = kept

    def of(self, document: Mapping[str, Any]) -> Resource:
        """The resource of an object, by its apiVersion and kind."""
        wanted = (document.get("apiVersion"), document.get("kind"))
        for resource in self:
            if (resource.api_version, resource.kind) == wanted:
                return resource
        raise LookupError(f"{wanted[1]} of {wanted[0]} is not served: add its Resource first")

    def named(self, group: str, name: str) -> Resource | None:
        return next((it for it in self if (it.group, it.name) == (group, name)), None)

    def knows(self, path: str) -> bool:
        """Whether the path is below an API version that has resources."""
        return any(path.startswith(f"{it.root}/") for it in self)

    def place(self, path: str) -> Place | None:
        """The place that the path names; None where nothing is served."""
        words = path.strip("/").split("/")
        depth = 2 if words[0] == "api" else 3
        root, rest = "/" + "/".join(words[:depth]), words[depth:]
        namespace = ""
        if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in OF_A_NAMESPACE:
            namespace, rest = rest[1], rest[2:]
        resource = self._served.get((root, rest[0])) if rest else None
        if resource is None or not 1 <= len(rest) <= 3 or not all(rest):
            return None
        if (namespace and not resource.namespaced) or (
            len(rest) > 1 and resource.namespaced and not namespace
        ):
            return None
        name, subresource = ([*rest[1:], "", ""])[:2]
        if subresource and not (subresource == "status" and resource.status):
            return None
        return Place(resource, namespace, name, subresource)

"""The answers on paths without a resource: version, health, and the lists of resources."""

from __future__ import annotations

from collections.abc import Iterable

from .api_resources import Json, Resource

HEALTH = ("/healthz", "/livez", "/readyz")
#: Paths that every client may read (the cluster role system:public-info-viewer).
PUBLIC = (*HEALTH, "/version")
READ_VERBS = ("get", "list", "watch")
WRITE_VERBS = ("create", "update", "patch", "delete")
VERSION: Json = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3",
    "gitTreeState": "clean",
    "platform": "linux/amd64",
}


def discovered(resources: Iterable[Resource], path: str) -> Json | None:
    """The resource list of the API version that the path names; None for any other path."""
    here = [it for it in resources if it.root == path]
    if not here:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": path.removeprefix("/apis/").removeprefix("/api/"),
        "resources": [entry for it in here for entry in _entries(it)],
    }


def _entries(resource: Resource) -> list[Json]:
    entry = {"name": resource.name, "singularName": resource.kind.lower(), "namespaced": resource.namespaced}
    whole = {**entry, "kind": resource.kind, "verbs": [*READ_VERBS, *WRITE_VERBS]}
    if not resource.status:
        return [whole]
    status = {**entry, "name": f"{resource.name}/status", "singularName": "", "kind": resource.kind}
    return [whole, {**status, "verbs": ["get", "update", "patch"]}]

"""Reads the objects that the checks need from the API server, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote

from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, NotFound
from agent.cluster.api_protocol import Api, Object
from agent.doctor.required_rights import RequiredRight
from agent.doctor.surroundings import Cluster
from agent.scheduler_api.document_parts import part_of, rows_of
from agent.scheduler_api.node_checks import Observed, SchedulerObjects

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
#: Pods in a page, and pages; a node has some hundreds of pods.
PAGE = 100
PAGES = 100
MAX_CONFIG_MAPS = 50

T = TypeVar("T")


async def node_of(api: Api, name: str) -> tuple[Observed[Object], str]:
    """The Node or why there is none; and why the API server cannot be used, or an empty text."""
    try:
        return Observed(await api.get(f"/api/v1/nodes/{quote(name, safe='')}")), ""
    except ApiAway as exc:
        return Observed(why=str(exc)), str(exc)
    except ApiRefused as exc:
        is_absent = isinstance(exc, NotFound)
        return Observed(why=str(exc), is_absent=is_absent), str(exc) if exc.status == 401 else ""


async def cluster_of(
    api: Api,
    node: Observed[Object],
    name: str,
    needs: Sequence[RequiredRight],
    schedulers: Mapping[str, SchedulerObjects] | None = None,
) -> Cluster:
    """What the API server has besides the Node; `schedulers` is what was read for their checks."""
    return Cluster(node, await _pods(api, name), await _denied(api, needs), schedulers=schedulers or {})


async def _pods(api: Api, node: str) -> Observed[tuple[Object, ...]]:
    query: Mapping[str, str] = {"fieldSelector": f"spec.nodeName={node}", "limit": str(PAGE)}
    found: list[Object] = []
    try:
        for _ in range(PAGES):
            page = await api.get("/api/v1/pods", query)
            found += rows_of(page, "items")
            more = part_of(page, "metadata").get("continue")
            if not more:
                break
            query = {**query, "continue": str(more)}
    except ApiError as exc:
        return Observed(why=f"the pods of {node} could not be listed: {exc}")
    return Observed(tuple(found))


async def config_maps(
    api: Api, wanted: Sequence[tuple[str, str]]
) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """(namespace, name) to data, of the first MAX_CONFIG_MAPS that may be read.

    A missing one has no data.
    """
    found: dict[tuple[str, str], Mapping[str, str]] = {}
    for namespace, name in wanted[:MAX_CONFIG_MAPS]:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{quote(name, safe='')}"
        try:
            data = part_of(await api.get(path), "data")
        except NotFound:
            data = {}
        except ApiError:
            continue
        found[namespace, name] = {key: str(value) for key, value in data.items()}
    return found


async def _denied(api: Api, needs: Sequence[RequiredRight]) -> Observed[tuple[RequiredRight, ...]]:
    try:
        return Observed(tuple([need for need in needs if not await _allowed(api, need)]))
    except ApiError as exc:
        return Observed(why=f"the API server does not say what this identity may do: {exc}")


async def _allowed(api: Api, need: RequiredRight) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": need.attributes},
    }
    return part_of(await api.post(REVIEWS, review), "status").get("allowed") is True

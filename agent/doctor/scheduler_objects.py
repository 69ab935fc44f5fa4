"""Asks the API server for what a scheduler's checks look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from agent.cluster.api_errors import ApiError, NotFound
from agent.cluster.api_protocol import Api, Object
from agent.cluster.object_fields import text
from agent.cluster.scheduler_report_writer import path
from agent.core.errors import SchedulerError
from agent.scheduler_api import Scheduler
from agent.scheduler_api.document_parts import part_of, rows_of
from agent.scheduler_api.node_checks import Observed, PodQuery, SchedulerChecks, SchedulerObjects, StaleObject
from agent.scheduler_api.node_report import ReportObject

#: Objects of a page, and pages: a cluster has some thousands of nodes, and an object has some KB. Only what
#: counts is kept of a page: in the agent's pod the doctor has the memory of the agent.
PAGE, PAGES = 100, 100
#: Pods that are kept of one query.
MAX_PODS = 200
#: Objects of other names that list cards of this node, for which the Nodes are read.
MAX_STALE_OBJECTS = 5


async def objects_of(api: Api, node: str, scheduler: Scheduler) -> SchedulerObjects:
    """All but the report objects of other names, for which the cards must be known."""
    if scheduler.report is None:
        return await _query(api, SchedulerObjects(), scheduler.checks)
    kind = scheduler.report.object
    has_kind = await _has_kind(api, kind)
    if not has_kind.value:
        return SchedulerObjects(has_kind)
    found = SchedulerObjects(has_kind, await _own(api, node, kind), Observed(why="not read"))
    return await _query(api, found, scheduler.checks)


async def _query(api: Api, found: SchedulerObjects, checks: SchedulerChecks | None) -> SchedulerObjects:
    if checks is None:
        return found
    pods = {name: await _pods(api, query) for name, query in checks.pods.items()}
    if checks.config_map is None:
        return replace(found, pods=pods)
    try:
        namespace = checks.config_map.namespace(pods)
    except SchedulerError as exc:
        return replace(found, pods=pods, config_map=Observed(why=str(exc)))
    config_map = await _config_map(api, namespace, checks.config_map.name)
    return replace(found, pods=pods, config_map=config_map, namespace=namespace)


async def stale(
    api: Api, node: str, kind: ReportObject, cards: Collection[str], noted: Collection[str] = ()
) -> Observed[tuple[StaleObject, ...]]:
    """Objects of other names with cards of this node, if the Node of that name does not work any more.

    `noted`: names under which an agent of this node has written an object.
    """
    found: list[StaleObject] = []
    if not cards and not set(noted) - {node}:
        return Observed(())
    try:
        async for document in _each(api, kind.path, {}):
            name = text(part_of(document, "metadata"), "name")
            uuids = kind.uuids(document)
            shared = uuids.intersection(cards)
            if name != node and (shared or name in noted) and len(found) < MAX_STALE_OBJECTS:
                found.append(StaleObject(name, tuple(sorted(shared or uuids)), await _gone(api, name)))
    except (ApiError, SchedulerError) as exc:
        return Observed(why=f"the {kind.kind}s could not be listed: {exc}")
    return Observed(tuple(it for it in found if it.gone))


async def _has_kind(api: Api, kind: ReportObject) -> Observed[bool]:
    try:
        served = rows_of(await api.get(kind.api_path), "resources")
    except NotFound:
        return Observed(False)
    except ApiError as exc:
        return Observed(why=f"the API server does not say whether it has {kind.kind} objects: {exc}")
    return Observed(any(it.get("name") == kind.plural for it in served))


async def _own(api: Api, node: str, kind: ReportObject) -> Observed[tuple[Object, ...]]:
    try:
        return Observed((await api.get(path(kind, node)),))
    except NotFound:
        return Observed(())
    except ApiError as exc:
        return Observed(why=f"the {kind.kind} of {node} could not be read: {exc}")


async def _gone(api: Api, name: str) -> str:
    """How the Node of this name shows that it does not work; empty where it works."""
    try:
        node = await api.get(f"/api/v1/nodes/{quote(name, safe='')}")
    except NotFound:
        return "is not there"
    ready = [it.get("status") for it in rows_of(part_of(node, "status"), "conditions") if _is_ready(it)]
    return "" if ready == ["True"] else "is not ready"


def _is_ready(condition: Mapping[str, Any]) -> bool:
    return condition.get("type") == "Ready"


async def _pods(api: Api, query: PodQuery) -> Observed[tuple[Object, ...]]:
    selectors = {"labelSelector": query.label_selector, "fieldSelector": query.field_selector}
    found: list[Object] = []
    try:
        async for pod in _each(api, "/api/v1/pods", {key: it for key, it in selectors.items() if it}):
            if query.keep is None or query.keep(pod):
                found.append(pod)
            if len(found) == MAX_PODS:
                break
    except (ApiError, SchedulerError) as exc:
        return Observed(why=f"pods could not be listed: {exc}")
    return Observed(tuple(found))


async def _each(api: Api, at: str, query: Mapping[str, str]) -> AsyncIterator[Object]:
    more = ""
    for _ in range(PAGES):
        page = await api.get(at, {**query, "limit": str(PAGE), **({"continue": more} if more else {})})
        for document in rows_of(page, "items"):
            yield document
        more = text(part_of(page, "metadata"), "continue")
        if not more:
            return


async def _config_map(api: Api, namespace: str, name: str) -> Observed[tuple[Object, ...]]:
    at = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{quote(name, safe='')}"
    try:
        return Observed((await api.get(at),))
    except NotFound:
        return Observed(())
    except ApiError as exc:
        return Observed(why=str(exc))

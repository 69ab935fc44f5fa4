"""Asks the API server what it shows of Koordinator."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any
from urllib.parse import quote

from agent.cluster.api import Api, Object
from agent.cluster.api_errors import ApiError, NotFound
from agent.cluster.object_fields import text
from agent.cluster.report_object_writer import path
from agent.doctor.surroundings import KoordinatorObjects, Observed, Stale
from agent.scheduler_api.document_parts import part_of, rows_of
from agent.schedulers.common.resource_names import PREFIX
from agent.schedulers.koordinator.node_report import DEVICE

#: Objects of a page, and pages: a cluster has some thousands of nodes, and a Device has some KB. Of a page
#: only what counts is kept: in the agent's pod the doctor has the agent's memory.
PAGE, PAGES = 100, 100
#: Pods that are kept.
MOST_PODS = 200
#: Devices of other names that list cards of ours and whose Nodes are asked for.
MOST = 5
PROGRAMS = "koord-app in (koord-scheduler,koord-manager)"
#: Pods that no scheduler has bound yet; koord-scheduler may run under any name.
WAITING = "spec.nodeName=,status.phase=Pending"
#: Where Koordinator's chart puts everything, and the settings of koord-manager.
NAMESPACE, SETTINGS = "koordinator-system", "slo-controller-config"


async def koordinator(api: Api, node: str) -> KoordinatorObjects:
    """All but the Devices of other names, for which the cards must be known."""
    kind = await _kind(api)
    if not kind.value:
        return KoordinatorObjects(kind)
    programs = await _pods(api, {"labelSelector": PROGRAMS})
    namespace = _namespace(programs)
    return KoordinatorObjects(
        kind,
        await _own(api, node),
        Observed(why="nobody looked"),
        programs,
        await _pods(api, {"fieldSelector": WAITING}, _asks),
        await _colocation(api, namespace),
        namespace,
    )


async def stale(
    api: Api, node: str, cards: Collection[str], noted: Collection[str] = ()
) -> Observed[tuple[Stale, ...]]:
    """Devices of other names with cards of this node, whose Nodes do not work any more.

    `noted`: names under which an agent here has written one.
    """
    found: list[Stale] = []
    if not cards and not set(noted) - {node}:
        return Observed(())
    try:
        async for device in _each(api, DEVICE.path, {}):
            name = text(part_of(device, "metadata"), "name")
            ids = {text(it, "id") for it in rows_of(part_of(device, "spec"), "devices")}
            shared = ids.intersection(cards)
            if name != node and (shared or name in noted) and len(found) < MOST:
                found.append(Stale(name, tuple(sorted(shared or ids)), await _gone(api, name)))
    except ApiError as exc:
        return Observed(why=f"the Devices could not be listed: {exc}")
    return Observed(tuple(it for it in found if it.gone))


async def _kind(api: Api) -> Observed[bool]:
    try:
        served = rows_of(await api.get(DEVICE.api_path), "resources")
    except NotFound:
        return Observed(False)
    except ApiError as exc:
        return Observed(why=f"the API server does not say whether it has Device objects: {exc}")
    return Observed(any(it.get("name") == "devices" for it in served))


async def _own(api: Api, node: str) -> Observed[tuple[Object, ...]]:
    try:
        return Observed((await api.get(path(DEVICE, node)),))
    except NotFound:
        return Observed(())
    except ApiError as exc:
        return Observed(why=f"the Device of {node} could not be read: {exc}")


async def _gone(api: Api, name: str) -> str:
    """How the Node of this name shows that it does not work; empty where it does."""
    try:
        node = await api.get(f"/api/v1/nodes/{quote(name, safe='')}")
    except NotFound:
        return "is not there"
    ready = [it.get("status") for it in rows_of(part_of(node, "status"), "conditions") if _is_ready(it)]
    return "" if ready == ["True"] else "is not ready"


def _is_ready(condition: Mapping[str, Any]) -> bool:
    return condition.get("type") == "Ready"


async def _pods(
    api: Api, query: Mapping[str, str], wanted: Callable[[Object], bool] = lambda _: True
) -> Observed[tuple[Object, ...]]:
    found: list[Object] = []
    try:
        async for pod in _each(api, "/api/v1/pods", query):
            if wanted(pod):
                found.append(pod)
            if len(found) == MOST_PODS:
                break
    except ApiError as exc:
        return Observed(why=f"pods could not be listed: {exc}")
    return Observed(tuple(found))


def _asks(pod: Object) -> bool:
    """Whether it says anything to Koordinator."""
    labels = part_of(part_of(pod, "metadata"), "labels")
    limits = (
        part_of(part_of(it, "resources"), "limits") for it in rows_of(part_of(pod, "spec"), "containers")
    )
    return any(str(name).startswith(PREFIX) for its in (labels, *limits) for name in its)


async def _each(api: Api, at: str, query: Mapping[str, str]) -> AsyncIterator[Object]:
    more = ""
    for _ in range(PAGES):
        page = await api.get(at, {**query, "limit": str(PAGE), **({"continue": more} if more else {})})
        for it in rows_of(page, "items"):
            yield it
        more = text(part_of(page, "metadata"), "continue")
        if not more:
            return


def _namespace(programs: Observed[tuple[Object, ...]]) -> str:
    """That of koord-manager, beside which its settings are."""
    found = (part_of(it, "metadata") for it in programs.value or ())
    its = (text(it, "namespace") for it in found if part_of(it, "labels").get("koord-app") == "koord-manager")
    return next(its, NAMESPACE)


async def _colocation(api: Api, namespace: str) -> Observed[str]:
    """Why koord-manager does not work for the nodes; empty where it does. It is not known where settings
    differ from node to node.

    Source: koordinator pkg/util/sloconfig (colocation-config), pkg/slo-controller/noderesource.
    """
    at = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{SETTINGS}"
    place = f"{namespace}/{SETTINGS}"
    try:
        settings = await api.get(at)
    except NotFound:
        return Observed(f"there is no ConfigMap {place}")
    except ApiError as exc:
        return Observed(why=str(exc))
    try:
        said: Any = json.loads(text(part_of(settings, "data"), "colocation-config") or "{}")
    except RecursionError:
        return Observed(f"colocation-config of {place} is nested too deeply")
    except ValueError as exc:
        return Observed(f"colocation-config of {place} is no JSON: {exc}")
    if not isinstance(said, dict):
        return Observed(f"colocation-config of {place} is no object")
    if said.get("nodeConfigs"):
        return Observed(why="colocation-config differs from node to node")
    on = said.get("enable") is True
    return Observed("" if on else f"{place} has no colocation-config with enable: true")

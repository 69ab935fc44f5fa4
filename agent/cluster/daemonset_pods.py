"""Whether the pods of a DaemonSet are ready on all their nodes."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from agent.cluster.api_errors import ApiError
from agent.cluster.api_protocol import Api, Object
from agent.scheduler_api.document_parts import part_of


def path(namespace: str, name: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"


def ready_nodes(daemonset: Object) -> tuple[int, int] | None:
    """The number of nodes with a ready pod, and of all nodes; None before the controller has counted.

    From apps/v1, DaemonSetStatus. A pod is ready when its init containers succeeded and its containers run.
    """
    status = part_of(daemonset, "status")
    if status.get("observedGeneration") != part_of(daemonset, "metadata").get("generation"):
        return None
    ready, wanted = status.get("numberReady"), status.get("desiredNumberScheduled")
    return (ready, wanted) if isinstance(ready, int) and isinstance(wanted, int) else None


async def unready(api: Api, namespace: str, names: Sequence[str], within: float, every: float = 1.0) -> str:
    """Wait until the pods of all DaemonSets are ready; return which are not after `within` seconds.

    A server that is away or refuses is asked again: new rights need a moment to take effect.
    """
    missing = {it: f"{it}: not looked at" for it in names}
    with anyio.move_on_after(within):
        while missing:
            for name in tuple(missing):
                if why := await _missing(api, namespace, name):
                    missing[name] = why
                else:
                    del missing[name]
            if missing:
                await anyio.sleep(every)
    return "; ".join(missing.values())


async def _missing(api: Api, namespace: str, name: str) -> str:
    try:
        found = ready_nodes(await api.get(path(namespace, name)))
    except ApiError as exc:
        return f"{name}: {exc}"
    if found is None:
        return f"{name}: it has no pods yet"
    ready, wanted = found
    return f"{name}: done on {ready} of {wanted} nodes" if ready < wanted else ""

"""Whether a DaemonSet is done on every node, and how long that is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from agent.cluster.api_errors import Forbidden
from agent.cluster.daemonset_pods import path, ready_nodes, unready

from .fakes import FakeApi


def daemonset(ready: Any, wanted: Any, observed: int = 2) -> dict[str, Any]:
    status = {"observedGeneration": observed, "numberReady": ready, "desiredNumberScheduled": wanted}
    return {"metadata": {"name": "d", "namespace": "ns", "generation": 2}, "status": status}


@pytest.mark.parametrize(
    ("seen", "counts"),
    [
        (daemonset(1, 3), (1, 3)),
        (daemonset(0, 0), (0, 0)),
        (daemonset(3, 3, observed=1), None),
        (daemonset("3", 3), None),
        ({"metadata": {"generation": 1}}, None),
    ],
)
def test_nodes_count_once_the_controller_has_seen_the_newest(
    seen: dict[str, Any], counts: tuple[int, int] | None
) -> None:
    assert ready_nodes(seen) == counts


async def test_it_is_asked_until_every_node_is_done_whatever_the_server_says_meanwhile() -> None:
    api = FakeApi()
    api.put_object(path("ns", "d"), daemonset(3, 3))
    api.fails = [Forbidden(403, "Forbidden", "no rights yet"), None]

    assert await unready(api, "ns", ["d"], within=60, every=0) == ""
    assert api.verbs() == ["get", "get"]


async def test_what_is_not_done_in_time_is_told_of_each() -> None:
    api = FakeApi()
    api.put_object(path("ns", "slow"), daemonset(1, 3))
    api.put_object(path("ns", "done"), daemonset(2, 2))

    told = await unready(api, "ns", ["slow", "done", "none"], within=0.05, every=0)

    assert told.startswith("slow: done on 1 of 3 nodes; none: 404")

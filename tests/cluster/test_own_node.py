"""This node's Node: what is kept of the object, whatever stands in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.own_node import MAX_LABELS, OwnNode, follow, own_node, path, query
from agent.cluster.reflector import MirroredObjects
from agent.core.cell import Cell

NODE = {
    "metadata": {
        "name": "node-1",
        "uid": "u-1",
        "resourceVersion": "17",
        "labels": {"pool": "train", "nvidia.com/gpu.count": "8"},
        "annotations": {
            "xpu-agent.io/labels": "nvidia.com/gpu.count",
            "nfd.node.kubernetes.io/feature-labels": "cpu-model.id,nvidia.com/gpu.family",
            "second.nfd.node.kubernetes.io/feature-labels": "acme.com/x",
            "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        },
    },
    "status": {
        "capacity": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "8", "acme.com/unit": "2k"},
        "allocatable": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "7", "acme.com/unit": "1500"},
    },
}


def test_what_the_agent_needs_of_a_node_is_kept_and_nothing_else() -> None:
    assert own_node(NODE) == OwnNode(
        "node-1",
        "u-1",
        version="17",
        labels={"pool": "train", "nvidia.com/gpu.count": "8"},
        annotations={"xpu-agent.io/labels": "nvidia.com/gpu.count"},
        nfd=frozenset({"feature.node.kubernetes.io/cpu-model.id", "nvidia.com/gpu.family", "acme.com/x"}),
        allocatable={"nvidia.com/gpu": 7, "acme.com/unit": 1500},
        capacity={"nvidia.com/gpu": 8, "acme.com/unit": 2000},
    )


def test_annotations_that_read_like_a_schedulers_lock_are_kept() -> None:
    held = {
        "hami.io/mutex.lock": "2026-11-20T21:34:09Z,default,web",
        "acme.com/mutex.lock": "2026-11-20T21:34:09Z,default,web",
        "acme.com/old.lock": "2026-11-20T21:34:09Z",
    }
    annotations = {
        **held,
        "acme.com/note": "web",
        "b.com/mutex.lock": "anything",
        "acme.com/many": "2026-11-20T21:34:09Z,a,b,c",
    }

    it = own_node({"metadata": {"name": "n", "annotations": annotations}})

    assert it is not None
    assert it.locks == held


def test_a_heartbeat_is_no_news() -> None:
    metadata: Any = NODE["metadata"]
    later = {**NODE, "metadata": {**metadata, "resourceVersion": "18"}}

    assert own_node(later) == own_node(NODE)
    assert [it.version for it in map(own_node, (NODE, later)) if it] == ["17", "18"]


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"metadata": None},
        {"metadata": {"name": ""}},
        {"metadata": {"name": 7}},
        {"metadata": []},
        {"status": {"capacity": []}},
    ],
)
def test_what_has_no_name_is_dropped(odd: Mapping[str, Any]) -> None:
    assert own_node(odd) is None


def test_what_kubernetes_would_refuse_is_left_out() -> None:
    labels = {"a b": "x", "ok": "y z", "fine": "", "long": "x" * 64, "acme.com/n": 7, "\n": "", "/x": "y"}
    node = {
        "metadata": {"name": "n", "labels": labels, "annotations": {"xpu-agent.io/labels": 1}},
        "status": {"capacity": {"no slash": "1", "acme.com/x": "many", "acme.com/y": "1"}},
    }

    kept = own_node(node)

    assert kept is not None
    assert (kept.labels, kept.annotations, kept.capacity) == ({"fine": ""}, {}, {"acme.com/y": 1})


def test_no_more_labels_are_kept_than_any_node_has() -> None:
    labels = {f"l{number}": "" for number in range(MAX_LABELS + 5)}

    kept = own_node({"metadata": {"name": "n", "labels": labels}})

    assert kept is not None
    assert len(kept.labels) == MAX_LABELS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "status", "name", "labels", "annotations", "capacity", "allocatable"]
            )
            | st.text(max_size=8),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["metadata", "status", "x"]), JSON))
def test_no_object_is_too_odd(node: dict[str, Any]) -> None:
    own_node(node)


def test_a_node_is_asked_for_by_its_name_alone() -> None:
    assert path("node-1") == "/api/v1/nodes/node-1"
    assert path("../pods?x=1#") == "/api/v1/nodes/..%2Fpods%3Fx%3D1%23"
    assert query("node-1") == {"fieldSelector": "metadata.name=node-1"}


async def test_labels_that_were_seen_stay_known_when_the_node_is_gone() -> None:
    mirror: Cell[MirroredObjects[OwnNode]] = Cell(MirroredObjects())
    node: Cell[OwnNode | None] = Cell(None)
    labels: Cell[Mapping[str, str] | None] = Cell(None)
    follower = asyncio.create_task(follow(mirror, "n", node, labels))
    seen = OwnNode("n", labels={"pool": "train"})
    with anyio.fail_after(30):
        mirror.set(MirroredObjects({"other": OwnNode("other", labels={"pool": "x"})}, synced=True))
        mirror.set(MirroredObjects({"n": seen}, synced=True))
        await node.until(seen)
        assert labels.value == {"pool": "train"}

        mirror.set(MirroredObjects({}, synced=True))
        await node.until(None)
        assert labels.value == {"pool": "train"}
    follower.cancel()

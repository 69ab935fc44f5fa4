"""The demo's node and pods as the API server shows them."""

from __future__ import annotations

from typing import Any

from agent.testing.node_kubelet import Container, Pod

NODE_NAME = "demo-node"


def node() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}}


def pod(one: Pod) -> dict[str, Any]:
    """The pod as the scheduler left it: bound to the node."""
    metadata = {"name": one.name, "namespace": one.namespace, "uid": one.uid}
    spec = {"nodeName": NODE_NAME, "containers": [_container(it) for it in one.containers]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(one: Container) -> dict[str, Any]:
    limits = {name: str(count) for name, count in one.limits.items()}
    return {"name": one.name, "resources": {"limits": limits, "requests": limits}}

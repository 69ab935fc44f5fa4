"""The demo's Node and pods as objects of the API server."""

from __future__ import annotations

from typing import Any

from agent.testing.node_kubelet import Container, Pod

NODE_NAME = "demo-node"


def node() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}}


def pod(admitted: Pod) -> dict[str, Any]:
    """The pod as the scheduler leaves it: bound to the node."""
    metadata = {"name": admitted.name, "namespace": admitted.namespace, "uid": admitted.uid}
    spec = {"nodeName": NODE_NAME, "containers": [_container(it) for it in admitted.containers]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(container: Container) -> dict[str, Any]:
    limits = {name: str(count) for name, count in container.limits.items()}
    return {"name": container.name, "resources": {"limits": limits, "requests": limits}}

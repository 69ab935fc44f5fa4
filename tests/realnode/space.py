"""A namespace of Kubernetes for one scenario, and the pods in it."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from .api import Api, Object
from .kubelet import NODE
from .release import IMAGE
from .until import PATIENCE, until

#: Prints the container's cards and waits.
PRINT_CARDS = 'echo "cards: $NVIDIA_VISIBLE_DEVICES"; exec sleep infinity'
CARDS = re.compile(r"^cards: (.+)$", re.MULTILINE)
GPU = "nvidia.com/gpu"


def pod_spec(script: str = PRINT_CARDS, cards: int = 1, resource: str = GPU, **more: Any) -> Object:
    """The spec of a pod whose one container, `main`, runs a shell script; `more` are fields of the pod."""
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": {"limits": {resource: cards}} if cards else {},
    }
    # With 0 a pod would be gone from the API server before its containers are.
    return {"terminationGracePeriodSeconds": 1, "containers": [container], **more}


def pod(name: str, script: str = PRINT_CARDS, cards: int = 1, resource: str = GPU, **more: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {**pod_spec(script, cards, resource), "restartPolicy": "Never", **more},
    }


def deployment(name: str, replicas: int, spec: Object | None = None) -> Object:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec or pod_spec()},
        },
    }


class Space:
    """Made and removed by the fixture `space`; whatever the scenario leaves in it goes with it."""

    def __init__(self, api: Api, name: str = "") -> None:
        self.name = name or f"test-{secrets.token_hex(4)}"
        self._api = api

    async def __aenter__(self) -> Space:
        await self._api.kubectl("create", "namespace", self.name)
        await self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        # Of a namespace the controllers would delete them in their own time.
        await self.kubectl("delete", "deployments,daemonsets,jobs,pods", "--all", "--wait=false")
        await self.gone()
        await self._api.kubectl("delete", "namespace", self.name, "--wait=false")

    async def ready(self) -> None:
        """Wait until it has its service account; before, pods are refused."""
        accounts = f"/api/v1/namespaces/{self.name}/serviceaccounts"
        await until(lambda: self._api.items(accounts), bool, f"the service account of {self.name}")

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return await self._api.kubectl(f"--namespace={self.name}", *arguments, stdin=stdin)

    async def apply(self, *objects: Object) -> None:
        named = [{**it, "metadata": {**it["metadata"], "namespace": self.name}} for it in objects]
        await self._api.apply(*named)

    async def bind(self, name: str, metadata: Mapping[str, Any]) -> None:
        """Write a scheduler's word on the pod, which waits for one of its own, and bind it to the node."""
        await self.kubectl("patch", "pod", name, f"--patch={json.dumps({'metadata': metadata})}")
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
        }
        path = f"/api/v1/namespaces/{self.name}/pods/{name}/binding"
        await self.kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(binding))

    async def pods(self, app: str = "") -> list[Object]:
        """All pods, or those of one app."""
        selector = f"?labelSelector=app={app}" if app else ""
        return await self._api.items(f"/api/v1/namespaces/{self.name}/pods{selector}")

    async def phases(self, app: str = "") -> Mapping[str, str]:
        return {it["metadata"]["name"]: phase(it) for it in await self.pods(app)}

    async def running(self, count: int, app: str = "", patience: float = PATIENCE) -> list[str]:
        """Wait until there are so many pods and all of them run; their names."""
        found = await until(
            lambda: self.phases(app),
            lambda it: list(it.values()) == ["Running"] * count,
            f"{count} pods of {app or self.name} to run",
            patience,
        )
        return sorted(found)

    async def gone(self, app: str = "") -> None:
        """Wait until there are no pods."""
        await until(lambda: self.phases(app), lambda it: not it, f"the pods of {app or self.name} to go")

    async def log(self, name: str) -> str:
        return await self._api.text(f"/api/v1/namespaces/{self.name}/pods/{name}/log")

    async def cards(self, name: str) -> list[str]:
        """Wait until the pod's log says its cards, by PRINT_CARDS; their UUIDs. The pod runs."""

        async def told() -> list[str]:
            found = CARDS.search(await self.log(name))
            return found[1].split(",") if found else []

        return await until(told, bool, f"the log of {name} to tell cards")

    async def events(self, about: str) -> list[Object]:
        """The Events about an object of this name."""
        path = f"/api/v1/namespaces/{self.name}/events?fieldSelector=involvedObject.name={about}"
        return await self._api.items(path)


def phase(pod: Object) -> str:
    """The pod's phase; "Terminating" from its deletion on."""
    return "Terminating" if "deletionTimestamp" in pod["metadata"] else str(pod["status"]["phase"])

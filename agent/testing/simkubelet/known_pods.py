"""The pods that the kubelet knows."""

from __future__ import annotations

from collections.abc import Iterator

from agent.testing.node_kubelet import Container, Pod


def is_init(container: Container) -> bool:
    """Init containers start first; sidecars are among them."""
    return container.init or container.restartable


def in_start_order(pod: Pod) -> list[Container]:
    return sorted(pod.containers, key=lambda container: not is_init(container))


class Pods:
    """The pods over all restarts. Finished pods stay until they are deleted.

    While the API server is away after a restart, pods from the API server are on the node, but the kubelet
    does not know them.
    """

    def __init__(self) -> None:
        self._all: dict[str, Pod] = {}
        self._finished: set[str] = set()
        self._beyond: set[str] = set()
        self.api_away = False

    def __iter__(self) -> Iterator[Pod]:
        return iter([pod for pod in self._all.values() if pod.uid not in self._beyond])

    def add(self, pod: Pod) -> None:
        self._all[pod.uid] = pod
        self._finished.discard(pod.uid)

    def remove(self, uid: str) -> None:
        self._all.pop(uid, None)
        self._beyond.discard(uid)

    def finish(self, uid: str) -> None:
        self.find(uid)
        self._finished.add(uid)

    def lose_api(self) -> None:
        """Leave a starting kubelet only the static pods."""
        self._beyond = {pod.uid for pod in self._all.values() if not pod.static}
        self.api_away = True

    def find_api(self) -> None:
        self._beyond = set()
        self.api_away = False

    def arriving(self) -> Iterator[Pod]:
        """Yield the pods that come from the API server when it is back. Each pod is known from then on."""
        for uid in [uid for uid in self._all if uid in self._beyond]:
            self._beyond.discard(uid)
            if uid in self._all:
                yield self._all[uid]

    def find(self, uid: str) -> Pod:
        if uid not in self._all or uid in self._beyond:
            raise LookupError(f"no pod with uid {uid}")
        return self._all[uid]

    def named(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self if (pod.namespace, pod.name) == (namespace, name)), None)

    def active(self) -> list[Pod]:
        return [pod for pod in self if self.is_active(pod)]

    def is_active(self, pod: Pod) -> bool:
        return pod.uid not in self._finished

    def running(self) -> frozenset[tuple[str, str]]:
        """Containers that the runtime reports as running: plain init containers are done by then."""
        return frozenset(
            (pod.uid, container.name)
            for pod in self._all.values()
            if self.is_active(pod)
            for container in pod.containers
            if container.restartable or not container.init
        )

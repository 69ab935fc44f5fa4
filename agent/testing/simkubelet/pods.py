"""The pods that the kubelet was told of."""

from __future__ import annotations

from collections.abc import Iterator

from ..node import Container, Pod


def is_init(container: Container) -> bool:
    """Init containers start first; sidecars are among them."""
    return container.init or container.restartable


def in_start_order(pod: Pod) -> list[Container]:
    return sorted(pod.containers, key=lambda container: not is_init(container))


class Pods:
    """Remembers pods over every restart; finished ones stay until they are deleted."""

    def __init__(self) -> None:
        self._all: dict[str, Pod] = {}
        self._finished: set[str] = set()

    def __iter__(self) -> Iterator[Pod]:
        return iter(list(self._all.values()))

    def add(self, pod: Pod) -> None:
        self._all[pod.uid] = pod
        self._finished.discard(pod.uid)

    def remove(self, uid: str) -> None:
        self._all.pop(uid, None)

    def finish(self, uid: str) -> None:
        self.find(uid)
        self._finished.add(uid)

    def find(self, uid: str) -> Pod:
        if uid not in self._all:
            raise LookupError(f"no pod with uid {uid}")
        return self._all[uid]

    def named(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self if (pod.namespace, pod.name) == (namespace, name)), None)

    def active(self) -> list[Pod]:
        return [pod for pod in self if pod.uid not in self._finished]

    def running(self) -> frozenset[tuple[str, str]]:
        """Containers that the runtime reports as running: plain init containers are done by then."""
        return frozenset(
            (pod.uid, container.name)
            for pod in self.active()
            for container in pod.containers
            if container.restartable or not container.init
        )

"""The devices that the containers hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from agent.kubelet.pb.deviceplugin.v1beta1 import ContainerAllocateResponse

#: The NUMA node of devices that named none.
NO_NODE = -1


@dataclass(frozen=True, slots=True)
class Holding:
    """The devices of one resource that one container holds. A device on two NUMA nodes is under both."""

    pod: str
    container: str
    resource: str
    by_node: dict[int, list[str]]
    answer: ContainerAllocateResponse

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(one for ids in self.by_node.values() for one in ids)

    def nodes(self) -> dict[str, tuple[int, ...] | None]:
        """The NUMA nodes of each device, None where it has none."""
        found: dict[str, tuple[int, ...] | None] = {}
        for node, ids in self.by_node.items():
            for one in ids:
                found[one] = None if node == NO_NODE else (node, *(found.get(one) or ()))
        return found


class Holdings:
    def __init__(self, known: Collection[Holding] = ()) -> None:
        self._all = {(one.pod, one.container, one.resource): one for one in known}

    def __iter__(self) -> Iterator[Holding]:
        return iter(self._all.values())

    def add(self, holding: Holding) -> None:
        self._all[holding.pod, holding.container, holding.resource] = holding

    def of(self, pod: str, container: str) -> list[Holding]:
        return [one for one in self if (one.pod, one.container) == (pod, container)]

    def ids(self, pod: str, container: str, resource: str) -> frozenset[str] | None:
        """The held IDs; None where no allocation is known, which is not an empty allocation."""
        found = self._all.get((pod, container, resource))
        return None if found is None else found.ids

    def pods(self) -> set[str]:
        return {one.pod for one in self}

    def forget(self, pods: Collection[str]) -> None:
        self._all = {key: one for key, one in self._all.items() if one.pod not in pods}

    def by_resource(self) -> dict[str, set[str]]:
        held: dict[str, set[str]] = {}
        for one in self:
            held.setdefault(one.resource, set()).update(one.ids)
        return held

    def holder(self, device: str) -> str | None:
        """The first pod with this ID, whatever the resource: the kubelet looks no closer."""
        return next((one.pod for one in self if device in one.ids), None)

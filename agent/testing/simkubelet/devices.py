"""The devices of every resource: which are listed, which are healthy, which are allocated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from agent.kubelet.pb.deviceplugin.v1beta1 import Device, DevicePluginOptions
from agent.testing.node_kubelet import Capacity

from .holdings import Holdings
from .plugin_client import Plugin

HEALTHY = "Healthy"  # any other text, "healthy" included, is unhealthy


class Stopped(Exception):
    """Raised instead of a call to a plugin that has gone."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"endpoint {resource} has been stopped")


@dataclass(slots=True)
class Endpoint:
    """The plugin that answers for a resource; `plugin` is None for one known from the checkpoint alone."""

    plugin: Plugin | None
    options: DevicePluginOptions
    stopped_at: float | None = None

    def live(self, resource: str) -> Plugin:
        """The plugin to call.

        Raises:
            Stopped: Its stream has ended.
        """
        if self.plugin is None or self.stopped_at is not None:
            raise Stopped(resource)
        return self.plugin


class Devices:
    """The state of the device manager, in the same separate sets as in its source."""

    def __init__(self, holdings: Holdings, registered: Iterable[str], now: float) -> None:
        self.holdings = holdings
        self.known: dict[str, dict[str, Device]] = {}
        self.healthy: dict[str, set[str]] = {name: set() for name in registered}
        self.unhealthy: dict[str, set[str]] = {name: set() for name in self.healthy}
        self.allocated = holdings.by_resource()
        self.endpoints = {name: Endpoint(None, DevicePluginOptions(), now) for name in self.healthy}

    def manages(self, resource: str) -> bool:
        """Whether the device manager handles the resource: it has or had a plugin."""
        return resource in self.healthy or resource in self.allocated

    def update(self, resource: str, devices: Collection[Device]) -> frozenset[str]:
        """Replace the list of a resource; returns the uids of pods with a device that changed its health."""
        before = self.known.get(resource, {})
        after = {device.id: device for device in devices}
        flipped = [one for one, device in after.items() if _health(before.get(one)) != device.health]
        self.known[resource] = after
        # An ID that is listed twice with different health is in both sets, and counts twice.
        self.healthy[resource] = {device.id for device in devices if device.health == HEALTHY}
        self.unhealthy[resource] = {device.id for device in devices if device.health != HEALTHY}
        return frozenset(filter(None, map(self.holdings.holder, flipped)))

    def mark_unhealthy(self, resource: str) -> None:
        self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
        if resource in self.healthy:
            self.healthy[resource] = set()

    def free(self, resource: str) -> set[str]:
        return self.healthy.get(resource, set()) - self.allocated.get(resource, set())

    def nodes(self, resource: str, device: str) -> tuple[int, ...]:
        known = self.known.get(resource, {}).get(device)
        return () if known is None or known.topology is None else tuple(n.id for n in known.topology.nodes)

    def has_topology(self, resource: str) -> bool:
        return any(self.nodes(resource, device) for device in self.known.get(resource, {}))

    def settle(self) -> None:
        """Recompute the allocated IDs from the holdings."""
        self.allocated = self.holdings.by_resource()

    def release_all_but(self, active: Collection[str]) -> None:
        gone = self.holdings.pods() - set(active)
        if gone:
            self.holdings.forget(gone)
            self.settle()

    def expire(self, expired: Callable[[float], bool]) -> bool:
        """Forget the resources of plugins that left too long ago; returns whether there were any."""
        gone = [name for name in {*self.healthy, *self.unhealthy} if self._expired(name, expired)]
        for name in gone:
            self.endpoints.pop(name, None)
            self.healthy.pop(name, None)
            self.unhealthy.pop(name, None)
        return bool(gone)

    def _expired(self, resource: str, expired: Callable[[float], bool]) -> bool:
        endpoint = self.endpoints.get(resource)
        return endpoint is None or (endpoint.stopped_at is not None and expired(endpoint.stopped_at))

    def counts(self) -> Mapping[str, Capacity]:
        return {
            name: Capacity(len(healthy) + len(self.unhealthy.get(name, ())), len(healthy))
            for name, healthy in self.healthy.items()
        }

    def health(self, pod: str, container: str) -> dict[str, str]:
        """Device ID to health, for a container's devices. A device that is no longer listed is healthy."""
        return {
            device: "Healthy" if self._listed_health(held.resource, device) == HEALTHY else "Unhealthy"
            for held in self.holdings.of(pod, container)
            for device in held.ids
        }

    def _listed_health(self, resource: str, device: str) -> str:
        listed = self.known.get(resource, {}).get(device)
        return HEALTHY if listed is None else listed.health


def _health(device: Device | None) -> str | None:
    return None if device is None else device.health

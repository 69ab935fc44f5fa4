"""The device manager: books, allocation, topology and checkpoint of one kubelet life."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.kubelet.pb.deviceplugin.v1beta1 import Device, DevicePluginOptions
from agent.testing.node_kubelet import Admission, Capacity, Container, Pod, RunOptions

from . import checkpoint_bytes
from .container_start import Starter, StartError
from .device_choice import Allocator, Refused
from .devices import Devices, Endpoint
from .holdings import Holdings
from .journal import Journal
from .known_pods import Pods, in_start_order
from .plugin_client import Plugin
from .release import Release
from .topology_manager import Demand, Hint, Mask, Policy, TopologyAffinityError, hints, merge

RECEIVE_LIMIT = 4_194_304  # grpc-go default, which the kubelet never raised
GRACE = 300.0  # endpointStopGracePeriod


@dataclass(frozen=True, slots=True)
class KubeletLimits:
    """Sizes and times of a simulated kubelet; times are seconds. The defaults are the real kubelet's."""

    #: The longest message from a plugin, bytes.
    receive_limit: int = RECEIVE_LIMIT
    #: How long a plugin that registers may take until its socket answers.
    dial_timeout: float = 10.0
    pre_start_timeout: float = 30.0
    #: How long a resource stays known after its plugin has gone.
    grace: float = GRACE
    #: How often the plugin watcher looks.
    registry_interval: float = 1.0
    #: Whether PodResources leaves out pods that have ended; None: as the release does.
    active_pods_only: bool | None = None


DEFAULT_LIMITS = KubeletLimits()


@dataclass(frozen=True, slots=True)
class Settings:
    """How a simulated kubelet is set up; the same over all its lives."""

    directory: Path
    release: Release
    numa_nodes: int
    policy: Policy
    clock: Callable[[], float]
    limits: KubeletLimits

    @property
    def plugin_dir(self) -> Path:
        return self.directory / "device-plugins"

    @property
    def active_pods_only(self) -> bool:
        """Whether PodResources leaves out pods that have ended."""
        only = self.limits.active_pods_only
        return self.release.lists_active_pods if only is None else only


class Manager:
    def __init__(self, settings: Settings, pods: Pods, journal: Journal, rng: random.Random) -> None:
        self._settings = settings
        self._pods = pods
        self._journal = journal
        #: Whether the kubelet knows all its pods. Before that it frees nothing and trusts running containers.
        self.sources_ready = False
        self._running = pods.running()
        saved = _read(settings.plugin_dir / checkpoint_bytes.FILE)
        self.devices = Devices(Holdings(saved.holdings), saved.registered, settings.clock())
        self._allocator = Allocator(
            self.devices,
            journal,
            rng,
            empty_answer=settings.release.empty_answer,
            already_running=self._already_running,
            collect=self.collect,
            save=self.save,
        )
        self._starter = Starter(self.devices, self._allocator, journal, settings.limits.pre_start_timeout)

    def connected(self, plugin: Plugin, options: DevicePluginOptions) -> None:
        self.devices.endpoints[plugin.resource] = Endpoint(plugin, options)

    def disconnected(self, resource: str) -> None:
        """The plugin of the resource has gone: nothing of it is healthy, and the grace period runs."""
        endpoint = self.devices.endpoints.get(resource)
        if endpoint is not None:
            self.devices.mark_unhealthy(resource)
            endpoint.stopped_at = self._settings.clock()
            self._journal.note()

    def received(self, resource: str, devices: Collection[Device], size: int) -> None:
        flipped = self.devices.update(resource, devices)
        if flipped and self._settings.release.reports_health:
            self._journal.status_updates.append(flipped)
        self.save()
        self._journal.lists[resource] += 1
        self._journal.list_bytes[resource] = size
        self._journal.note()

    def counts(self) -> Mapping[str, Capacity]:
        """The counts of each resource. A resource past its grace period is forgotten here."""
        if self.devices.expire(lambda since: self._settings.clock() - since > self._settings.limits.grace):
            self.save()
        return self.devices.counts()

    def collect(self) -> None:
        """Free the devices of pods that are gone, once all pods are known."""
        if self.sources_ready:
            self.devices.release_all_but([pod.uid for pod in self._pods.active()])

    def save(self) -> None:
        registered = {name: sorted(ids) for name, ids in self.devices.healthy.items()}
        saved = checkpoint_bytes.Checkpoint(list(self.devices.holdings), registered)
        # A directory that was removed under the kubelet fails the write, which it only logs.
        with contextlib.suppress(OSError):
            checkpoint_bytes.write(self._settings.plugin_dir, checkpoint_bytes.encode(saved))

    async def admit(self, pod: Pod) -> Admission:
        try:
            for container in in_start_order(pod):
                await self._allocator.allocate(pod, container, self._affinity(pod, container))
        except TopologyAffinityError as exc:
            return Admission(False, "TopologyAffinityError", str(exc))
        except Refused as exc:
            message = f"Allocate failed due to {exc}, which is unexpected"
            return Admission(False, "UnexpectedAdmissionError", message)
        return Admission(True)

    async def run_options(self, pod: Pod, container: Container) -> RunOptions:
        missing = await self._starter.prepare(pod, container)
        if missing and pod in self._pods.active():
            try:
                await self._allocator.allocate(pod, container, self._affinity(pod, container))
            except Refused as exc:
                raise StartError(str(exc)) from exc
        return self._starter.options(pod, container)

    def _already_running(self, uid: str, container: str) -> bool:
        return not self.sources_ready and (uid, container) in self._running

    def _affinity(self, pod: Pod, container: Container) -> Mask | None:
        if self._settings.policy == "none":
            return None
        self.collect()
        self._allocator.begin(pod)
        managed = [name for name in container.limits if self.devices.manages(name)]
        offered = [self._hints(pod, container, name) for name in managed]
        return merge(self._settings.policy, frozenset(range(self._settings.numa_nodes)), offered)

    def _hints(self, pod: Pod, container: Container, resource: str) -> list[Hint] | None:
        if not self.devices.has_topology(resource):
            return None
        demand = self._demand(pod, container, resource)
        if demand is None:
            return []
        only_hosts = self._settings.release.hints_only_where_devices_are
        return hints(demand, range(self._settings.numa_nodes), only_hosts=only_hosts)

    def _demand(self, pod: Pod, container: Container, resource: str) -> Demand | None:
        """The demand that hints must serve; None where no hint can serve it."""
        size = container.limits[resource]
        available: Collection[str] = self.devices.free(resource)
        reusable: Collection[str] = self._allocator.reusable.get(resource, set())
        if held := self.devices.holdings.ids(pod.uid, container.name, resource):
            if len(held) != size:
                return None
            available, reusable = held, ()
        if len({*available, *reusable}) < size:
            return None
        nodes = {one: self.devices.nodes(resource, one) for one in self.devices.known[resource]}
        return Demand(nodes, available, reusable, size)


def _read(file: Path) -> checkpoint_bytes.Checkpoint:
    """Read the checkpoint. A missing or corrupt file counts as empty; the kubelet only logs that."""
    try:
        return checkpoint_bytes.decode(file.read_bytes())
    except (FileNotFoundError, checkpoint_bytes.Corrupt):
        return checkpoint_bytes.Checkpoint()

"""Starting a container: PreStartContainer, then the cached answers merged for the runtime."""

from __future__ import annotations

from collections.abc import Sequence

from agent.testing.node_kubelet import Container, Pod, RunOptions

from .device_choice import Allocator
from .devices import Devices, Stopped
from .grpc_errors import RpcError
from .holdings import Holding
from .journal import Journal, PreStartCall


class StartError(Exception):
    """Raised when a container cannot be started; the kubelet would try again later."""


class Starter:
    def __init__(
        self, devices: Devices, allocator: Allocator, journal: Journal, pre_start_timeout: float
    ) -> None:
        self._devices = devices
        self._allocator = allocator
        self._journal = journal
        self._timeout = pre_start_timeout

    async def prepare(self, pod: Pod, container: Container) -> bool:
        """Call PreStartContainer for plugins that require it; returns whether the container has no devices.

        Raises:
            StartError: The plugin refused.
        """
        missing = False
        for resource in self._allocator.shuffled(container.limits):
            if container.limits[resource] and self._devices.manages(resource):
                await self._pre_start(pod, container, resource)
                missing |= self._devices.holdings.ids(pod.uid, container.name, resource) is None
        return missing

    async def _pre_start(self, pod: Pod, container: Container, resource: str) -> None:
        endpoint = self._devices.endpoints.get(resource)
        if endpoint is None:
            raise StartError(f"endpoint not found in cache for a registered resource: {resource}")
        if not endpoint.options.pre_start_required:
            return
        held = self._devices.holdings.ids(pod.uid, container.name, resource)
        if held is None:
            where = f"pod {pod.uid}, container {container.name}, resource {resource}"
            raise StartError(f"no devices found allocated in local cache for {where}")
        ids = self._allocator.shuffled(held)
        self._journal.pre_starts.append(PreStartCall(resource, tuple(ids)))
        self._journal.note()
        try:
            await endpoint.live(resource).pre_start(ids, self._timeout)
        except (RpcError, Stopped) as exc:
            raise StartError(f"device plugin PreStartContainer rpc failed with err: {exc}") from exc

    def options(self, pod: Pod, container: Container) -> RunOptions:
        """Merge the answers for all resources. Of two values with one name the first one counts."""
        held = {one.resource: one for one in self._devices.holdings.of(pod.uid, container.name)}
        return merged([held[resource] for resource in self._allocator.shuffled(held)])


def merged(held: Sequence[Holding]) -> RunOptions:
    env: dict[str, str] = {}
    annotations: dict[str, str] = {}
    devices: dict[str, tuple[str, str, str]] = {}
    mounts: dict[str, tuple[str, str, bool]] = {}
    cdi: dict[str, None] = {}
    for answer in (one.answer for one in held):
        env = {**answer.envs, **env}
        annotations = {**answer.annotations, **annotations}
        for device in answer.devices:
            devices.setdefault(
                device.container_path, (device.host_path, device.container_path, device.permissions)
            )
        for mount in answer.mounts:
            mounts.setdefault(mount.container_path, (mount.host_path, mount.container_path, mount.read_only))
        cdi.update(dict.fromkeys(one.name for one in answer.cdi_devices))
    return RunOptions(env, annotations, tuple(devices.values()), tuple(mounts.values()), tuple(cdi))

"""The PodResources server: one entry per container, device and NUMA node; bursts of at most ten calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import anyio
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from agent.kubelet.pb.podresources import v1 as pb
from agent.testing.node_kubelet import Container, Pod

from .grpc_server import unary
from .known_pods import Pods, in_start_order
from .manager import Manager, Settings

SERVICE = "/v1.PodResourcesLister/"
QPS, BURST = 100, 10


class Limiter:
    """A token bucket that starts full. A call without a token is refused, not queued."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tokens, self._since = float(BURST), clock()

    def allow(self) -> bool:
        now = self._clock()
        self._tokens = min(BURST, self._tokens + (now - self._since) * QPS)
        self._since = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class PodResources:
    def __init__(self, settings: Settings, manager: Manager, pods: Pods, delay: Callable[[], float]) -> None:
        self._settings = settings
        self._manager = manager
        self._pods = pods
        self._delay = delay
        self._limiter = Limiter(settings.clock)

    def methods(self) -> Mapping[str, Handler]:
        served: dict[str, Handler] = {
            "List": unary(pb.ListPodResourcesRequest, pb.ListPodResourcesResponse, self._limited(self._list)),
            "Get": unary(pb.GetPodResourcesRequest, pb.GetPodResourcesResponse, self._limited(self._get)),
        }
        if self._settings.release.serves_allocatable:
            served["GetAllocatableResources"] = unary(
                pb.AllocatableResourcesRequest,
                pb.AllocatableResourcesResponse,
                self._limited(self._allocatable),
            )
        return {SERVICE + name: handler for name, handler in served.items()}

    def _limited(self, answer: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
        async def limited(request: Any) -> Any:
            if not self._limiter.allow():
                raise GRPCError(Status.RESOURCE_EXHAUSTED, "rejected by rate limit")
            if delay := self._delay():
                await anyio.sleep(delay)
            return answer(request)

        return limited

    def _list(self, request: pb.ListPodResourcesRequest) -> pb.ListPodResourcesResponse:
        pods = self._pods.active() if self._settings.active_pods_only else list(self._pods)
        self._manager.collect()
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in pods])

    def _get(self, request: pb.GetPodResourcesRequest) -> pb.GetPodResourcesResponse:
        if not self._settings.release.serves_get:
            raise LookupError("PodResources API Get method disabled")
        pod = self._pods.named(request.pod_namespace, request.pod_name)
        if pod is None:
            raise LookupError(f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))

    def _allocatable(self, request: pb.AllocatableResourcesRequest) -> pb.AllocatableResourcesResponse:
        devices = self._manager.devices
        found = [
            entry
            for resource, healthy in devices.healthy.items()
            for one in sorted(healthy)
            for entry in _entries(resource, one, self._listed_nodes(resource, one))
        ]
        return pb.AllocatableResourcesResponse(devices=found)

    def _listed_nodes(self, resource: str, device: str) -> Iterable[int] | None:
        """None without topology; an empty topology has no nodes, and the device vanishes from the answer."""
        topology = self._manager.devices.known[resource][device].topology
        return None if topology is None else [node.id for node in topology.nodes]

    def _pod(self, pod: Pod) -> pb.PodResources:
        shown = [one for one in in_start_order(pod) if one.restartable or not one.init]
        containers = [self._container(pod, container) for container in shown]
        return pb.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)

    def _container(self, pod: Pod, container: Container) -> pb.ContainerResources:
        entries = [
            entry
            for held in self._manager.devices.holdings.of(pod.uid, container.name)
            for device, nodes in held.nodes().items()
            for entry in _entries(held.resource, device, nodes)
        ]
        return pb.ContainerResources(name=container.name, devices=entries)


def _entries(resource: str, device: str, nodes: Iterable[int] | None) -> list[pb.ContainerDevices]:
    topologies: list[pb.TopologyInfo | None] = [None]
    if nodes is not None:
        topologies = [pb.TopologyInfo(nodes=[pb.NumaNode(id=node)]) for node in nodes]
    return [
        pb.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)
        for topology in topologies
    ]

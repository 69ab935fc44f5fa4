"""Choosing devices for a container and asking the plugin for them, step by step as the kubelet does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from agent.kubelet.pb.deviceplugin.v1beta1 import ContainerAllocateResponse
from agent.testing.node_kubelet import Container, Pod

from .devices import Devices, Stopped
from .grpc_errors import RpcError
from .holdings import NO_NODE, Holding
from .journal import AllocateCall, Journal, PreferredCall
from .known_pods import is_init
from .plugin_client import Plugin
from .topology_manager import Mask


class Refused(Exception):
    """Raised when a container does not get its devices; the text is the kubelet's."""


class Allocator:
    """Gives containers their devices. The caller must not allocate for two containers at once."""

    def __init__(
        self,
        devices: Devices,
        journal: Journal,
        rng: random.Random,
        *,
        empty_answer: str,
        already_running: Callable[[str, str], bool],
        collect: Callable[[], None],
        save: Callable[[], None],
    ) -> None:
        self._devices = devices
        self._journal = journal
        self._rng = rng
        self._empty_answer = empty_answer
        self._already_running = already_running
        self._collect = collect
        self._save = save
        #: Resource to the devices of the present pod's init containers, which later containers get again.
        self.reusable: dict[str, set[str]] = {}
        self._reused_by = ""

    async def allocate(self, pod: Pod, container: Container, mask: Mask | None) -> None:
        """Choose devices for the container and ask the plugin for them.

        Raises:
            Refused: The kubelet has not enough devices, or the plugin refuses.
        """
        self.begin(pod)
        await self._allocate(pod, container, mask)
        for held in self._devices.holdings.of(pod.uid, container.name):
            left = self.reusable.setdefault(held.resource, set())
            if is_init(container) and not container.restartable:
                left |= held.ids
            else:
                left -= held.ids

    def begin(self, pod: Pod) -> None:
        if self._reused_by != pod.uid:
            self.reusable, self._reused_by = {}, pod.uid

    async def _allocate(self, pod: Pod, container: Container, mask: Mask | None) -> None:
        assigned = False
        for resource in self.shuffled(container.limits):
            if not self._devices.manages(resource):
                continue
            self._collect()
            ids = await self._choose(pod.uid, container, resource, mask)
            if ids:
                assigned = True
                await self._ask(pod.uid, container, resource, ids)
        if assigned:
            self._save()

    async def _choose(self, uid: str, container: Container, resource: str, mask: Mask | None) -> set[str]:
        required = container.limits[resource]
        held = self._devices.holdings.ids(uid, container.name, resource)
        if held is not None and len(held) != required:
            raise Refused(
                f'pod "{uid}" container "{container.name}" changed request for resource "{resource}" '
                f"from {len(held)} to {required}"
            )
        if self._already_running(uid, container.name):
            return set()
        self._check_health(resource, held or frozenset())
        if held is not None or required == 0:
            return set()
        choice = _Choice(self, self._devices, resource, required)
        await choice.make(self.reusable.get(resource, set()), mask)
        return choice.taken

    def _check_health(self, resource: str, held: frozenset[str]) -> None:
        healthy = self._devices.healthy.get(resource)
        if healthy is None:
            raise Refused(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise Refused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not held <= healthy:
            raise Refused(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )

    async def _ask(self, uid: str, container: Container, resource: str, ids: set[str]) -> None:
        endpoint = self._devices.endpoints.get(resource)
        try:
            if endpoint is None:
                raise Refused(f"unknown Device Plugin {resource}")
            answer = await self._call(endpoint.live(resource), resource, self.shuffled(ids))
        except (RpcError, Stopped, Refused) as exc:
            self._devices.settle()
            raise Refused(str(exc)) from exc
        if answer is None:
            # The real kubelet has this leak, too: the chosen devices stay allocated.
            raise Refused(f"no containers return in allocation response {self._empty_answer}")
        self._devices.holdings.add(
            Holding(uid, container.name, resource, self._by_node(resource, ids), answer)
        )

    async def _call(self, plugin: Plugin, resource: str, ids: list[str]) -> ContainerAllocateResponse | None:
        env, error = None, ""
        try:
            answers = (await plugin.allocate(ids)).container_responses
            env = dict(answers[0].envs) if answers else {}
            return answers[0] if answers else None
        except RpcError as exc:
            error = str(exc)
            raise
        finally:
            self._journal.allocations.append(AllocateCall(resource, tuple(ids), env, error))
            self._journal.note()

    def _by_node(self, resource: str, ids: set[str]) -> dict[int, list[str]]:
        by_node: dict[int, list[str]] = {}
        for one in self.shuffled(ids):
            for node in self._devices.nodes(resource, one) or (NO_NODE,):
                by_node.setdefault(node, []).append(one)
        return by_node

    async def preferred(self, resource: str, available: set[str], must: set[str], size: int) -> set[str]:
        """Ask the plugin for its preferred allocation; empty where the plugin has no such call.

        Raises:
            Refused: The call failed, which fails the pod.
        """
        endpoint = self._devices.endpoints.get(resource)
        if endpoint is None:
            raise Refused(f"endpoint not found in cache for a registered resource: {resource}")
        if not endpoint.options.get_preferred_allocation_available:
            return set()
        try:
            plugin = endpoint.live(resource)
            reply = await plugin.preferred(self.shuffled(available), self.shuffled(must), size)
        except (RpcError, Stopped) as exc:
            raise Refused(f"device plugin GetPreferredAllocation rpc failed with err: {exc}") from exc
        answers = reply.container_responses
        answer = answers[0].device_i_ds if answers else []
        self._journal.preferences.append(
            PreferredCall(resource, frozenset(available), frozenset(must), size, tuple(answer))
        )
        self._journal.note()
        return set(answer)

    def shuffled(self, items: Iterable[str]) -> list[str]:
        """In random order, as Go iterates over a map. The seed makes a run repeatable."""
        mixed = sorted(items)
        self._rng.shuffle(mixed)
        return mixed


class _Choice:
    """The devices chosen so far for one request."""

    def __init__(self, allocator: Allocator, devices: Devices, resource: str, required: int) -> None:
        self._allocator = allocator
        self._devices = devices
        self._resource = resource
        self._required = required
        self.taken: set[str] = set()

    @property
    def _missing(self) -> int:
        return self._required - len(self.taken)

    async def make(self, reusable: set[str], mask: Mask | None) -> None:
        if self._take(reusable):
            return
        available = self._devices.free(self._resource)
        if len(available) < self._missing:
            raise Refused(
                f"requested number of devices unavailable for {self._resource}. "
                f"Requested: {self._missing}, Available: {len(available)}"
            )
        aligned, unaligned, anywhere = self._by_affinity(available, mask)
        if self._missing < len(aligned):
            await self._take_preferred(aligned)
            self._take(aligned)
            return
        if self._take(aligned):
            return
        await self._take_preferred(available)
        self._take(unaligned)
        self._take(anywhere)

    async def _take_preferred(self, among: set[str]) -> None:
        liked = await self._allocator.preferred(
            self._resource, among | self.taken, set(self.taken), self._required
        )
        self._take(liked & among)

    def _take(self, wanted: set[str]) -> bool:
        """Choose as many of these devices as are still missing; returns whether the request is complete."""
        # Looked up each time, because a list that comes during a call to the plugin replaces the set.
        allocated = self._devices.allocated.setdefault(self._resource, set())
        for one in self._allocator.shuffled(wanted - self.taken)[: self._missing]:
            allocated.add(one)
            self.taken.add(one)
        return self._missing == 0

    def _by_affinity(self, available: set[str], mask: Mask | None) -> tuple[set[str], set[str], set[str]]:
        """Three lists: the devices on the nodes of the hint, on other nodes, and on no node."""
        if mask is None or not self._devices.has_topology(self._resource):
            return set(), set(), available
        placed = {one for one in available if self._devices.nodes(self._resource, one)}
        aligned = {one for one in placed if not mask.isdisjoint(self._devices.nodes(self._resource, one))}
        return aligned, placed - aligned, available - placed

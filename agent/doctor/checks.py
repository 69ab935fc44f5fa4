"""All checks, in the order in which one mends: what is first may be why the rest is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from agent.doctor import (
    agents,
    cdi,
    configuration,
    containers,
    device_plugins,
    kubelet,
    node,
    parts,
    pods,
    remains,
    served,
    server,
    state,
    units,
    vendors,
)
from agent.doctor.finding import Ailment, Finding, not_made
from agent.doctor.koordinator import daemons, devices, koordlets, locks, nodes, way
from agent.doctor.koordinator import pods as koordinator_pods
from agent.doctor.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the surroundings. It says something in every case, if only that all is well.

    `by_config`: what is right there is for the configuration to say, so that without one there is no check.
    """

    name: str
    make: Callable[[Surroundings], Iterable[Finding]]
    by_config: bool = False

    def made(self, around: Surroundings) -> Iterable[Finding]:
        """What it finds. One that breaks is one that could not be made, and keeps no other from it."""
        if self.by_config and around.configuration.error:
            return [
                not_made(self.name, "not checked, for the configuration can not be used (see check config)")
            ]
        try:
            return tuple(self.make(around)) or [not_made(self.name, "it had nothing to look at")]
        except Exception as exc:
            return [not_made(self.name, f"it broke: {type(exc).__name__}: {exc}")]


CHECKS = (
    Check(configuration.CHECK, configuration.configuration),
    Check(kubelet.KUBELET, kubelet.kubelet),
    Check(kubelet.POD_RESOURCES, kubelet.pod_resources),
    Check(vendors.LIBRARY, vendors.libraries, by_config=True),
    Check(vendors.DRIVER, vendors.drivers, by_config=True),
    Check(parts.CHECK, parts.parts, by_config=True),
    Check(containers.CHECK, containers.containers, by_config=True),
    Check(served.CHECK, served.served, by_config=True),
    Check(state.STATE, state.state),
    Check(state.DISK, state.disk),
    Check(state.CHECKPOINT, state.checkpoint),
    Check(cdi.CHECK, cdi.cdi, by_config=True),
    Check(remains.CHECK, remains.remains, by_config=True),
    Check(agents.AGENT, agents.agent),
    Check(agents.SECOND, agents.second),
    Check(device_plugins.CHECK, device_plugins.device_plugins, by_config=True),
    Check(units.CHECK, units.units),
    Check(server.SERVER, server.server),
    Check(server.RIGHTS, server.rights, by_config=True),
    Check(node.LABELS, node.labels, by_config=True),
    Check(node.ALLOCATABLE, node.allocatable),
    Check(pods.REFUSED, pods.refused),
    Check(pods.AROUND, pods.around, by_config=True),
    Check(way.WAY, way.way, by_config=True),
    Check(way.PROGRAMS, way.programs, by_config=True),
    Check(koordlets.KOORDLET, koordlets.koordlets, by_config=True),
    Check(daemons.CHECK, daemons.daemons, by_config=True),
    Check(devices.DEVICE, devices.devices, by_config=True),
    Check(nodes.NODE, nodes.nodes, by_config=True),
    Check(locks.CHECK, locks.locks),
    Check(koordinator_pods.PODS, koordinator_pods.pods, by_config=True),
)

_ROOMS = (
    *(
        configuration,
        kubelet,
        vendors,
        parts,
        containers,
        served,
        state,
        cdi,
        remains,
        agents,
        device_plugins,
        units,
        server,
        node,
        pods,
    ),
    *(way, koordlets, daemons, devices, nodes, locks, koordinator_pods),
)

#: Every kind of finding there is, check by check.
AILMENTS = tuple(it for room in _ROOMS for it in vars(room).values() if isinstance(it, Ailment))


def examined(around: Surroundings) -> Iterator[Finding]:
    """What all checks find."""
    for check in CHECKS:
        yield from check.made(around)

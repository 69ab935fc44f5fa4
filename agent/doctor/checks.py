"""All checks, in the order in which one mends: what is first may be why the rest is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from agent.doctor import agents, cdi, configuration, kubelet, node, pods, rivals, server, state, vendors
from agent.doctor.finding import Ailment, Finding, not_made
from agent.doctor.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the surroundings. It says something in every case, if only that all is well."""

    name: str
    make: Callable[[Surroundings], Iterable[Finding]]


CHECKS = (
    Check(configuration.CHECK, configuration.configuration),
    Check(kubelet.KUBELET, kubelet.kubelet),
    Check(kubelet.POD_RESOURCES, kubelet.pod_resources),
    Check(vendors.LIBRARY, vendors.libraries),
    Check(vendors.DRIVER, vendors.drivers),
    Check(state.STATE, state.state),
    Check(state.DISK, state.disk),
    Check(state.CHECKPOINT, state.checkpoint),
    Check(cdi.CHECK, cdi.cdi),
    Check(agents.AGENT, agents.agent),
    Check(agents.SECOND, agents.second),
    Check(rivals.CHECK, rivals.rivals),
    Check(server.SERVER, server.server),
    Check(server.RIGHTS, server.rights),
    Check(node.LABELS, node.labels),
    Check(node.ALLOCATABLE, node.allocatable),
    Check(pods.REFUSED, pods.refused),
    Check(pods.AROUND, pods.around),
)

_ROOMS = (configuration, kubelet, vendors, state, cdi, agents, rivals, server, node, pods)

#: Every kind of finding there is, check by check.
AILMENTS = tuple(it for room in _ROOMS for it in vars(room).values() if isinstance(it, Ailment))


def examined(around: Surroundings) -> Iterator[Finding]:
    """What all checks find. One that breaks is one that could not be made, and keeps no other from it."""
    for check in CHECKS:
        try:
            found = list(check.make(around))
        except Exception as exc:
            found = [not_made(check.name, f"it broke: {type(exc).__name__}: {exc}")]
        yield from found or [not_made(check.name, "it had nothing to look at")]

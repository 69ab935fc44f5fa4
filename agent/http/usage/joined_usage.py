"""The use of cards joined with what else the agent knows of the cards and of the containers on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from agent.core.model import Allocation, AllocationState, DeviceStatus
from agent.core.publishing.agent_status import AgentStatus
from agent.core.publishing.allocated_shares import AllocatedShare, allocated_shares
from agent.core.usage.usage_report import ContainerUse, UsageReport


# No slots: each view makes the joins that it shows, once.
@dataclass(frozen=True)
class JoinedUsage:
    """A report of use within the status of the agent, for one view."""

    status: AgentStatus
    report: UsageReport

    @cached_property
    def devices(self) -> Mapping[str, DeviceStatus]:
        """Uuid of each card and slice to what is known of it."""
        return {it.uuid: it for it in self.status.snapshot.devices}

    @cached_property
    def shares(self) -> Sequence[AllocatedShare]:
        """What each container was given of each card. Two allocations may be alike."""
        return tuple(allocated_shares(self.status, self.report.sampled))

    def share_of(self, use: ContainerUse) -> AllocatedShare | None:
        """What the container was given of the card; None where it was given nothing."""
        return self._shares_by_names.get(names_of(use))

    def uses_of(self, allocation: Allocation) -> Sequence[ContainerUse]:
        """What the container with the allocation uses of each of the cards; nothing once it is over."""
        if allocation.state is AllocationState.RELEASED:
            return ()
        return self._uses_by_container.get((allocation.container_key, allocation.resource), ())

    def sampled_at(self, vendor: str) -> float | None:
        """When the vendor's cards were sampled last, in Unix seconds."""
        return self._samples.get(vendor)

    @cached_property
    def _shares_by_names(self) -> Mapping[tuple[str, ...], AllocatedShare]:
        return {names_of(share): share for share in self.shares}

    @cached_property
    def _uses_by_container(self) -> Mapping[object, Sequence[ContainerUse]]:
        found: dict[object, list[ContainerUse]] = {}
        for use in self.report.containers:
            found.setdefault(((use.uid, use.container), use.resource), []).append(use)
        return found

    @cached_property
    def _samples(self) -> Mapping[str, float | None]:
        return {it.vendor: it.at for it in self.report.sampling}


def names_of(named: ContainerUse | AllocatedShare) -> tuple[str, ...]:
    """What tells the series of one container on one card from all others."""
    return (named.namespace, named.pod, named.container, named.uuid, named.resource)

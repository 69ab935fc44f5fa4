"""The use of cards joined with what else is known of them, for the series of one scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from msgspec import structs

from agent.core.model import DeviceStatus, Resource
from agent.core.publishing.agent_status import AgentStatus
from agent.core.publishing.allocated_shares import AllocatedShare, allocated_shares
from agent.core.publishing.usage_series_rules import by_pod, distinct
from agent.core.usage.usage_report import ContainerUse, UsageReport
from agent.vendor_api.agent import Exporter
from agent.vendor_api.metric_families import labels
from agent.vendor_api.node_usage import ContainerUsage, NodeUsage


@dataclass(frozen=True, slots=True)
class JoinedUsage:
    """One report of use, with what else is known of its cards and containers."""

    node: str
    report: UsageReport
    #: Uuid of each card and slice to what is known of it.
    devices: Mapping[str, DeviceStatus]
    resources: Mapping[str, Resource]
    containers: Sequence[ContainerUse]
    shares: Sequence[AllocatedShare]
    #: Vendor to the exporters that the config switches on for the vendor's cards.
    exporters: Mapping[str, Sequence[Exporter]]
    #: Whether the series name pods and no containers.
    level: Literal["container", "pod"] = "container"
    #: How many containers and shares have no series.
    left_out: int = 0
    #: Writes the labels of containers and shares.
    labels: Callable[[tuple[str, ...], Iterable[str]], str] = labels

    @classmethod
    def of(cls, status: AgentStatus, report: UsageReport) -> JoinedUsage:
        return cls(
            status.node,
            report,
            {it.uuid: it for it in status.snapshot.devices},
            status.resources,
            distinct(report.containers),
            tuple(dict.fromkeys(allocated_shares(status, report.sampled))),
            _switched_on(status),
        )

    def reduced(self, series: int, most: int) -> JoinedUsage:
        """The use in fewer series: by pod, and then without the last ones.

        `series`: how many there are of containers and shares now; `most`: how many there may be.
        """
        if self.level == "container":
            shares = dict.fromkeys(structs.replace(share, container="") for share in self.shares)
            pods = replace(self, containers=by_pod(self.containers), shares=tuple(shares), level="pod")
            is_less = len(pods.containers) < len(self.containers)
            return pods if is_less else pods.reduced(series, most)
        containers = self.containers[: max(0, len(self.containers) * most // series - 1)]
        shares_left = self.shares[: max(0, len(self.shares) * most // series - 1)]
        gone = len(self.containers) - len(containers) + len(self.shares) - len(shares_left)
        return replace(self, containers=containers, shares=shares_left, left_out=self.left_out + gone)

    def of_vendor(self, vendor: str) -> NodeUsage:
        """The use of this vendor's cards alone, for exporters."""
        containers = tuple(_container(use) for use in self.containers if use.vendor == vendor)
        return NodeUsage(
            self.node,
            self.report.now,
            {uuid: it.device for uuid, it in self.devices.items() if it.vendor == vendor},
            tuple(card.usage for card in self.report.cards if card.vendor == vendor),
            containers,
            self._shared(containers),
            self.labels,
        )

    def _shared(self, containers: Sequence[ContainerUsage]) -> frozenset[str]:
        """The cards that several containers can have: some have, or a resource shares the card."""
        having = Counter(use.uuid for use in containers)
        rules = {name: resource.rule.sharing.kind for name, resource in self.resources.items()}
        by_resource = {use.uuid for use in containers if rules.get(use.resource, "exclusive") != "exclusive"}
        return frozenset(by_resource | {uuid for uuid, count in having.items() if count > 1})


def _switched_on(status: AgentStatus) -> Mapping[str, Sequence[Exporter]]:
    wanted = status.exporters
    return {
        name: [it for it in vendor.exporters if isinstance(it, Exporter) and it.name in wanted]
        for name, vendor in status.vendors.items()
        if wanted
    }


def _container(use: ContainerUse) -> ContainerUsage:
    return ContainerUsage(
        use.namespace,
        use.pod,
        use.container,
        use.uuid,
        use.resource,
        use.processes,
        use.memory,
        use.utilization,
        use.memory_limit,
        use.compute_limit,
        use.active_at,
    )

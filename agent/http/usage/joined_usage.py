"""The use of cards joined with what else is known of them, for the series of one scrape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from msgspec import structs

from agent.core.model import DeviceStatus, Resource
from agent.core.publishing.agent_status import AgentStatus
from agent.core.publishing.allocated_shares import AllocatedShare, allocated_shares
from agent.core.publishing.usage_series_rules import by_pod, distinct
from agent.core.usage.usage_report import CardUse, ContainerUse, UsageReport
from agent.http.metric_families import labels


# No slots: the groups are built once per value.
@dataclass(frozen=True)
class JoinedUsage:
    """One report of use, with what else is known of its cards and containers."""

    node: str
    report: UsageReport
    #: Uuid of each card and slice to what is known of it.
    devices: Mapping[str, DeviceStatus]
    resources: Mapping[str, Resource]
    containers: Sequence[ContainerUse]
    shares: Sequence[AllocatedShare]
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

    def of_vendor(self, vendor: str) -> JoinedUsage:
        """The use of this vendor's cards alone."""
        cards = tuple(card for card in self.report.cards if card.vendor == vendor)
        containers = tuple(use for use in self.containers if use.vendor == vendor)
        return replace(self, report=structs.replace(self.report, cards=cards), containers=containers)

    def is_shared(self, uuid: str) -> bool:
        """Whether several containers can have the card: some have, or a resource shares it."""
        uses = self.containers_of.get(uuid, ())
        if len(uses) > 1:
            return True
        known = (self.resources.get(use.resource) for use in uses)
        return any(it is not None and it.rule.sharing.kind != "exclusive" for it in known)

    def total(self, uuid: str) -> int | None:
        """All memory of the card in bytes."""
        card = self._cards.get(uuid)
        return card.usage.memory_total if card is not None else None

    @cached_property
    def _cards(self) -> Mapping[str, CardUse]:
        return {card.usage.uuid: card for card in self.report.cards}

    @cached_property
    def containers_of(self) -> Mapping[str, Sequence[ContainerUse]]:
        """Uuid to the containers that have or use the card."""
        found: dict[str, list[ContainerUse]] = {}
        for use in self.containers:
            found.setdefault(use.uuid, []).append(use)
        return found

    @cached_property
    def cut_cards(self) -> Collection[str]:
        """The uuids of the cards with slices that are in the report, too."""
        known = (self.devices.get(card.usage.uuid) for card in self.report.cards)
        return {it.device.parent for it in known if it is not None and it.device.parent is not None}

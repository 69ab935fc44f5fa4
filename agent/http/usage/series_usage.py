"""The use of cards for the series of one scrape: by container, or by pod where there would be too many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from msgspec import structs

from agent.core.publishing.allocated_shares import AllocatedShare
from agent.core.usage.usage_report import ContainerUse, UsageReport
from agent.core.usage.usage_series_rules import by_pod, distinct
from agent.http.usage.joined_usage import JoinedUsage
from agent.vendor_api.metric_families import labels


@dataclass(frozen=True, slots=True)
class SeriesUsage:
    """What has series: the cards of the report, and these containers and shares."""

    joined: JoinedUsage
    containers: Sequence[ContainerUse]
    shares: Sequence[AllocatedShare]
    #: Whether the series name pods and no containers.
    level: Literal["container", "pod"] = "container"
    #: How many containers and shares have no series.
    left_out: int = 0
    #: Writes the labels of containers and shares.
    labels: Callable[[tuple[str, ...], Iterable[str]], str] = labels

    @classmethod
    def of(cls, joined: JoinedUsage) -> SeriesUsage:
        return cls(joined, distinct(joined.report.containers), tuple(dict.fromkeys(joined.shares)))

    @property
    def report(self) -> UsageReport:
        return self.joined.report

    def reduced(self, series: int, most: int) -> SeriesUsage:
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

"""How near two cards are, as numbers: from the snapshot, never from a library call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.core.model import NodeSnapshot
from agent.core.vendor import Device, Distance, Link

#: NVIDIA's own pair scores (go-gpuallocator): the PCIe path, and 100 for each direct lane.
DISTANCE_SCORE = {
    Distance.SYSTEM: 10,
    Distance.NUMA_NODE: 20,
    Distance.HOST_BRIDGE: 30,
    Distance.SWITCHES: 40,
    Distance.SWITCH: 50,
    Distance.BOARD: 60,
}
LANE_SCORE = 100


@dataclass(frozen=True, slots=True)
class Topology:
    """Pair scores by uuid; symmetric."""

    scores: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def score(self, left: str, right: str) -> int:
        return self.scores.get((left, right), 0)

    def total(self, uuids: Iterable[str]) -> int:
        """The score of a set: the sum over its pairs."""
        chosen = list(uuids)
        return sum(self.score(a, b) for i, a in enumerate(chosen) for b in chosen[i + 1 :])


def topology(snapshot: NodeSnapshot) -> Topology:
    """Pair scores from links; where a vendor reports none, cards of one NUMA node count as near."""
    scores: dict[tuple[str, str], int] = {}
    devices = [status.device for status in snapshot.devices]
    for left in devices:
        links = {link.peer: link for link in left.links}
        for right in devices:
            if left.uuid != right.uuid:
                pair = _pair(left, right, links.get(right.uuid))
                for key in ((left.uuid, right.uuid), (right.uuid, left.uuid)):
                    scores[key] = max(scores.get(key, 0), pair)
    return Topology(scores)


def _pair(left: Device, right: Device, link: Link | None) -> int:
    if link is not None:
        return DISTANCE_SCORE[link.distance] + LANE_SCORE * link.lanes
    near = left.numa is not None and left.numa == right.numa
    return DISTANCE_SCORE[Distance.NUMA_NODE if near else Distance.SYSTEM]

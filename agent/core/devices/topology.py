"""How near two devices are, as scores made from the snapshot and never from a library call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

from agent.core.model import NodeSnapshot
from agent.vendor_api.agent import Device, Distance

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

#: Card to the cards that it reports links to, with their scores.
_Reach = Mapping[str, Mapping[str, int]]
_NONE: Mapping[str, int] = {}


# No slots: the cached property needs a dict.
@dataclass(frozen=True)
class Topology:
    """Scores of pairs by uuid; symmetric. Computed on demand, as a node can have a thousand devices."""

    devices: Mapping[str, Device] = field(default_factory=dict)

    def score(self, left: str, right: str) -> int:
        """How near two devices are; 0 for a device and itself, and for an unknown device."""
        one, other = self.devices.get(left), self.devices.get(right)
        return 0 if one is None or other is None or left == right else _pair(one, other, self._reach)

    def rows(self, uuids: Sequence[str]) -> list[list[int]]:
        """The scores of all pairs as a matrix."""
        rows = [[0] * len(uuids) for _ in uuids]
        for (i, left), (j, right) in combinations(enumerate(uuids), 2):
            rows[i][j] = rows[j][i] = self.score(left, right)
        return rows

    def total(self, uuids: Iterable[str]) -> int:
        """The score of a set: the sum over its pairs."""
        return sum(self.score(left, right) for left, right in combinations(uuids, 2))

    @cached_property
    def _reach(self) -> _Reach:
        return {
            device.uuid: {it.peer: DISTANCE_SCORE[it.distance] + LANE_SCORE * it.lanes for it in device.links}
            for device in self.devices.values()
        }


def topology(snapshot: NodeSnapshot) -> Topology:
    """The topology of a node's devices."""
    return Topology({status.uuid: status.device for status in snapshot.devices})


def _pair(left: Device, right: Device, reach: _Reach) -> int:
    """The score of two devices. A link that only one side reports counts for both.

    Devices of one NUMA node have at least the score of a NUMA node. Slices have the scores of their cards
    without the lanes: MIG has no peer-to-peer (NVIDIA's MIG user guide, deployment considerations).
    """
    here, there = left.parent or left.uuid, right.parent or right.uuid
    if here == there:
        return DISTANCE_SCORE[Distance.BOARD]
    near = left.numa is not None and left.numa == right.numa
    least = DISTANCE_SCORE[Distance.NUMA_NODE if near else Distance.SYSTEM]
    score = max(least, reach.get(here, _NONE).get(there, 0), reach.get(there, _NONE).get(here, 0))
    return score % LANE_SCORE if left.parent or right.parent else score

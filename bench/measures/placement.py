"""Which cards a request gets by the tree of 16 cards, without a call of the kubelet."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from agent.core.allocation.best_free_ids import prefer
from agent.core.devices.topology import Topology
from agent.core.model import AdvertisedDevice, IdRange, Resource
from agent.vendor_api.agent import BY_TREE, Device, Distance, Link, ResourceRule
from bench.pace import Pace
from bench.rows import NO_SLACK, Figure, Row, percentile
from bench.subjects import GPU, Subject

RUNS = 5
CARDS = 16
SIZES = (1, 2, 4, 8)
CHOICES = 500
#: How many neighbouring cards each level joins, nearest first.
LEVELS = (
    (2, Distance.SWITCH),
    (4, Distance.SWITCHES),
    (8, Distance.NUMA_NODE),
    (16, Distance.SYSTEM),
)
PLACED = Figure("placement of 16 cards by the tree, p99", "ms of CPU", 2, "none", tolerance=NO_SLACK)


async def measure(subject: Subject, pace: Pace) -> list[Row]:
    """Sizes 1, 2, 4, 8 out of changing sets of the 16 cards, in the bench's own process."""
    runs = [[*_choices(random.Random(run))] for run in range(pace.runs(RUNS))]
    return [PLACED.row([percentile(took, 99) for took in runs], "the tree is built for each choice")]


def _choices(rng: random.Random) -> Iterator[float]:
    """The processor time of each choice, in milliseconds."""
    topology = Topology({str(card): Device(str(card), card, links=_links(card)) for card in range(CARDS)})
    cards = tuple(AdvertisedDevice(uuid, IdRange(uuid), healthy=True) for uuid in topology.devices)
    resource = Resource(GPU, "nvidia", ResourceRule(GPU), BY_TREE, cards)
    for size in SIZES:
        for _ in range(CHOICES):
            free = rng.sample(list(topology.devices), rng.randint(size, CARDS))
            began = time.thread_time()
            prefer(resource, free, [], size, topology)
            yield (time.thread_time() - began) * 1000


def _links(card: int) -> tuple[Link, ...]:
    def distance(peer: int) -> Distance:
        return next(path for size, path in LEVELS if card // size == peer // size)

    return tuple(Link(str(peer), 0, distance(peer)) for peer in range(CARDS) if peer != card)

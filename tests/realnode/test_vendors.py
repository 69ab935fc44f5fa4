"""Cards of two vendors on one node, of one agent: each breaks alone."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.vendors.simulated.child.scenario import Scenario, cards

from .api import Object
from .cards import CONTROL, NULL
from .cluster import Cluster
from .release import LABEL
from .space import GPU, PRINT_CARDS, Space, pod

SIMULATED = "xpu-agent.io/simulated"
SCENARIO = "simulated.json"
#: How many cards there are of each.
OFFERED = {GPU: 4, SIMULATED: 2}
#: Cards whose vendor cannot be asked are given out no longer after a second, and again at once when it can.
CONFIG = f"""
version: v1
agent: {{health: {{badPolls: 1, goodPolls: 1, goodFor: 0s, patience: 1s}}}}
vendors:
  nvidia: {{enabled: true}}
  simulated: {{enabled: true, settings: {{scenario: {CONTROL}/{SCENARIO}, deviceNodes: true}}}}
"""
KEY, _, VALUE = LABEL.partition("=")
#: A node with cards of two vendors belongs to one pool that names both (docs/install.md).
VALUES = {
    "pools": {
        "nvidia": {"enabled": False},
        "mixed": {"vendors": ["nvidia", "simulated"], "nodeSelector": {KEY: VALUE}},
    },
    "config": {"map": {"mixed": CONFIG}, "default": "mixed"},
}
#: What NVIDIA's library does as the list of cards is asked for; any process that asks meets it.
LIST = "nvmlDeviceGetCount_v2"


@pytest.fixture
async def simulated(cluster: Cluster) -> AsyncIterator[Scenario]:
    """The agent with cards of both vendors; both are whole at the end."""
    nodes = plug_in(OFFERED[SIMULATED])
    scenario = Scenario(cluster.place.cards.parent / SCENARIO)
    scenario.write({"devices": cards(OFFERED[SIMULATED])})
    if not await cluster.agent.holds(VALUES):
        await cluster.agent.anew(VALUES)
    await all_offered(cluster)
    yield scenario
    scenario.hang(None)
    cluster.cards.clear()
    await all_offered(cluster)
    for node in nodes:
        node.unlink()


def plug_in(count: int) -> list[Path]:
    """Make the device nodes of simulated cards, which `deviceNodes` gives out and no node has."""
    nodes = [Path(f"/dev/xpu{index}") for index in range(count)]
    for node in nodes:
        node.unlink(missing_ok=True)
        os.mknod(node, stat.S_IFCHR | 0o666, NULL)
    return nodes


async def all_offered(cluster: Cluster) -> None:
    for resource, count in OFFERED.items():
        await cluster.offers(count, resource)


async def test_one_container_gets_cards_of_both_vendors_from_one_agent(
    cluster: Cluster, simulated: Scenario, space: Space
) -> None:
    both = pod("both", f'echo "xpus: $XPU_VISIBLE_DEVICES"; ls /dev/xpu*; {PRINT_CARDS}')
    both["spec"]["containers"][0]["resources"]["limits"][SIMULATED] = 1
    await space.apply(both)

    await space.running(1)
    [card] = await space.cards("both")
    assert card in {cluster.cards.uuid(index) for index in range(4)}
    told = (await space.log("both")).splitlines()
    chosen = [f"xpus: {uuid}" for uuid in simulated.uuids]
    index = chosen.index(told[0])
    assert told[1:-1] == [f"/dev/xpu{index}"], "its own device node, and no other"
    assert len(await cluster.agent.pods()) == 1


@dataclass(frozen=True)
class Breakage:
    """Of which resource the cards go, whose stay, and what happens to the library."""

    gone: str
    stays: str
    happens: Callable[[Cluster, Scenario], None]


BREAKAGES = {
    "nvidia crashes": Breakage(GPU, SIMULATED, lambda cluster, _: cluster.cards.segv(LIST)),
    "simulated hangs": Breakage(SIMULATED, GPU, lambda _, simulated: simulated.hang("discover")),
}


@pytest.mark.parametrize(
    "breakage", ["nvidia crashes", pytest.param("simulated hangs", marks=pytest.mark.long)]
)
async def test_a_vendor_whose_library_breaks_leaves_the_others_cards_alone(
    cluster: Cluster, simulated: Scenario, space: Space, breakage: str
) -> None:
    it = BREAKAGES[breakage]
    before = await started(cluster)
    await space.apply(pod("holds", "exec sleep infinity", resource=it.gone))
    await space.running(1)

    it.happens(cluster, simulated)
    await cluster.offers(0, it.gone)

    assert await cluster.allocatable(it.stays) == OFFERED[it.stays]
    await space.apply(pod("new", "exec sleep infinity", resource=it.stays))
    await space.running(2)
    known = [row for row in await vendors(cluster) if row["name"] in ("nvidia", "simulated")]
    [failed] = [row for row in known if row["state"] != "open"]
    assert failed["name"] == ("nvidia" if it.gone == GPU else "simulated")
    assert await started(cluster) == before, "the agent is the one that it was"


async def vendors(cluster: Cluster) -> list[Object]:
    told = json.loads(await cluster.agent.run("xpu-agent", "inspect", "--json"))["vendors"]
    assert isinstance(told, list)
    return told


async def started(cluster: Cluster) -> tuple[str, int]:
    """Which pod the agent is, and how often its container was started again."""
    it = await cluster.agent.pod()
    return it["metadata"]["uid"], it["status"]["containerStatuses"][0]["restartCount"]

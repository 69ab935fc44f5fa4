"""Cards for pods: whole ones, several for one pod, and document 000's Deployment on fewer cards than pods."""

from __future__ import annotations

from collections import Counter

import yaml

from .cluster import Cluster
from .place import ROOT
from .release import Release
from .space import Space, deployment, pod, pod_spec

#: NVIDIA's files `any`, with ten replicas of each card, and `whole`; `any` is the default.
TIME_SLICING = yaml.safe_load((ROOT / "deploy/examples/nvidia-time-slicing/values.yaml").read_text())
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
CONFIG = "nvidia.com/device-plugin.config"


async def test_the_node_offers_its_cards_and_a_pod_gets_one(
    cluster: Cluster, agent: Release, space: Space
) -> None:
    await cluster.offers(4)

    await space.apply(pod("one"))

    await space.running(1)
    [card] = await space.cards("one")
    assert card in {cluster.cards.uuid(index) for index in range(4)}


async def test_two_pods_with_two_cards_each_have_all_four(
    cluster: Cluster, agent: Release, space: Space
) -> None:
    await cluster.offers(4)

    await space.apply(pod("one", cards=2), pod("other", cards=2))

    await space.running(2)
    held = [await space.cards(name) for name in ("one", "other")]
    assert [len(cards) for cards in held] == [2, 2]
    assert {card for cards in held for card in cards} == {cluster.cards.uuid(index) for index in range(4)}


async def test_five_pods_of_a_deployment_run_on_four_cards_by_time_slicing(
    cluster: Cluster, space: Space
) -> None:
    await cluster.agent.anew(TIME_SLICING)
    await cluster.offers(40)

    await space.apply(
        deployment("time-slicing-verification", 5, pod_spec(hostPID=True, tolerations=[TOLERATION]))
    )

    told = [await space.cards(name) for name in await space.running(5)]
    assert all(len(cards) == 1 for cards in told)
    used = Counter(card for [card] in told)
    assert sorted(used.values()) == [1, 1, 1, 2], "the replicas are spread"


async def test_a_label_of_the_node_chooses_another_config_than_the_default(
    cluster: Cluster,
) -> None:
    await cluster.agent.anew(TIME_SLICING)
    await cluster.offers(40)
    pod_before = (await cluster.agent.pod())["metadata"]["uid"]

    await cluster.label(f"{CONFIG}=whole")
    try:
        await cluster.offers(4)
    finally:
        await cluster.label(f"{CONFIG}-")

    await cluster.offers(40)
    assert (await cluster.agent.pod())["metadata"]["uid"] == pod_before, "it takes no restart"

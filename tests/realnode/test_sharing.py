"""Cards for pods: document 000's Deployment, and more than one card for a pod."""

from __future__ import annotations

from .cluster import Cluster
from .release import Release
from .space import Space, pod


async def test_the_node_offers_its_cards_and_a_pod_gets_one(
    cluster: Cluster, agent: Release, space: Space
) -> None:
    await cluster.offers(4)

    await space.apply(pod("one"))

    await space.running(1)
    [card] = await space.cards("one")
    assert card in {cluster.cards.uuid(index) for index in range(4)}

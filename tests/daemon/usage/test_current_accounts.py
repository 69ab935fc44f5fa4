"""When accounts are made again, and what is shown while they are."""

from __future__ import annotations

from dataclasses import replace

from core.usage.cards_in_use import CARD, GIB, card, held, moment, pod, process
from msgspec import structs

from agent.core.allocation.known_pods import KnownPods
from agent.core.attribution.scheduler_promises import Promises
from agent.core.usage.card_accounts import KnownSample
from agent.core.usage.card_holdings import holdings
from agent.core.usage.usage_report import VendorSample
from agent.daemon.usage.current_accounts import CurrentAccounts
from agent.daemon.usage.sample_joiner import JoinedSample


class Node:
    """The last samples and the promises as of now, which a test sets."""

    def __init__(self) -> None:
        self.promises: Promises = moment(held("p"))
        self.samples = {"acme": self.sample(GIB)}
        self.accounts = CurrentAccounts(lambda: self.samples, lambda: self.promises)

    def sample(self, used: int) -> JoinedSample:
        sample = VendorSample((card(used),), (process(7),))
        found = holdings("acme", sample, self.promises)
        return JoinedSample(KnownSample(sample, held=found.places), found)

    @property
    def used(self) -> int | None:
        (of_card,) = self.accounts.now().cards
        return of_card.usage.memory_used

    @property
    def places(self) -> list[tuple[str, str]]:
        return [(it.pod, it.uuid) for it in self.accounts.now().containers]


async def test_accounts_are_made_once_until_a_sample_an_allocation_or_a_pod_changes() -> None:
    node = Node()
    made = await node.accounts.of_new_sample()
    assert node.accounts.now() is made
    assert await node.accounts.of_new_sample() is made
    node.samples = {"acme": node.sample(2 * GIB)}
    assert (await node.accounts.of_new_sample()) is not made
    assert node.used == 2 * GIB
    node.promises = moment(held("q"))
    assert node.places == [("q", CARD)]
    made = node.accounts.now()
    node.promises = with_another_pod(node.promises)
    assert node.accounts.now() is not made


def with_another_pod(promises: Promises) -> Promises:
    """The same allocations, cards and resources, and one pod more."""
    more = KnownPods.of([pod("r")])
    return structs.replace(promises, scene=replace(promises.scene, candidates=more))


async def test_a_vendor_whose_sample_is_too_old_is_shown_no_more() -> None:
    node = Node()
    assert node.places == [("p", CARD)]
    node.samples = {}
    assert node.accounts.now().cards == ()
    assert node.places == []

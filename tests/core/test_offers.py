"""What vendors make of their devices, and what becomes of a vendor that fails at it."""

from __future__ import annotations

from collections.abc import Sequence

from agent.core.model import NodeSnapshot
from agent.core.offers import COMPLAINTS, Offers, Wish
from agent.core.plan import Offer
from agent.core.vendor import ContainerEdits, Device, Offering, Request, ResourceRule, Vendor

from .values import GPU, node, status

ONE, TWO = node(status("a")), node(status("a"), status("b", 1))


class Acme:
    """A vendor whose resources follow from its devices; `fails` makes it as bad as that."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails: Exception | Offering | None = None

    def resources(self, rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Offering:
        self.asked += 1
        if isinstance(self.fails, Exception):
            raise self.fails
        name = rules[0].name if rules else GPU
        return self.fails or Offering((ResourceRule(name, tuple(it.uuid for it in devices)),))

    def wish(self, *rules: ResourceRule) -> Wish:
        return Wish(Vendor("acme", "a:B", edits, GPU, resources=self.resources), rules)


def edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    return ContainerEdits()


def test_without_a_word_of_config_or_vendor_all_cards_are_its_resource() -> None:
    offers = Offers([Wish(Vendor("acme", "a:B", edits, GPU))])

    assert offers.of(ONE) == (Offer("acme", (ResourceRule(GPU),)),)


def test_the_vendor_says_what_the_rules_of_the_config_mean() -> None:
    offers = Offers([Acme().wish(ResourceRule("acme.com/other"))])

    assert offers.of(TWO) == (Offer("acme", (ResourceRule("acme.com/other", ("a", "b")),)),)


def test_the_rules_of_a_vendor_that_complains_itself_are_not_plain() -> None:
    rule = ResourceRule("bolt.com/x", 9)
    bolt = Wish(Vendor("bolt", "b:C", edits, "bolt.com/x"), (rule,))

    assert Offers([Acme().wish(rule), bolt]).plain == (Offer("bolt", (rule,)),)


def test_a_vendor_is_asked_again_only_when_its_devices_change() -> None:
    acme = Acme()
    offers = Offers([acme.wish()])

    for snapshot in (ONE, ONE, TWO, TWO):
        offers.of(snapshot)

    assert acme.asked == 2


def test_a_change_of_health_asks_nobody() -> None:
    acme = Acme()
    offers = Offers([acme.wish()])

    offers.of(ONE)
    offers.of(node(status("a", healthy=False)))

    assert acme.asked == 1


def test_a_vendor_without_devices_offers_nothing_and_is_not_asked() -> None:
    acme = Acme()

    assert Offers([acme.wish()]).of(NodeSnapshot()) == (Offer("acme", ()),)
    assert acme.asked == 0


def test_a_vendor_that_fails_keeps_its_last_offer_and_is_complained_of() -> None:
    acme = Acme()
    offers = Offers([acme.wish()])
    before = offers.of(ONE)

    acme.fails = ZeroDivisionError("division by zero")

    assert offers.of(TWO) == before
    assert offers.complaints == {
        "acme": ("its plugin fails to make resources: ZeroDivisionError: division by zero",)
    }


def test_a_resource_name_that_the_kubelet_would_refuse_is_not_offered() -> None:
    acme = Acme()
    acme.fails = Offering((ResourceRule("nonsense"),))
    offers = Offers([acme.wish()])

    assert offers.of(ONE) == (Offer("acme", ()),)
    assert "the resource name 'nonsense' needs a vendor's domain" in offers.complaints["acme"][0]


def test_complaints_end_with_their_cause() -> None:
    acme = Acme()
    acme.fails = Offering((), ("no such card",))
    offers = Offers([acme.wish()])
    offers.of(ONE)
    assert offers.complaints == {"acme": ("no such card",)}

    acme.fails = None
    offers.of(TWO)

    assert offers.complaints == {}


def test_complaints_are_few_and_short() -> None:
    acme = Acme()
    acme.fails = Offering((), ("x" * 10_000,) * 1000)
    offers = Offers([acme.wish()])

    offers.of(ONE)

    told = offers.complaints["acme"]
    assert len(told) == COMPLAINTS
    assert max(map(len, told)) < 1000

"""What vendors make of their devices, and what becomes of a vendor that fails at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from msgspec import structs

from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.offers import COMPLAINTS, OfferedResources, VendorRules
from agent.core.devices.plan import plan
from agent.core.model import NodeSnapshot
from agent.daemon.scheduler_plugins import reserved
from agent.vendor_api.agent import (
    ContainerEdits,
    Device,
    IdForm,
    Offering,
    Offers,
    Policy,
    Request,
    ResourceRule,
    Sharing,
    Slices,
    Vendor,
)
from core.values import GPU, node, status

ONE, TWO = node(status("a")), node(status("a"), status("b", 1))


SHARED = Sharing("replicas", 2)


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

    def wish(self, *rules: ResourceRule) -> VendorRules:
        return VendorRules(Vendor("acme", "a:B", GPU, edits, offers=Offers(resources=self.resources)), rules)


def edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    return ContainerEdits()


def test_without_a_word_of_config_or_vendor_all_cards_are_its_resource() -> None:
    offers = OfferedResources([VendorRules(Vendor("acme", "a:B", GPU, edits))])

    assert offers.of(ONE) == (Offer("acme", (ResourceRule(GPU),)),)


def test_the_vendor_says_what_the_rules_of_the_config_mean() -> None:
    offers = OfferedResources([Acme().wish(ResourceRule("acme.com/other"))])

    assert offers.of(TWO) == (Offer("acme", (ResourceRule("acme.com/other", ("a", "b")),)),)


def test_the_rules_of_a_vendor_that_complains_itself_are_not_plain() -> None:
    rule = ResourceRule("bolt.com/x", 9)
    bolt = VendorRules(Vendor("bolt", "b:C", "bolt.com/x", edits), (rule,))

    assert OfferedResources([Acme().wish(rule), bolt]).plain == (Offer("bolt", (rule,)),)


def test_a_vendor_is_asked_again_only_when_its_devices_change() -> None:
    acme = Acme()
    offers = OfferedResources([acme.wish()])

    for snapshot in (ONE, ONE, TWO, TWO):
        offers.of(snapshot)

    assert acme.asked == 2


def test_a_change_of_health_asks_nobody() -> None:
    acme = Acme()
    offers = OfferedResources([acme.wish()])

    offers.of(ONE)
    offers.of(node(status("a", healthy=False)))

    assert acme.asked == 1


def test_a_vendor_without_devices_offers_nothing_and_is_not_asked() -> None:
    acme = Acme()

    assert OfferedResources([acme.wish()]).of(NodeSnapshot()) == (Offer("acme", ()),)
    assert acme.asked == 0


def test_a_vendor_that_fails_keeps_its_last_offer_and_is_complained_of() -> None:
    acme = Acme()
    offers = OfferedResources([acme.wish()])
    before = offers.of(ONE)

    acme.fails = ZeroDivisionError("division by zero")

    assert offers.of(TWO) == before
    assert offers.complaints == {
        "acme": ("its plugin fails to make resources: ZeroDivisionError: division by zero",)
    }


def test_a_resource_name_that_the_kubelet_would_refuse_is_not_offered() -> None:
    acme = Acme()
    acme.fails = Offering((ResourceRule("nonsense"),))
    offers = OfferedResources([acme.wish()])

    assert offers.of(ONE) == (Offer("acme", ()),)
    assert "the resource name 'nonsense' needs a vendor's domain" in offers.complaints["acme"][0]


WRONG = {
    "no Offering": None,
    "complaints of no kind": Offering((), cast("tuple[str, ...]", None)),
    "a count": Offering((ResourceRule(GPU, 1),)),
    "a number of devices that is none": Offering((ResourceRule(GPU, cast("int", 5.0)),)),
    "an index": Offering((ResourceRule(GPU, (0,)),)),
    "Koordinator's own name": Offering((ResourceRule("koordinator.sh/gpu", ("a",)),)),
    "no sharing": Offering((ResourceRule(GPU, ("a",), cast("Sharing", "all")),)),
    "no replicas": Offering((ResourceRule(GPU, ("a",), Sharing("replicas", 0)),)),
    "too many replicas": Offering((ResourceRule(GPU, ("a",), Sharing("replicas", 1 << 20)),)),
    "an unknown policy": Offering((ResourceRule(GPU, ("a",), policy=cast("Policy", "best")),)),
    "unknown ids": Offering((ResourceRule(GPU, ("a",), ids=cast("IdForm", "name")),)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_an_offering_that_can_not_be_planned_with_is_not_taken(wrong: Offering | None) -> None:
    vendor = Vendor("acme", "a:B", GPU, edits, offers=Offers(resources=lambda *_: cast("Offering", wrong)))
    offers = OfferedResources([VendorRules(vendor)], reserved())

    assert plan(offers.of(ONE), ONE) == {}
    assert offers.complaints["acme"][0].startswith("its plugin fails to make resources: ")


def test_a_vendor_that_fails_after_a_change_of_the_config_keeps_its_last_offer_too() -> None:
    acme = Acme()
    offers = OfferedResources([acme.wish()])
    before = offers.of(ONE)
    acme.fails = ZeroDivisionError()

    offers.set_rules([acme.wish()])

    assert offers.of(ONE) == before
    assert offers.complaints


def test_a_change_of_the_config_asks_again() -> None:
    acme = Acme()
    offers = OfferedResources([acme.wish()])
    offers.of(ONE)

    offers.set_rules([acme.wish(ResourceRule("acme.com/other"))])

    assert offers.of(ONE)[0].rules[0].name == "acme.com/other"


def test_what_is_there_no_more_is_nothing_to_make_resources_of() -> None:
    gone = replace(status("b", 1), gone=True)

    assert OfferedResources([Acme().wish()]).of(node(status("a"), gone))[0].rules[0].devices == ("a",)


def test_a_resource_that_two_vendors_make_is_the_first_ones_and_the_second_is_complained_of() -> None:
    bolt = Vendor(
        "bolt",
        "b:C",
        "bolt.com/x",
        edits,
        offers=Offers(resources=lambda *_: Offering((ResourceRule(GPU, ("z",)),))),
    )
    offers = OfferedResources([Acme().wish(), VendorRules(bolt)])

    made = offers.of(node(status("a"), status("z", vendor="bolt")))

    assert made == (Offer("acme", (ResourceRule(GPU, ("a",)),)), Offer("bolt", ()))
    assert offers.complaints == {"bolt": (f"acme already serves {GPU}",)}


def test_a_resource_that_gets_no_card_for_modes_are_fixed_is_complained_of() -> None:
    acme = Acme()
    its = (ResourceRule(GPU, ("a", "b")), ResourceRule("acme.com/share", ("b",), sharing=SHARED))
    acme.fails = Offering(its)
    offers, dynamic = (
        OfferedResources([acme.wish()]),
        OfferedResources([structs.replace(acme.wish(), dynamic=True)]),
    )

    assert offers.of(TWO) == (Offer("acme", its),)
    [told] = offers.complaints["acme"]
    assert told.startswith(f"acme.com/share lacks cards that {GPU} has, for modes are fixed: name the 'dev")
    assert dynamic.of(TWO) == (Offer("acme", its, dynamic=True),)
    assert dynamic.complaints == {}


def test_complaints_end_with_their_cause() -> None:
    acme = Acme()
    acme.fails = Offering((), ("no such card",))
    offers = OfferedResources([acme.wish()])
    offers.of(ONE)
    assert offers.complaints == {"acme": ("no such card",)}

    acme.fails = None
    offers.of(TWO)

    assert offers.complaints == {}


def test_doubts_of_cards_are_told_and_are_no_complaints() -> None:
    acme = Acme()
    acme.fails = Offering(doubts=("c0 has slices of others",))
    offers = OfferedResources([acme.wish(), structs.replace(acme.wish(), dynamic=True)])

    offers.of(ONE)

    assert offers.doubts == {"acme": ("c0 has slices of others",)}
    assert (offers.complaints, offers.notes) == ({}, {})


def test_the_offer_says_whose_hardware_is_made() -> None:
    acme = Acme()
    wish = acme.wish()
    [none] = OfferedResources([wish]).of(ONE)
    [all_] = OfferedResources([structs.replace(wish, vendor=replace(wish.vendor, makes=Slices()))]).of(ONE)

    assert not none.made
    assert all_.made == {GPU}


def test_notes_are_told_and_are_no_complaints() -> None:
    acme = Acme()
    acme.fails = Offering((), (), ("no such card here",))
    offers = OfferedResources([acme.wish()])
    offers.of(ONE)

    assert (offers.notes, offers.complaints) == ({"acme": ("no such card here",)}, {})


def test_complaints_are_few_and_short() -> None:
    acme = Acme()
    acme.fails = Offering((), ("x" * 10_000,) * 1000)
    offers = OfferedResources([acme.wish()])

    offers.of(ONE)

    told = offers.complaints["acme"]
    assert len(told) == COMPLAINTS
    assert max(map(len, told)) < 1000

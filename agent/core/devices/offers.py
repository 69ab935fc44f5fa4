"""The resources that each vendor offers now: rules and snapshot in, offers and complaints out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from msgspec import Struct

from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.dynamic_modes import rules_with_equal_ids
from agent.core.model import NodeSnapshot
from agent.scheduler_api.reserved_names import Reserved, unserved_name
from agent.vendor_api.agent import (
    MAX_REPLICAS,
    Device,
    IdForm,
    Offering,
    Policy,
    ResourceRule,
    Resources,
    Sharing,
    Unit,
    Vendor,
)
from agent.vendor_api.text import shorten

#: At most so many complaints of one vendor are passed on, each of at most so many characters.
COMPLAINTS, COMPLAINT_LIMIT = 16, 500


class VendorRules(Struct, frozen=True):
    """A vendor and its resource rules of the config. Without rules the vendor chooses its resources."""

    vendor: Vendor
    rules: tuple[ResourceRule, ...] = ()
    #: Whether several rules may name the same card.
    dynamic: bool = False


class OfferedResources:
    """Asks a vendor for its offer when its devices or the config change.

    When a vendor's code fails, its last offer stays.
    """

    def __init__(self, vendor_rules: Sequence[VendorRules] = (), reserved: Sequence[Reserved] = ()) -> None:
        """`reserved`: names of resources that belong to schedulers and that no vendor may offer."""
        self._reserved = tuple(reserved)
        self._vendor_rules: tuple[VendorRules, ...] = ()
        self._seen: dict[str, tuple[Device, ...]] = {}
        self._made: dict[str, Offering] = {}
        self._taken: dict[str, tuple[str, ...]] = {}
        self.set_rules(vendor_rules)

    def set_rules(self, vendor_rules: Sequence[VendorRules]) -> None:
        """Take in the rules of a new config."""
        self._vendor_rules = tuple(vendor_rules)
        self._seen = {}
        names = {it.vendor.name for it in vendor_rules}
        self._made = {name: made for name, made in self._made.items() if name in names}

    def of(self, snapshot: NodeSnapshot) -> tuple[Offer, ...]:
        """The offers to plan with. A resource belongs to the first vendor that offers it."""
        offers: list[Offer] = []
        owners: dict[str, str] = {}
        self._taken = {}
        for wanted in self._vendor_rules:
            name, rules = wanted.vendor.name, self._offering(wanted, snapshot).rules
            taken = [rule.name for rule in rules if owners.setdefault(rule.name, name) != name]
            if taken:
                self._taken[name] = tuple(f"{owners[it]} already serves {it}" for it in dict.fromkeys(taken))
            left = tuple(rule for rule in rules if rule.name not in taken)
            made = frozenset(rule.name for rule in left if wanted.vendor.prepares(rule.name))
            offers.append(Offer(name, left, dynamic=wanted.dynamic, made=made))
        return tuple(offers)

    @property
    def plain(self) -> tuple[Offer, ...]:
        """The offers of vendors without code of their own for resources; made of the config's rules alone."""
        without_code = (it for it in self._vendor_rules if it.vendor.offers.resources is None)
        return tuple(Offer(it.vendor.name, it.rules, dynamic=it.dynamic) for it in without_code)

    @property
    def complaints(self) -> Mapping[str, tuple[str, ...]]:
        """What the vendors could not serve when they were last asked; vendor to sentences."""
        found = {name: (*made.complaints, *self._taken.get(name, ())) for name, made in self._made.items()}
        return {name: sentences for name, sentences in found.items() if sentences}

    @property
    def notes(self) -> Mapping[str, tuple[str, ...]]:
        """What the config names and the devices do not have, where that does no harm; vendor to sentences."""
        return {name: made.notes for name, made in self._made.items() if made.notes}

    @property
    def doubts(self) -> Mapping[str, tuple[str, ...]]:
        """What a person should mend although the devices are offered; vendor to sentences."""
        return {name: made.doubts for name, made in self._made.items() if made.doubts}

    def _offering(self, wanted: VendorRules, snapshot: NodeSnapshot) -> Offering:
        name = wanted.vendor.name
        devices = tuple(it for it in snapshot.present(name) if not it.nameless)
        if name not in self._seen or devices != self._seen[name]:
            self._seen[name] = devices
            self._made[name] = _asked(wanted, devices, self._made.get(name, Offering()), self._reserved)
        return self._made[name]


def _asked(
    wanted: VendorRules, devices: tuple[Device, ...], last: Offering, reserved: Sequence[Reserved]
) -> Offering:
    if wanted.vendor.offers.resources is None:
        return Offering(wanted.rules or (ResourceRule(wanted.vendor.resource),))
    if not devices:
        return Offering()
    try:
        made = _made(wanted.vendor.offers.resources, wanted, devices)
        wrong = next((trouble for rule in made.rules if (trouble := _trouble(rule, reserved))), "")
        wrong = wrong or (_twins(made.rules) if wanted.dynamic else "")
        lost = () if wanted.dynamic else _lost(made.rules)
        complaints, notes, doubts = (
            tuple(shorten(str(it), COMPLAINT_LIMIT) for it in sentences[:COMPLAINTS])
            for sentences in ((*lost, *made.complaints), made.notes, made.doubts)
        )
        offering = Offering(tuple(made.rules), complaints, notes, doubts)
    except Exception as exc:  # the vendor's own code: it must not end the agent
        wrong = f"{type(exc).__name__}: {exc}"
    if wrong:
        return Offering(last.rules, (f"its plugin fails to make resources: {shorten(wrong, 300)}",))
    return offering


def _made(resources: Resources, wanted: VendorRules, devices: tuple[Device, ...]) -> Offering:
    """The vendor's answer. Of rules that may name the same cards the vendor is asked for one at a time."""
    if not wanted.dynamic or len(wanted.rules) < 2:
        return resources(wanted.rules, devices)
    offerings = [resources((rule,), devices) for rule in wanted.rules]
    return Offering(
        tuple(rule for it in offerings for rule in it.rules),
        tuple(dict.fromkeys(one for it in offerings for one in it.complaints)),
        tuple(dict.fromkeys(one for it in offerings for one in it.notes)),
        tuple(dict.fromkeys(one for it in offerings for one in it.doubts)),
    )


def _lost(rules: Sequence[ResourceRule]) -> tuple[str, ...]:
    """A sentence for each resource that lacks cards because an earlier resource has them.

    Vendors make such rules for dynamic modes, and the config has switched these off.
    """
    owners: dict[str, str] = {}
    losers: dict[str, str] = {}
    for rule in rules:
        for uuid in rule.devices if isinstance(rule.devices, tuple) else ():
            owner = owners.setdefault(str(uuid), rule.name)
            if owner != rule.name:
                losers.setdefault(rule.name, owner)
    return tuple(
        f"{name} lacks cards that {owner} has, for modes are fixed: name the 'devices' of each in "
        "'resources', or leave 'modes' out"
        for name, owner in losers.items()
    )


def _twins(rules: Sequence[ResourceRule]) -> str:
    """A sentence about two rules that would make the same device ID; empty where there are none."""
    found = next(rules_with_equal_ids(rules), None)
    return f"{found[0].name} and {found[1].name} make the same IDs of one card" if found else ""


def _trouble(rule: ResourceRule, reserved: Sequence[Reserved]) -> str:
    """Why the plan cannot use the rule; empty where it can."""
    if wrong := unserved_name(rule.name, reserved):
        return wrong
    if not (isinstance(rule.devices, tuple) and all(isinstance(it, str) for it in rule.devices)):
        return f"{rule.name} has the devices {rule.devices!r}, a tuple of uuids is needed"
    sharing = rule.sharing
    if (
        not isinstance(sharing, Sharing)
        or type(sharing.replicas) is not int
        or not 0 < sharing.replicas <= MAX_REPLICAS
    ):
        return f"{rule.name} is shared as {sharing!r}, a Sharing with 1 to {MAX_REPLICAS} replicas is needed"
    if (sharing.kind == "memory") != (sharing.unit in get_args(Unit)):
        return f"{rule.name} is shared as {sharing!r}, kind 'memory' and a unit need each other"
    if rule.form not in get_args(IdForm) or rule.policy not in (None, *get_args(Policy)):
        return f"{rule.name} has the ids {rule.ids!r} and the policy {rule.policy!r}, one of them is unknown"
    return ""

"""The memory unit of each resource: the config's, or the last one while pods or list length forbid a change.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from msgspec import Struct, field, structs

from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.ids_in_use import ResourceUsage
from agent.core.devices.memory_units import AUTO, THOUSANDTHS, counted_in
from agent.core.devices.plan import plan
from agent.core.devices.resource_waits import pod_names
from agent.core.model import NodeSnapshot, Owner, Plan, Resource
from agent.vendor_api.agent import ResourceRule, Unit

#: Why the kubelet would not accept the resource's list for its length; empty where the list fits.
TooLong = Callable[[Resource], str]


class KeptUnit(Struct, frozen=True):
    """A resource that keeps another unit than the config wants. `why` is empty where pods hold such units."""

    resource: str
    unit: str
    wanted: str
    why: str = ""

    def sentence(self, owners: Sequence[Owner | None]) -> str:
        """The sentence for people; `owners` are the containers that hold units of the resource."""
        until = f"because {self.why}" if self.why else f"until these pods have ended: {pod_names(owners)}"
        return (
            f"{self.resource} counts memory in units of {self.unit} GiB, not of {self.wanted} as the config "
            f"wants, {until}"
        )


class UnitPlan(Struct, frozen=True):
    """Offers with a size as the unit of each rule, without `auto`.

    `kept`: resources that keep another unit than wanted. `chosen`: resource to the size chosen for `auto`.
    """

    offers: tuple[Offer, ...] = ()
    kept: tuple[KeptUnit, ...] = ()
    chosen: Mapping[str, str] = field(default_factory=dict)


def plan_units(
    offers: Sequence[Offer],
    snapshot: NodeSnapshot,
    usage: ResourceUsage,
    before: Plan,
    last: UnitPlan,
    too_long: TooLong,
) -> UnitPlan:
    """Decide the memory unit of each resource. A resource has one unit at a time: IDs do not name their unit.

    A unit that pods hold stays until the last of these pods has ended. A new unit is not used while its list
    is too long for the kubelet and the last unit still serves. A size once chosen for `auto` is kept.
    """
    choice = _UnitChoice(snapshot, usage, before, last.chosen, too_long)
    settled = [
        structs.replace(offer, rules=tuple(choice.settle(offer, rule) for rule in offer.rules))
        for offer in offers
    ]
    return UnitPlan(tuple(settled), tuple(choice.kept), choice.chosen)


class _UnitChoice:
    def __init__(
        self,
        snapshot: NodeSnapshot,
        usage: ResourceUsage,
        before: Plan,
        last: Mapping[str, str],
        too_long: TooLong,
    ) -> None:
        self._snapshot = snapshot
        self._usage = usage
        self._before = before
        self._last = last
        self._too_long = too_long
        self.kept: list[KeptUnit] = []
        self.chosen: dict[str, str] = {}

    def settle(self, offer: Offer, rule: ResourceRule) -> ResourceRule:
        """The rule with a size for its unit."""
        if not counted_in(rule.sharing):
            return rule
        held = list(dict.fromkeys(_held(self._usage, rule.name)))
        wanted, why = self._wanted(offer, rule, held), ""
        planned = self._before.get(rule.name)
        served = counted_in(planned.rule.sharing) if planned is not None else ""
        if held:  # where pods hold several units, the cards of the other units wait
            unit = next(it for it in (served, wanted, *held) if it in held)
        elif served not in ("", wanted) and (why := self._refusal(offer, rule, wanted)):
            unit = served
        else:
            unit = wanted
        if unit != wanted:
            self.kept.append(KeptUnit(rule.name, unit, wanted, why))
        return _of(rule, unit)

    def _wanted(self, offer: Offer, rule: ResourceRule, held: Sequence[str]) -> str:
        unit = counted_in(rule.sharing)
        if unit != AUTO:
            return unit
        choice = [*held, *filter(None, [self._last.get(rule.name)]), *reversed(THOUSANDTHS)]
        fitting = (it for it in choice if not self._refusal(offer, rule, it))
        self.chosen[rule.name] = next(fitting, choice[-1])
        return self.chosen[rule.name]

    def _refusal(self, offer: Offer, rule: ResourceRule, unit: str) -> str:
        """Why the resource cannot be listed in this unit on the cards that it gets."""
        rules = tuple(_of(it, unit) if it is rule else _of(it, "1") for it in offer.rules)
        planned = plan([structs.replace(offer, rules=rules)], self._snapshot).get(rule.name)
        return self._too_long(planned) if planned is not None else ""


def _held(usage: ResourceUsage, resource: str) -> Iterator[str]:
    """The memory units of the resource's IDs in use, oldest first on each card.

    A unit that this release does not know is left out, and the cards with such IDs wait.
    """
    return (it for units in usage.units.get(resource, {}).values() for it in units if it in THOUSANDTHS)


def _of(rule: ResourceRule, unit: str) -> ResourceRule:
    if not counted_in(rule.sharing):
        return rule
    return replace(rule, sharing=replace(rule.sharing, unit=cast("Unit", unit)))

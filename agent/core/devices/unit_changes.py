"""In which units resources count memory now: as the config says, or as before while that cannot be. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.ids_in_use import ResourceUsage
from agent.core.devices.memory_units import AUTO, THOUSANDTHS, counted_in
from agent.core.devices.plan import plan
from agent.core.devices.resource_waits import named
from agent.core.model import NodeSnapshot, Owner, Plan, Resource
from agent.vendor_api.agent import ResourceRule, Unit

#: Why a list of these IDs cannot be told; empty where it can.
TooLong = Callable[[Resource], str]


@dataclass(frozen=True, slots=True)
class KeptUnit:
    """A resource that counts in another unit than the config wants: pods hold such units, or `why`."""

    resource: str
    unit: str
    wanted: str
    why: str = ""

    def told(self, owners: Sequence[Owner | None]) -> str:
        """The sentence for people; `owners` are those who hold its units."""
        until = f"because {self.why}" if self.why else f"until these pods have ended: {named(owners)}"
        return (
            f"{self.resource} counts memory in units of {self.unit} GiB, not of {self.wanted} as the config "
            f"wants, {until}"
        )


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """Offers whose units are sizes, what is kept, and what was chosen where the config leaves the choice."""

    offers: tuple[Offer, ...] = ()
    kept: tuple[KeptUnit, ...] = ()
    chosen: Mapping[str, str] = field(default_factory=dict)


def counting(
    offers: Sequence[Offer],
    snapshot: NodeSnapshot,
    usage: ResourceUsage,
    before: Plan,
    last: UnitPlan,
    too_long: TooLong,
) -> UnitPlan:
    """What each resource counts in now. IDs do not say what they count, so a resource has one unit at a time.

    A unit that pods hold stays until the last of them has ended. One that makes a list which the kubelet does
    not take stays away as long as there is another that is served. What was chosen once is chosen again.
    """
    asking = _Asking(snapshot, usage, before, last.chosen, too_long)
    settled = [replace(it, rules=tuple(asking.settle(it, rule) for rule in it.rules)) for it in offers]
    return UnitPlan(tuple(settled), tuple(asking.kept), asking.chosen)


class _Asking:
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
        if held:  # of several the cards of the others wait
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
        planned = plan([replace(offer, rules=rules)], self._snapshot).get(rule.name)
        return self._too_long(planned) if planned is not None else ""


def _held(usage: ResourceUsage, resource: str) -> Iterator[str]:
    """The sizes that IDs in use of the resource stand for, oldest first on each card.

    One of another release is none that we can count in: its cards wait.
    """
    return (it for units in usage.units.get(resource, {}).values() for it in units if it in THOUSANDTHS)


def _of(rule: ResourceRule, unit: str) -> ResourceRule:
    if not counted_in(rule.sharing):
        return rule
    return replace(rule, sharing=replace(rule.sharing, unit=cast("Unit", unit)))

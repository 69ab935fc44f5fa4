"""Which resources the kubelet counts on Enflame's cards; several may have the same cards. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches

from agent.vendor_api.agent import (
    Device,
    Offering,
    Placement,
    ResourceRule,
    SettingsError,
    SettingsWarning,
    Sharing,
)
from agent.vendor_api.device_rules import chosen, taken_whole
from agent.vendors.enflame.shared import constants

from .names import ENFLAME
from .options import Options

#: How alike (of 1) two names are for one to count as a misspelling of the other.
NEAR = 0.9
#: The dialects in which pods can get slices of the hardware.
DRS_DIALECTS = ("gcushare-v4", "hami")
WITHOUT_A_LIBRARY = (
    "libefml.so is not here: the agent knows the cards from sysfs alone, and nothing watches them; mount the "
    "driver's library, or set 'library' to its path"
)
#: The complaint about a configured resource of slices where the hardware can slice no card.
UNSLICEABLE = (
    "{} has no card: efsmi is not installed, or no card is in mode Disable or DRS. Only cards in these modes "
    "can be sliced"
)
#: The doubt about a card with slices that the agent did not make: the card, their number.
FOREIGN = (
    "{} has slices that this agent did not make ({}): until these slices are gone no new pod gets the card, "
    "whole or shared; efsmi -i CARD -L lists them, efsmi -i CARD --drs --destroy-instance ID removes one"
)
#: The doubt about a card that can be sliced and has no known profile: the card, why, the resource.
PROFILELESS = (
    "{}: no profile of its slices is known: {}. Schedulers read the profiles of all cards on the Node, and "
    "place no pod that asks for {} on a Node without profiles. The agent reads the profiles of a card in "
    "mode DRS: run efsmi -i CARD --drs on for a minute while nothing uses the card"
)


def default_rule(options: Options, name: str) -> ResourceRule | None:
    """The rule of a resource that Enflame names; None for another name.

    A scheduler may choose the cards of each shared resource of its dialect. No scheduler chooses whole cards.
    """
    brand = options.brand
    placement: Placement = "local" if options.dialect == "none" else "auto"
    rules = (
        ResourceRule(brand.whole, policy="aligned", ids="minor"),
        ResourceRule(brand.memory, sharing=Sharing("memory", unit=options.memory_unit), ids="short"),
        ResourceRule(
            brand.shared, sharing=Sharing("replicas", options.slice_count, span_cards=False), ids="minor"
        ),
        ResourceRule(brand.drs, sharing=Sharing("replicas", constants.SLICES, span_cards=False), ids="uuid"),
    )
    rule = next((it for it in rules if it.name == name), None)
    if rule is None or rule.sharing.kind == "exclusive":
        return rule
    return replace(rule, policy="packed", placement=placement)


def without_choice(options: Options, count: int) -> str:
    """The sentence about what a container gets that asks for `count` shares, if no scheduler chose a card."""
    where = "of the card that they fill best"
    if options.dialect == "gcushare-v1":
        return f"gets {count} units {where}"
    return (
        f"gets {count} slices {where}; a slice that the hardware makes has {count} sixths of the card, and "
        "the pod is refused if the card cannot make such a slice"
    )


def offering(options: Options, rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Offering:
    """The resources with their devices by uuid, and a sentence for each thing that cannot be served.

    `rules` are those of the config. Without any the dialect decides which resources there are, each with all
    cards.
    """
    fit = list({it.uuid: it for it in devices}.values())
    complaints = _complaints(fit)
    made: list[ResourceRule] = []
    left = fit
    for rule in rules or _own(options, fit):
        able = [it for it in fit if _can_be(options, rule, it)]
        taken, wrong = chosen(rule, [it for it in left if it in able], able, "enflame")
        complaints += wrong if able else [UNSLICEABLE.format(rule.name)]
        left = [it for it in left if it not in taken] if rules else left
        made.append(_filled(options, replace(rule, devices=tuple(it.uuid for it in taken))))
    return Offering(tuple(made), tuple(complaints), doubts=tuple(_doubts(options, made, fit)))


def check_rules(options: Options, rules: Sequence[ResourceRule]) -> Sequence[SettingsWarning]:
    """Refuse rules that Enflame's resources cannot follow, and warn of rules that get no card.

    Raises:
        SettingsError: With the path from the list of rules.
    """
    for index, rule in enumerate(rules):
        own = default_rule(options, rule.name)
        if own is None:
            _check_name(options, rule, index)
            continue
        _check_dialect(options, rule, index)
        if rule.sharing.kind != own.sharing.kind:
            raise SettingsError(
                f"must be {own.sharing.kind} for {rule.name}, found '{rule.sharing.kind}': choose another "
                f"name for "
                "a resource that is counted in another way",
                (index, "sharing", "kind"),
            )
        if rule.name == options.brand.drs and rule.sharing.replicas != constants.SLICES:
            raise SettingsError(
                f"must be {constants.SLICES} for {rule.name}, found {rule.sharing.replicas}: the hardware "
                f"divides a card into {constants.SLICES}",
                (index, "sharing", "replicas"),
            )
        if own.placement == "auto" and rule.placement == "local":
            raise SettingsError(
                f"must be auto or claim in dialect {options.dialect}, found 'local': the scheduler "
                f"of this dialect always decides which card each container of {rule.name} gets",
                (index, "placement"),
            )
    return tuple(taken_whole(rules, takes=lambda it: it.name != options.brand.drs))


def _check_name(options: Options, rule: ResourceRule, index: int) -> None:
    """Refuse a misspelt name of shares: the resource of that name would count whole cards."""
    if rule.name in (options.brand.count, ENFLAME.count):
        raise SettingsError(
            f"{rule.name} is the name under which the Node counts cards; choose another name", (index, "name")
        )
    if rule.sharing.kind != "exclusive":
        return
    for brand in (options.brand, ENFLAME):
        near = get_close_matches(rule.name, (brand.memory, brand.shared, brand.drs), n=1, cutoff=NEAR)
        if near:
            known = (options.brand.memory, options.brand.shared, options.brand.drs)
            raise SettingsError(
                f"would be a resource of whole cards, found {rule.name!r}, which is close to {near[0]}; "
                f"write one of {', '.join(known)}, or set a sharing that is not exclusive",
                (index, "name"),
            )


def _check_dialect(options: Options, rule: ResourceRule, index: int) -> None:
    if rule.name == options.brand.drs and options.dialect not in DRS_DIALECTS:
        raise SettingsError(
            f"{rule.name} needs the dialect {' or '.join(DRS_DIALECTS)}, found {options.dialect!r}: "
            "in these dialects a scheduler decides the size of each slice; without a scheduler the "
            "number that the pod asks for decides",
            (index, "name"),
        )
    if rule.name == options.brand.memory and options.dialect == "hami":
        raise SettingsError(
            f"{rule.name} is not served in the dialect hami: HAMi counts MiB under this name, and GCUShare "
            "and this agent count units; set the dialect gcushare-v1 to serve units",
            (index, "name"),
        )


def _own(options: Options, cards: Sequence[Device]) -> list[ResourceRule]:
    """The rules of the dialect, where the config has none."""
    brand = options.brand
    names = [brand.whole]
    if options.dialect == "gcushare-v1":
        names.append(brand.memory)
    if options.dialect in DRS_DIALECTS:
        names.append(brand.shared)
        names += [brand.drs] if any(map(_is_sliceable, cards)) else []
    return [ResourceRule(name) for name in names]


def _can_be(options: Options, rule: ResourceRule, card: Device) -> bool:
    return rule.name != options.brand.drs or _is_sliceable(card)


def _is_sliceable(card: Device) -> bool:
    """Whether the hardware can slice the card, as efsmi says; without efsmi it cannot."""
    return card.attributes.get(constants.VIRTUAL) in (constants.DISABLED, constants.DRS)


def _filled(options: Options, rule: ResourceRule) -> ResourceRule:
    """The rule with defaults of its name for values that are not set. `check_rules` checked the others."""
    own = default_rule(options, rule.name)
    if own is None:
        return rule
    sharing = replace(rule.sharing, span_cards=own.sharing.span_cards)
    return replace(
        rule,
        sharing=own.sharing if rule.sharing.kind == "exclusive" else sharing,
        policy=rule.policy or own.policy,
        placement=own.placement if rule.placement == "local" else rule.placement,
        ids=rule.ids or own.ids,
    )


def _doubts(options: Options, rules: Sequence[ResourceRule], cards: Sequence[Device]) -> Iterator[str]:
    """A sentence for each problem of a card that a person can solve: foreign slices, unknown profiles."""
    drs = options.brand.drs
    listed = [it.devices for it in rules if it.name == drs and isinstance(it.devices, tuple)]
    sliced = {uuid for uuids in listed for uuid in uuids}
    for card in cards:
        if count := card.attributes.get(constants.FOREIGN_SLICES):
            yield FOREIGN.format(card.uuid, count)
        if card.uuid in sliced and constants.PROFILES not in card.attributes:
            product = card.attributes.get(constants.PRODUCT)
            yield PROFILELESS.format(
                card.uuid,
                f"no card has shown those of {product}" if product else "the card reports no SKU",
                drs,
            )


def _complaints(cards: Sequence[Device]) -> list[str]:
    blind = any(it.fault is not None and it.fault.reason == constants.NO_LIBRARY for it in cards)
    return [WITHOUT_A_LIBRARY] if blind else []

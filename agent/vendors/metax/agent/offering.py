"""Which resources the kubelet counts on MetaX's cards, by the mode of the node. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agent.vendor_api.agent import (
    Device,
    Offering,
    ResourceRule,
    SettingsError,
    SettingsWarning,
    Sharing,
    State,
)
from agent.vendor_api.device_rules import chosen, taken_whole
from agent.vendors.metax.agent.names import GPU, SGPU
from agent.vendors.metax.shared import constants
from agent.vendors.metax.shared.slice_request import MAX_SLICES

from .options import Options


def offering(options: Options, rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Offering:
    """The mode's resource with its devices by uuid, and a sentence for each thing that cannot be served.

    `rules` are those of the config: they rename and choose cards. A rule without replicas is shared as the
    mode requires, and in mode sgpu schedulers choose the cards.
    """
    fit, complaints = _fit(options.mode, devices)
    if not rules:
        rules = (ResourceRule(SGPU if options.mode == constants.SGPU else GPU),)
    made: list[ResourceRule] = []
    left = list(fit)
    for rule in rules:
        taken, wrong = chosen(rule, left, fit, "metax")
        complaints += wrong
        left = [it for it in left if it not in taken]
        made.append(_filled(options, replace(rule, devices=tuple(it.uuid for it in taken))))
    return Offering(tuple(made), tuple(complaints))


def check_rules(options: Options, rules: Sequence[ResourceRule]) -> Sequence[SettingsWarning]:
    """Refuse rules that the mode cannot follow, and warn of rules that get no card.

    Raises:
        SettingsError: With the path from the list of rules.
    """
    sliced, shared = options.mode == constants.SGPU, sharing(options).kind == "replicas"
    for index, rule in enumerate(rules):
        if rule.sharing.kind == "memory":
            raise SettingsError(
                "MetaX's cards have no units of memory, found 'memory'; set mode sgpu, which gives out parts "
                "of a "
                "card's memory that the hardware isolates",
                (index, "sharing", "kind"),
            )
        if shared and rule.sharing.kind == "exclusive":
            raise SettingsError(
                f"must be replicas in mode {options.mode}, found 'exclusive': set mode native for whole "
                "cards",
                (index, "sharing", "kind"),
            )
        if sliced and rule.placement == "local":
            raise SettingsError(
                "must be auto or claim in mode sgpu, found 'local': a scheduler decides the size of each "
                "slice; "
                "without a scheduler the setting 'unclaimed' decides",
                (index, "placement"),
            )
        if sliced and rule.sharing.replicas > MAX_SLICES:
            raise SettingsError(
                f"must be {MAX_SLICES} or fewer in mode sgpu, found {rule.sharing.replicas}: "
                f"a card has {MAX_SLICES} slices at most",
                (index, "sharing", "replicas"),
            )
    return tuple(taken_whole(rules))


def _filled(options: Options, rule: ResourceRule) -> ResourceRule:
    shared = rule.sharing if rule.sharing.kind == "replicas" else sharing(options)
    chosen_by_scheduler = options.mode == constants.SGPU and rule.placement == "local"
    return replace(
        rule,
        sharing=shared,
        policy=rule.policy or ("aligned" if shared.kind == "exclusive" else None),
        placement="auto" if chosen_by_scheduler else rule.placement,
    )


def sharing(options: Options) -> Sharing:
    """How many device IDs a card has in the mode."""
    if options.mode == constants.SGPU:
        return Sharing("replicas", MAX_SLICES)
    return Sharing("replicas", options.share_nums) if options.mode == constants.SHARED else Sharing()


def _fit(mode: str, devices: Sequence[Device]) -> tuple[list[Device], list[str]]:
    """The devices that the mode serves, and a sentence for each reason why it serves no others."""
    distinct = list({it.uuid: it for it in devices}.values())
    if mode == constants.VGPU:
        functions = [it for it in distinct if it.attributes.get(constants.VIRTUALISATION) == constants.VF]
        none = "mode is vgpu, and no card has virtual functions: create them with mx-smi vm --enable-vf"
        return functions, [none] if distinct and not functions else []
    cards = [it for it in distinct if it.parent is None]
    split = [it for it in cards if constants.VIRTUAL_FUNCTIONS in it.attributes]
    complaints = [
        f"{card.uuid} is split into {card.attributes[constants.VIRTUAL_FUNCTIONS]} virtual functions; mode "
        f"{mode} does not give these out: set mode vgpu, or remove the virtual functions"
        for card in split
    ]
    whole = [it for it in cards if it not in split]
    if any(it.fault is not None and it.fault.reason == constants.NO_LIBRARY for it in whole):
        complaints.append(
            "libmxsml.so is not here: the agent knows the cards from sysfs alone, by their addresses, and "
            "nothing watches them; mount the driver's library, or set 'library' to its path"
        )
    return whole, [*complaints, *(_unsliceable(whole) if mode == constants.SGPU else ())]


def _unsliceable(cards: Sequence[Device]) -> Iterator[str]:
    """A sentence for each reason why no slices can be made. Cards stay offered, as the reason may end."""
    if any(it.attributes.get(constants.SYSFS) == constants.READ_ONLY for it in cards):
        yield "mode is sgpu, and sysfs is read-only: give the agent's container a writable /sys"
    for card in cards:
        capable = card.attributes.get(constants.SGPU_CAPABLE)
        sick = card.fault is not None and card.fault.state is State.UNHEALTHY
        if capable == constants.NO or (capable is None and not sick):
            yield f"{card.uuid} cannot be sliced: library or driver does not support sGPU; set mode native"

"""Which devices a rule of the user's names, for vendors that say themselves which can be served. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from agent.vendor_api.agent import Device, ResourceRule, SettingsWarning
from agent.vendor_api.text import shorten


def chosen(
    rule: ResourceRule, left: Sequence[Device], fit: Sequence[Device], vendor: str
) -> tuple[list[Device], list[str]]:
    """The devices of the rule among those left of the ones that fit, and a sentence for what is not there."""
    if rule.devices == "all":
        return list(left), [all_taken(rule, "another resource")] if fit and not left else []
    if isinstance(rule.devices, int):
        few = f"{rule.name} asks for {rule.devices} devices, {vendor} has {len(left)} for it"
        return list(left[: rule.devices]), [few] if len(left) < rule.devices else []
    known = {name: it for it in left for name in (str(it.index), it.uuid)}
    names = list(map(str, rule.devices))
    missing = [it for it in names if it not in known]
    found = {known[it].uuid: known[it] for it in names if it in known}
    return list(found.values()), [
        f"{rule.name} names {shorten(it)}, which {vendor} does not offer, or another resource has"
        for it in missing
    ]


def all_taken(rule: ResourceRule, owners: str) -> str:
    """That nothing is left for a rule that asks for all devices."""
    return f"{shorten(rule.name)} asks for all devices, {owners} has them already; set 'devices'"


def taken_whole(
    rules: Sequence[ResourceRule],
    pool: Callable[[ResourceRule], str | None] = lambda _: "",
    takes: Callable[[ResourceRule], bool] = lambda _: True,
) -> Iterator[SettingsWarning]:
    """The rules for which an earlier one leaves no device, however many a node has.

    `pool`: of which devices the rule means some; None where that depends on the node. `takes`: whether `all`
    of the rule is all that its pool has.
    """
    takers: dict[str, str] = {}
    for index, rule in enumerate(rules):
        its = pool(rule)
        if its is None:
            continue
        if its in takers:
            owner = shorten(takers[its])
            few = f"{shorten(rule.name)} asks for devices, {owner} has all of them already; set its 'devices'"
            yield SettingsWarning(
                all_taken(rule, owner) if rule.devices == "all" else few, (index, "devices")
            )
        elif rule.devices == "all" and takes(rule):
            takers[its] = rule.name

"""Which devices a rule of the config names, for vendors that decide which devices can be served. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from agent.vendor_api.agent import Device, ResourceRule, SettingsWarning
from agent.vendor_api.text import shorten


def chosen(
    rule: ResourceRule, left: Sequence[Device], fit: Sequence[Device], vendor: str
) -> tuple[list[Device], list[str]]:
    """The devices of the rule among `left`, and a sentence for each device that is not there.

    `fit`: the devices that this resource could have. `left`: those of them that no earlier rule took.
    """
    if rule.devices == "all":
        return list(left), [all_taken(rule, "another resource")] if fit and not left else []
    if isinstance(rule.devices, int):
        few = f"{rule.name} asks for {rule.devices} devices, {vendor} has {len(left)} for it"
        return list(left[: rule.devices]), [few] if len(left) < rule.devices else []
    known = {name: device for device in left for name in (str(device.index), device.uuid)}
    names = list(map(str, rule.devices))
    missing = [it for it in names if it not in known]
    found = {known[it].uuid: known[it] for it in names if it in known}
    return list(found.values()), [
        f"{rule.name} names {shorten(name)}, which {vendor} does not offer, or another resource has"
        for name in missing
    ]


def all_taken(rule: ResourceRule, owners: str) -> str:
    """The sentence for a rule that asks for all devices and gets none, because `owners` have them."""
    return f"{shorten(rule.name)} asks for all devices, {owners} has them already; set 'devices'"


def taken_whole(
    rules: Sequence[ResourceRule],
    pool: Callable[[ResourceRule], str | None] = lambda _: "",
    takes: Callable[[ResourceRule], bool] = lambda _: True,
) -> Iterator[SettingsWarning]:
    """A warning for each rule that gets no device on any node, because an earlier rule takes all of them.

    `pool`: the name of the devices from which the rule takes; None where that depends on the node. `takes`:
    whether a rule with `devices: all` takes all devices of its pool.
    """
    takers: dict[str, str] = {}
    for index, rule in enumerate(rules):
        wanted = pool(rule)
        if wanted is None:
            continue
        if wanted in takers:
            owner = shorten(takers[wanted])
            few = f"{shorten(rule.name)} asks for devices, {owner} has all of them already; set its 'devices'"
            yield SettingsWarning(
                all_taken(rule, owner) if rule.devices == "all" else few, (index, "devices")
            )
        elif rule.devices == "all" and takes(rule):
            takers[wanted] = rule.name

"""Which devices a rule of the user's names, for vendors that say themselves which can be served. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agent.core.text import shorten
from agent.core.vendor import Device, ResourceRule


def chosen(
    rule: ResourceRule, left: Sequence[Device], fit: Sequence[Device], vendor: str
) -> tuple[list[Device], list[str]]:
    """The devices of the rule among those left of the ones that fit, and a sentence for what is not there."""
    if rule.devices == "all":
        taken = f"{rule.name} asks for all devices, others have them already; set 'devices'"
        return list(left), [taken] if fit and not left else []
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

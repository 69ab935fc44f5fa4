"""The dialects of HAMi: its own annotations, and MetaX's annotation, which koord-scheduler writes too.

Source: Project-HAMi/HAMi pkg/device/devices.go and pkg/device/{nvidia/device,metax/protocol,metax/sdevice}.go
(4707fb02), koordinator pkg/scheduler/plugins/deviceshare/device_plugin_adapter.go (a7a1b76b).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from agent.scheduler_api import DEFAULT_SCHEDULER, Candidate, Cards, Claim, Dialect, PodContainer
from agent.schedulers.common.grants import MAX_GRANTS, MAX_MEMORY, CardGrant, measured
from agent.schedulers.common.pod_request import asks_koordinator, believed, requested, shared_out, split
from agent.schedulers.common.resource_names import PREFIX
from agent.schedulers.common.shares import claim
from agent.vendor_api.text import shorten

#: JSON: HAMi writes a list for each container, init containers first; Koordinator one for the whole pod.
METAX_ALLOCATED = "metax-tech.com/gpu-devices-allocated"
#: `uuid,type,MiB,percent:` for each device, `;` after each container. The first key that fits counts.
HAMI_KEYS = (
    re.compile(r"hami\.io/[a-z0-9-]+-devices-to-allocate"),
    re.compile(r"hami\.io/[a-z0-9-]+-devices-allocated"),
)
_NUMBER = re.compile(r"[0-9]{1,19}")
#: Most devices and containers that an annotation may name.
MAX_PARTS = 1024


class _Names(NamedTuple):
    """HAMi's resource names of the amount of each card, as its chart has them.

    Percent of the cores; memory in units of `unit` bytes; memory in percent, used without a memory amount.
    """

    core: str
    memory: str
    unit: int
    ratio: str = ""
    #: Whether an annotation without cores means the cores that the pod asks for. For MetaX it means none:
    #: HAMi counts no cores for an online pod (pkg/device/metax/sdevice.go, Fit).
    unsaid: bool = True


#: Domain of the cards' resource to HAMi's names.
_NAMES = {
    "nvidia.com": _Names("nvidia.com/gpucores", "nvidia.com/gpumem", 1 << 20, "nvidia.com/gpumem-percentage"),
    "metax-tech.com": _Names("metax-tech.com/vcore", "metax-tech.com/vmemory", 1 << 30, unsaid=False),
}
#: A larger number is in bytes, because HAMi takes no such number of units.
_BYTES = {"metax-tech.com": 1 << 21}
#: The grants of each container.
ContainerGrants = list[tuple[PodContainer, Sequence[CardGrant]]]


def metax(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """The claims of MetaX's annotation; raises ValueError where it makes no sense."""
    text = pod.annotations.get(METAX_ALLOCATED)
    if text is None:
        return ()
    try:
        document: Any = json.loads(text)
    except RecursionError as exc:
        raise ValueError(f"{METAX_ALLOCATED} is too deep to be read") from exc
    except ValueError as exc:
        raise ValueError(f"{METAX_ALLOCATED} is no JSON: {exc}") from exc
    if not isinstance(document, list) or not all(isinstance(part, list) for part in document):
        raise ValueError(f"{METAX_ALLOCATED} is no list of lists")
    lists = [[_metax_part(card) for card in part] for part in document]
    grants_of = (
        _flat(pod, resource, lists[0])
        if len(lists) == 1
        else _by_container(pod, resource, lists, METAX_ALLOCATED)
    )
    return _claims(pod, resource, cards, grants_of, METAX_ALLOCATED)


def hami(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """The claims of HAMi's annotations; raises ValueError where they make no sense."""
    for pattern in HAMI_KEYS:
        for key in sorted(filter(pattern.fullmatch, pod.annotations)):
            text = pod.annotations[key]
            if text.count(":") + text.count(";") > MAX_PARTS:
                raise ValueError(f"{key} names more than {MAX_PARTS} devices and containers")
            grants_of = [_hami_parts(it, key) for it in text.removesuffix(";").split(";")]
            if any(grant.uuid in cards for grants in grants_of for grant in grants):
                return _claims(pod, resource, cards, _by_container(pod, resource, grants_of, key), key)
    return ()


def _metax_part(card: Any) -> CardGrant:
    if not isinstance(card, dict):
        raise ValueError(f"{METAX_ALLOCATED}: a card is no JSON object")
    uuid, core, memory = card.get("uuid"), card.get("compute", 0), card.get("vRam", 0)
    if not isinstance(uuid, str) or type(core) is not int or type(memory) is not int:
        raise ValueError(f"{METAX_ALLOCATED}: a card has no uuid, or no numbers")
    return _part(uuid, core, memory, METAX_ALLOCATED)


def _hami_parts(text: str, key: str) -> list[CardGrant]:
    found = []
    for device in filter(None, text.split(":")):
        words = device.split(",")
        if len(words) != 4 or not (_NUMBER.fullmatch(words[2]) and _NUMBER.fullmatch(words[3])):
            raise ValueError(f"{key}: {shorten(device, 60)} is no uuid,type,MiB,percent")
        found.append(_part(words[0], int(words[3]), int(words[2]), key))
    return found


def _part(uuid: str, core: int, memory: int, key: str) -> CardGrant:
    """The grant of percent of the cores and of MiB; 0 stands for an amount that is not named."""
    if not (0 <= core <= 100 and 0 <= memory <= MAX_MEMORY >> 20):
        raise ValueError(f"{key}: {core} % and {memory} MiB are no part of a card")
    return CardGrant(0, uuid, core or None, memory << 20 or None)


def _flat(pod: Candidate, resource: str, grants: Sequence[CardGrant]) -> ContainerGrants:
    """The grants of a whole pod, shared out to its containers in order."""
    if not grants:
        return []
    if asks_koordinator(pod):
        return [*shared_out(pod, grants, METAX_ALLOCATED)]
    parts, most = split(pod, lambda it: it.limits.get(resource, 0))
    if most != len(grants):
        raise ValueError(f"{METAX_ALLOCATED} names {len(grants)} cards, its containers ask for {most}")
    return [(it, _held(it, resource, grants[part], METAX_ALLOCATED)) for it, part in parts]


def _by_container(
    pod: Candidate, resource: str, grants_of: Sequence[Sequence[CardGrant]], key: str
) -> ContainerGrants:
    """The grants of each container. Older schedulers left init containers out."""
    for containers in (pod.containers, [it for it in pod.containers if not it.init]):
        if len(containers) == len(grants_of):
            pairs = zip(containers, grants_of, strict=True)
            return [(container, _held(container, resource, grants, key)) for container, grants in pairs]
    raise ValueError(f"{key} speaks of {len(grants_of)} containers, the pod has {len(pod.containers)}")


def _held(
    container: PodContainer, resource: str, grants: Sequence[CardGrant], key: str
) -> Sequence[CardGrant]:
    """The grants, no larger than the container's request by Koordinator's names or else by HAMi's."""
    if not grants:
        return grants
    if _uses_koordinators_names(container):
        return believed(requested(container.limits), grants, key)
    own = asked_of_each(resource, container.limits)
    names = _NAMES.get(_domain(resource, container.limits))
    unnamed = own.core if names is None or names.unsaid else None
    cores = f"{own.core} % of the cores"
    return [
        replace(
            grant,
            core=_least(grant.core, own.core, cores, key) if grant.core else unnamed,
            memory=_least(grant.memory, own.memory, f"{(own.memory or 0) >> 20} MiB", key),
            ratio=own.ratio,
        )
        for grant in grants
    ]


def _uses_koordinators_names(container: PodContainer) -> bool:
    return any(name.startswith(PREFIX) for name in container.limits)


def asked_of_each(resource: str, limits: Mapping[str, int]) -> CardGrant:
    """The amount of each card by HAMi's own names; None for names that are not used.

    A percentage of memory stands beside the bytes that the scheduler made of it; the smaller one is enforced.
    """
    domain = _domain(resource, limits)
    names = _NAMES.get(domain)
    if names is None:
        return CardGrant(0)
    core, memory, ratio = (limits.get(name) for name in (names.core, names.memory, names.ratio))
    unit = 1 if (memory or 0) >= _BYTES.get(domain, 1 << 63) else names.unit
    percent = None if memory or not ratio else min(ratio, 100)
    return CardGrant(0, "", min(core, 100) if core else None, memory * unit if memory else None, percent)


def _domain(resource: str, limits: Mapping[str, int]) -> str:
    """The domain of the names in use: the resource's own; for a renamed resource that of another limit."""
    own = resource.partition("/")[0]
    others = (name.partition("/")[0] for name in limits if name != resource)
    return own if own in _NAMES else next((it for it in others if it in _NAMES), "")


def _least(granted: int | None, wanted: int | None, words: str, key: str) -> int | None:
    """The granted amount; without one the requested amount.

    Raises:
        ValueError: The grant is larger than the request.
    """
    if granted is not None and wanted is not None and granted > wanted:
        raise ValueError(f"{key} gives more of a card than its container asks for: {words}")
    return wanted if granted is None else granted


def _claims(pod: Candidate, resource: str, cards: Cards, grants_of: ContainerGrants, key: str) -> list[Claim]:
    granted = [(it, grants) for it, grants in grants_of if grants and resource in it.limits]
    if granted and pod.scheduler == DEFAULT_SCHEDULER:
        raise ValueError(f"{key} is not believed of a pod of {DEFAULT_SCHEDULER}")
    found = []
    for container, grants in granted:
        _check(grants, cards, key)
        made = claim(pod, container, grants)
        # By HAMi's names a count of cards alone asks for no whole card, so the remark would be wrong.
        found.append(made if _uses_koordinators_names(container) else replace(made, remark=""))
    return found


def _check(grants: Sequence[CardGrant], cards: Cards, key: str) -> None:
    uuids = [it.uuid for it in grants]
    strange = [uuid for uuid in uuids if uuid not in cards]
    if strange:
        raise ValueError(f"{key} names {shorten(strange[0], 80)}, which is not here")
    if len(uuids) > MAX_GRANTS or len(set(uuids)) < len(uuids):
        raise ValueError(f"{key} names a card twice, or more than {MAX_GRANTS}")


METAX = Dialect("metax", metax, measure=measured)
HAMI = Dialect("hami", hami, measure=measured)

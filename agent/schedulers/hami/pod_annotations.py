"""How HAMi's scheduler hands over its choice: in its own words, and in MetaX's, which Koordinator writes too.

Source: Project-HAMi/HAMi pkg/device/devices.go and pkg/device/{nvidia/device,metax/protocol,metax/sdevice}.go
(4707fb02), koordinator pkg/scheduler/plugins/deviceshare/device_plugin_adapter.go (a7a1b76b).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.scheduler_api import DEFAULT_SCHEDULER, Candidate, Cards, Claim, Dialect, PodContainer
from agent.schedulers.common.grants import MAX_GRANTS, MAX_MEMORY, CardGrant, measured
from agent.schedulers.common.pod_request import asks_koordinator, believed, shared_out, split, wish
from agent.schedulers.common.resource_names import PREFIX
from agent.schedulers.common.shares import claim
from agent.vendor_api.text import shorten

#: JSON: of HAMi a list for each container, init containers first; of Koordinator one for the whole pod.
METAX_ALLOCATED = "metax-tech.com/gpu-devices-allocated"
#: Unix time: nanoseconds; seconds.
#: `uuid,type,MiB,percent:` for each device, `;` after each container; what is to be allocated counts first.
HAMI_KEYS = (
    re.compile(r"hami\.io/[a-z0-9-]+-devices-to-allocate"),
    re.compile(r"hami\.io/[a-z0-9-]+-devices-allocated"),
)
_NUMBER = re.compile(r"[0-9]{1,19}")
#: Devices and containers that an annotation may name; HAMi gives out some for each container.
MAX_PARTS = 1024


@dataclass(frozen=True, slots=True)
class _Names:
    """Of what a container asks of each card beside their count, as HAMi's chart has them.

    Percent of the cores; memory in units of so many bytes; memory in percent, which counts where no other is.
    """

    core: str
    memory: str
    unit: int
    ratio: str = ""
    #: Whether cores that the annotation does not name are as many as are asked for. Of MetaX's none are: HAMi
    #: counts none for a pod that is online (pkg/device/metax/sdevice.go, Fit).
    unsaid: bool = True


#: Domain of the cards' resource to what else is asked of them.
_NAMES = {
    "nvidia.com": _Names("nvidia.com/gpucores", "nvidia.com/gpumem", 1 << 20, "nvidia.com/gpumem-percentage"),
    "metax-tech.com": _Names("metax-tech.com/vcore", "metax-tech.com/vmemory", 1 << 30, unsaid=False),
}
#: From here on it was written in bytes: HAMi takes no larger number of units.
_BYTES = {"metax-tech.com": 1 << 21}
#: What a container gets, as the scheduler gave it.
Given = list[tuple[PodContainer, Sequence[CardGrant]]]


def metax(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """The claims that MetaX's annotation makes; raises ValueError where it makes no sense."""
    text = pod.annotations.get(METAX_ALLOCATED)
    if text is None:
        return ()
    try:
        said: Any = json.loads(text)
    except RecursionError as exc:
        raise ValueError(f"{METAX_ALLOCATED} is too deep to be read") from exc
    except ValueError as exc:
        raise ValueError(f"{METAX_ALLOCATED} is no JSON: {exc}") from exc
    if not isinstance(said, list) or not all(isinstance(its, list) for its in said):
        raise ValueError(f"{METAX_ALLOCATED} is no list of lists")
    lists = [[_metax_part(it) for it in its] for its in said]
    given = (
        _flat(pod, resource, lists[0])
        if len(lists) == 1
        else _by_container(pod, resource, lists, METAX_ALLOCATED)
    )
    return _claims(pod, resource, cards, given, METAX_ALLOCATED)


def hami(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """The claims that HAMi's annotations make; raises ValueError where they make no sense."""
    for pattern in HAMI_KEYS:
        for key in sorted(filter(pattern.fullmatch, pod.annotations)):
            text = pod.annotations[key]
            if text.count(":") + text.count(";") > MAX_PARTS:
                raise ValueError(f"{key} names more than {MAX_PARTS} devices and containers")
            given = [_hami_parts(it, key) for it in text.removesuffix(";").split(";")]
            if any(it.uuid in cards for its in given for it in its):
                return _claims(pod, resource, cards, _by_container(pod, resource, given, key), key)
    return ()


def _metax_part(said: Any) -> CardGrant:
    if not isinstance(said, dict):
        raise ValueError(f"{METAX_ALLOCATED}: a card is no JSON object")
    uuid, core, memory = said.get("uuid"), said.get("compute", 0), said.get("vRam", 0)
    if not isinstance(uuid, str) or type(core) is not int or type(memory) is not int:
        raise ValueError(f"{METAX_ALLOCATED}: a card has no uuid, or no numbers")
    return _part(uuid, core, memory, METAX_ALLOCATED)


def _hami_parts(text: str, key: str) -> list[CardGrant]:
    found = []
    for it in filter(None, text.split(":")):
        words = it.split(",")
        if len(words) != 4 or not (_NUMBER.fullmatch(words[2]) and _NUMBER.fullmatch(words[3])):
            raise ValueError(f"{key}: {shorten(it, 60)} is no uuid,type,MiB,percent")
        found.append(_part(words[0], int(words[3]), int(words[2]), key))
    return found


def _part(uuid: str, core: int, memory: int, key: str) -> CardGrant:
    """Percent of the cores, and MiB; 0 says nothing."""
    if not (0 <= core <= 100 and 0 <= memory <= MAX_MEMORY >> 20):
        raise ValueError(f"{key}: {core} % and {memory} MiB are no part of a card")
    return CardGrant(0, uuid, core or None, memory << 20 or None)


def _flat(pod: Candidate, resource: str, grants: Sequence[CardGrant]) -> Given:
    """The cards of a pod over its containers, in order."""
    if not grants:
        return []
    if asks_koordinator(pod):
        return [*shared_out(pod, grants, METAX_ALLOCATED)]
    parts, most = split(pod, lambda it: it.limits.get(resource, 0))
    if most != len(grants):
        raise ValueError(f"{METAX_ALLOCATED} names {len(grants)} cards, its containers ask for {most}")
    return [(it, _held(it, resource, grants[part], METAX_ALLOCATED)) for it, part in parts]


def _by_container(pod: Candidate, resource: str, given: Sequence[Sequence[CardGrant]], key: str) -> Given:
    """The cards as the scheduler gave them to each container; older ones left init containers out."""
    for its in (pod.containers, [it for it in pod.containers if not it.init]):
        if len(its) == len(given):
            return [(it, _held(it, resource, grants, key)) for it, grants in zip(its, given, strict=True)]
    raise ValueError(f"{key} speaks of {len(given)} containers, the pod has {len(pod.containers)}")


def _held(it: PodContainer, resource: str, grants: Sequence[CardGrant], key: str) -> Sequence[CardGrant]:
    """No more than the container asks for, in Koordinator's words or else in HAMi's."""
    if not grants:
        return grants
    if _in_koordinators_words(it):
        return believed(wish(it.limits), grants, key)
    own = asked_of_each(resource, it.limits)
    names = _NAMES.get(_domain(resource, it.limits))
    unsaid = own.core if names is None or names.unsaid else None
    cores = f"{own.core} % of the cores"
    return [
        replace(
            grant,
            core=_least(grant.core, own.core, cores, key) if grant.core else unsaid,
            memory=_least(grant.memory, own.memory, f"{(own.memory or 0) >> 20} MiB", key),
            ratio=own.ratio,
        )
        for grant in grants
    ]


def _in_koordinators_words(it: PodContainer) -> bool:
    return any(name.startswith(PREFIX) for name in it.limits)


def asked_of_each(resource: str, limits: Mapping[str, int]) -> CardGrant:
    """What is asked of each card in HAMi's own words; nothing of it where they are not used.

    A percentage of memory goes with the bytes that the scheduler made of it: whoever holds a container to its
    share takes the smaller one.
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
    """In whose names it is asked: the resource's own; of one that was renamed those that are there."""
    its = resource.partition("/")[0]
    said = (name.partition("/")[0] for name in limits if name != resource)
    return its if its in _NAMES else next((it for it in said if it in _NAMES), "")


def _least(given: int | None, asked: int | None, words: str, key: str) -> int | None:
    """Nothing that is given is all that is asked for.

    Raises:
        ValueError: More is given than was asked for.
    """
    if given is not None and asked is not None and given > asked:
        raise ValueError(f"{key} gives more of a card than its container asks for: {words}")
    return asked if given is None else given


def _claims(pod: Candidate, resource: str, cards: Cards, given: Given, key: str) -> list[Claim]:
    its = [(it, grants) for it, grants in given if grants and resource in it.limits]
    if its and pod.scheduler == DEFAULT_SCHEDULER:
        raise ValueError(f"{key} is not believed of a pod of {DEFAULT_SCHEDULER}")
    for _, grants in its:
        _check(grants, cards, key)
    found = [(it, claim(pod, it, grants)) for it, grants in its]
    # In HAMi's words a count of cards alone asks for none of them whole.
    return [one if _in_koordinators_words(it) else replace(one, remark="") for it, one in found]


def _check(grants: Sequence[CardGrant], cards: Cards, key: str) -> None:
    uuids = [it.uuid for it in grants]
    strange = [uuid for uuid in uuids if uuid not in cards]
    if strange:
        raise ValueError(f"{key} names {shorten(strange[0], 80)}, which is not here")
    if len(uuids) > MAX_GRANTS or len(set(uuids)) < len(uuids):
        raise ValueError(f"{key} names a card twice, or more than {MAX_GRANTS}")


METAX = Dialect("metax", metax, measure=measured)
HAMI = Dialect("hami", hami, measure=measured)

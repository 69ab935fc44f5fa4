"""How koord-scheduler and HAMi hand over cards of MetaX, with the policy that the pod names; and what a pod
asks for itself, where neither did. Pure.

Source: koordinator pkg/scheduler/plugins/deviceshare/device_plugin_adapter.go (a7a1b76b), HAMi
pkg/device/metax/sdevice.go (4707fb02).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from agent.scheduler_api import Candidate, Cards, Claim, Dialect, PodContainer, Scheduler
from agent.schedulers.common.grants import CardGrant, share
from agent.schedulers.common.pod_request import PodRequest, wish
from agent.schedulers.common.resource_names import PREFIX, SHARED
from agent.schedulers.hami.pod_annotations import HAMI, METAX, METAX_ALLOCATED, asked_of_each
from agent.vendor_api.text import shorten

#: Annotations of pods: the policy of their slices, and whether others are to be suspended for them.
POLICY, APP_CLASS = "metax-tech.com/sgpu-qos-policy", "metax-tech.com/sgpu-app-class"
#: The policy of a pod that names none.
BEST_EFFORT = "best-effort"
ONLINE = "online"
#: Parameters of the claims beside core, memory and ratio, for the vendor that makes the slices: a policy,
#: that any policy will do, and why what is said cannot be done.
QOS, ANY_QOS, REFUSED = "qos", "any-qos", "refused"
CORE, MEMORY = "core", "memory"
WHOLE = 100  # percent
MIB = 1 << 20
_MAX_POLICY = 64
_ALL = {CORE: str(WHOLE)}
_NOT_SUSPENDED = f"{APP_CLASS} is {ONLINE}, and no pod that is offline is suspended for it by this agent"


@dataclass(frozen=True, slots=True)
class _Other:
    """koord-scheduler's own dialect, and the annotation in which it is written."""

    dialect: Dialect
    annotation: str


def metax_sgpu(terms: Mapping[str, str], schedulers: Sequence[Scheduler]) -> Dialect:
    """The dialect `metax-sgpu`, beside what koord-scheduler says in its own words where that is heard."""
    its = (_Other(it.dialects[0], it.writes) for it in schedulers if it.name == "koordinator" and it.dialects)
    return Dialect("metax-sgpu", partial(claims, next(its, None)))


def metax_limits(terms: Mapping[str, str], schedulers: Sequence[Scheduler]) -> Dialect:
    """The dialect `metax-limits`."""
    return Dialect("metax-limits", limits)


def claims(other: _Other | None, pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """The claims of the pod's containers, with the policy of their slices.

    koord-scheduler writes two annotations. Where they say two things the claim says so, and is refused.

    Raises:
        ValueError: No annotation makes sense.
    """
    wrong: list[str] = []
    koordinators = _heard(other.dialect, pod, resource, cards, wrong) if other else ()
    metaxs = _heard(METAX, pod, resource, cards, wrong)
    found = koordinators or metaxs
    if wrong and not found:
        raise ValueError("; ".join(wrong))
    both = other is not None and {other.annotation, METAX_ALLOCATED} <= pod.annotations.keys()
    if other and both and not wrong and not _agree(koordinators, metaxs):
        wrong.append(f"{other.annotation} and {METAX_ALLOCATED} of the pod promise different things")
    return [_meant(pod, it, "; ".join(wrong)) for it in found or HAMI.claims(pod, resource, cards)]


def _heard(
    dialect: Dialect, pod: Candidate, resource: str, cards: Cards, wrong: list[str]
) -> Sequence[Claim]:
    try:
        return dialect.claims(pod, resource, cards)
    except ValueError as exc:
        wrong.append(str(exc))
        return ()


def _agree(one: Sequence[Claim], other: Sequence[Claim]) -> bool:
    """Whether both say the same of each container. One counts memory in bytes, the other in MiB."""
    its = {it.container: it for it in other}
    return {it.container for it in one} == its.keys() and all(
        {*it.devices} == {*its[it.container].devices} and _same(it.parameters, its[it.container].parameters)
        for it in one
    )


def _same(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    if one.keys() != other.keys():
        return False
    rest = (key for key in one if key != MEMORY)
    apart = abs(int(one.get(MEMORY, 0)) - int(other.get(MEMORY, 0)))
    return apart < MIB and all(one[key] == other[key] for key in rest)


def _meant(pod: Candidate, claim: Claim, refused: str) -> Claim:
    """The claim in the words of `share`: one without amounts is of the whole card."""
    return _with_policy(pod, replace(claim, parameters=claim.parameters or _ALL), refused)


def _with_policy(pod: Candidate, claim: Claim, refused: str) -> Claim:
    online = pod.annotations.get(APP_CLASS) == ONLINE
    policy = pod.annotations.get(POLICY, "")
    parameters = dict(claim.parameters)
    if online and not policy:
        parameters[ANY_QOS] = "true"
    else:
        parameters[QOS] = shorten(policy or BEST_EFFORT, _MAX_POLICY)
    if refused:
        parameters[REFUSED] = refused
    remark = "; ".join(filter(None, (claim.remark, _NOT_SUSPENDED if online else "")))
    return replace(claim, parameters=parameters, remark=remark)


def limits(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """What the pod's own limits and annotation ask for, a claim on no card for each container that asks.

    One that names no amounts has the policy alone: what it gets is `unclaimed`.
    """
    return [
        _with_policy(
            pod,
            Claim(pod.uid, pod.namespace, pod.name, it.name, (), _asked(it, resource)),
            _mismatch(it, resource, count),
        )
        for it in pod.containers
        if (count := it.limits.get(resource))
    ]


def _asked(it: PodContainer, resource: str) -> Mapping[str, str]:
    """Of each card, in Koordinator's words, else in HAMi's; empty where none is said.

    Of what is not said in HAMi's words it counts all (pkg/device/metax/sdevice.go:250-273).
    """
    own = _of_koordinator(it).each
    if own.core is own.memory is own.ratio is None:
        own = asked_of_each(resource, it.limits)
        if own.core is own.memory is None:
            return {}
        own = CardGrant(0, "", own.core or WHOLE, own.memory, None if own.memory else WHOLE)
    return _ALL if own.whole else share([own])


def _of_koordinator(it: PodContainer) -> PodRequest:
    """Cards that another vendor's plugin counts whole are none of these."""
    return wish({name: count for name, count in it.limits.items() if name.startswith(PREFIX)})


def _mismatch(it: PodContainer, resource: str, count: int) -> str:
    """Why what is asked of cards cannot be had with so many IDs."""
    wanted = _of_koordinator(it).cards
    if wanted in (0, count):
        return ""
    return (
        f"container {it.name} asks for {count} of {resource}, and by its other limits for parts of {wanted} "
        f"cards: ask for as many as cards ({SHARED})"
    )

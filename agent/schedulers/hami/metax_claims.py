"""Claims on MetaX's cards by koord-scheduler, HAMi or the pod's own limits, with the pod's policy. Pure.

Source: koordinator pkg/scheduler/plugins/deviceshare/device_plugin_adapter.go (a7a1b76b), HAMi
pkg/device/metax/sdevice.go (4707fb02).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from agent.scheduler_api import Candidate, Cards, Claim, Dialect, PodContainer, Scheduler
from agent.schedulers.common.grants import CardGrant, share
from agent.schedulers.common.pod_request import PodRequest, requested
from agent.schedulers.common.resource_names import PREFIX, SHARED
from agent.schedulers.hami.pod_annotations import HAMI, METAX, METAX_ALLOCATED, asked_of_each
from agent.vendor_api.text import shorten

#: Annotations of pods: the policy of their slices, and whether other pods are to be suspended for them.
POLICY, APP_CLASS = "metax-tech.com/sgpu-qos-policy", "metax-tech.com/sgpu-app-class"
#: The policy of a pod without one.
BEST_EFFORT = "best-effort"
ONLINE = "online"
#: More parameters of the claims, for the vendor that makes the slices: a policy, that any policy will do, and
#: why the claim is refused.
QOS, ANY_QOS, REFUSED = "qos", "any-qos", "refused"
CORE, MEMORY = "core", "memory"
WHOLE = 100  # percent
MIB = 1 << 20
_MAX_POLICY = 64
_ALL = {CORE: str(WHOLE)}
_NOT_SUSPENDED = f"{APP_CLASS} is {ONLINE}, and no pod that is offline is suspended for it by this agent"


class _Other(NamedTuple):
    """The dialect in which a scheduler writes its choice a second time, and its annotation."""

    dialect: Dialect
    annotation: str


def metax_sgpu(terms: Mapping[str, str], schedulers: Sequence[Scheduler]) -> Dialect:
    """The dialect `metax-sgpu`.

    A scheduler may write its choice a second time, in an annotation of its own. The term `compared` names the
    dialect of that annotation. Where that scheduler is registered, the claims of both are compared.
    """
    compared = terms.get("compared", "")
    both = ((scheduler.writes, dialect) for scheduler in schedulers for dialect in scheduler.dialects)
    others = (_Other(dialect, annotation) for annotation, dialect in both if dialect.name == compared)
    return Dialect("metax-sgpu", partial(claims, next(others, None)))


def metax_limits(terms: Mapping[str, str], schedulers: Sequence[Scheduler]) -> Dialect:
    """The dialect `metax-limits`."""
    return Dialect("metax-limits", limits)


def claims(other: _Other | None, pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """The claims of the pod's containers, with the policy of their slices.

    koord-scheduler writes two annotations. If they differ, the claim has the reason and is refused.

    Raises:
        ValueError: No annotation makes sense.
    """
    wrong: list[str] = []
    koordinators = _claims_of(other.dialect, pod, resource, cards, wrong) if other else ()
    metaxs = _claims_of(METAX, pod, resource, cards, wrong)
    found = koordinators or metaxs
    if wrong and not found:
        raise ValueError("; ".join(wrong))
    both = other is not None and {other.annotation, METAX_ALLOCATED} <= pod.annotations.keys()
    if other and both and not wrong and not _agree(koordinators, metaxs):
        wrong.append(f"{other.annotation} and {METAX_ALLOCATED} of the pod promise different things")
    return [_meant(pod, it, "; ".join(wrong)) for it in found or HAMI.claims(pod, resource, cards)]


def _claims_of(
    dialect: Dialect, pod: Candidate, resource: str, cards: Cards, wrong: list[str]
) -> Sequence[Claim]:
    try:
        return dialect.claims(pod, resource, cards)
    except ValueError as exc:
        wrong.append(str(exc))
        return ()


def _agree(one: Sequence[Claim], other: Sequence[Claim]) -> bool:
    """Whether both make the same claims. One counts memory in bytes, the other in MiB."""
    of_other = {it.container: it for it in other}
    if {it.container for it in one} != of_other.keys():
        return False
    pairs = [(claim, of_other[claim.container]) for claim in one]
    return all({*a.devices} == {*b.devices} and _same(a.parameters, b.parameters) for a, b in pairs)


def _same(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    if one.keys() != other.keys():
        return False
    rest = (key for key in one if key != MEMORY)
    apart = abs(int(one.get(MEMORY, 0)) - int(other.get(MEMORY, 0)))
    return apart < MIB and all(one[key] == other[key] for key in rest)


def _meant(pod: Candidate, claim: Claim, refused: str) -> Claim:
    """The claim with its policy. A claim without amounts takes the whole card."""
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
    """The claims by the pod's own limits and annotation, one on no card for each container that asks.

    A claim without amounts has the policy alone; its container gets the setting `unclaimed`.
    """
    found = []
    for container in pod.containers:
        if count := container.limits.get(resource):
            parameters = _requested(container, resource)
            claim = Claim(pod.uid, pod.namespace, pod.name, container.name, (), parameters)
            found.append(_with_policy(pod, claim, _mismatch(container, resource, count)))
    return found


def _requested(container: PodContainer, resource: str) -> Mapping[str, str]:
    """The amount of each card, by Koordinator's names or else by HAMi's; empty without any.

    HAMi takes the whole of an amount that the limits lack (pkg/device/metax/sdevice.go:250-273).
    """
    own = _of_koordinator(container).each
    if own.core is own.memory is own.ratio is None:
        own = asked_of_each(resource, container.limits)
        if own.core is own.memory is None:
            return {}
        own = CardGrant(0, "", own.core or WHOLE, own.memory, None if own.memory else WHOLE)
    return _ALL if own.whole else share([own])


def _of_koordinator(container: PodContainer) -> PodRequest:
    """The request by Koordinator's own names, without whole cards of other vendors."""
    return requested({name: count for name, count in container.limits.items() if name.startswith(PREFIX)})


def _mismatch(container: PodContainer, resource: str, count: int) -> str:
    """Why the number of device IDs does not fit the other limits; empty where it fits."""
    wanted = _of_koordinator(container).cards
    if wanted in (0, count):
        return ""
    return (
        f"container {container.name} asks for {count} of {resource}, and by its other limits for parts of "
        f"{wanted} cards: ask for as many as cards ({SHARED})"
    )

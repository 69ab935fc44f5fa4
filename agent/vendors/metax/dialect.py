"""How koord-scheduler and HAMi hand over cards of MetaX, with the policy that the pod names. Pure.

Source: koordinator pkg/scheduler/plugins/deviceshare/device_plugin_adapter.go (a7a1b76b), HAMi
pkg/device/metax/sdevice.go (4707fb02).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.core.claims import Candidate, Cards, Claim, Dialect
from agent.core.koordinator.allocated import ALLOCATED
from agent.core.koordinator.dialect import KOORDINATOR
from agent.core.koordinator.hami import HAMI, METAX, METAX_ALLOCATED
from agent.core.text import shorten

from .names import DOMAIN
from .qos import ANNOTATION, DEFAULT
from .share import ANY_QOS, CORE, MEMORY, MIB, QOS, REFUSED, WHOLE, part

APP_CLASS = f"{DOMAIN}sgpu-app-class"
ONLINE = "online"
_MAX_POLICY = 64
_NOT_SUSPENDED = f"{APP_CLASS} is {ONLINE}, and no pod that is offline is suspended for it by this agent"


def claims(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """The claims of the pod's containers, with the policy of their slices.

    koord-scheduler writes two annotations. Where they say two things the claim says so, and is refused.

    Raises:
        ValueError: No annotation makes sense.
    """
    wrong: list[str] = []
    said = [_heard(it, pod, resource, cards, wrong) for it in (KOORDINATOR, METAX)]
    found = said[0] or said[1]
    if wrong and not found:
        raise ValueError("; ".join(wrong))
    both = ALLOCATED in pod.annotations and METAX_ALLOCATED in pod.annotations
    if not wrong and both and not _agree(*said):
        wrong.append(f"{ALLOCATED} and {METAX_ALLOCATED} of the pod promise different things")
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
    online = pod.annotations.get(APP_CLASS) == ONLINE
    policy = pod.annotations.get(ANNOTATION, "")
    parameters = dict(claim.parameters or {CORE: str(WHOLE)})
    if online and not policy:
        parameters[ANY_QOS] = "true"
    else:
        parameters[QOS] = shorten(policy or str(DEFAULT), _MAX_POLICY)
    if refused:
        parameters[REFUSED] = refused
    remark = "; ".join(filter(None, (claim.remark, _NOT_SUSPENDED if online else "")))
    return replace(claim, parameters=parameters, remark=remark)


DIALECT = Dialect("metax-sgpu", claims, measure=part)

"""GCUShare's first generation: an extender of kube-scheduler gives units of one card's memory. Pure.

Source: the logs in GCUShare's user manual v1.2 (2024-04), which show the annotations; its parents,
AliyunContainerService/gpushare-scheduler-extender (c0b6141) and gpushare-device-plugin (45fb8b8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from agent.scheduler_api import Candidate, Cards, Claim, Dialect, ServedClaim

from . import card_annotations as of_pod
from .card_annotations import AnnotationKeys
from .names import ResourceNames

#: MiB in a GiB: HAMi counts the resource of the same name in MiB.
_MIB = 1024


def v1(names: ResourceNames) -> Dialect:
    """The dialect `gcushare-v1`: `enflame.com/gcu-memory` counts units of memory."""
    keys = AnnotationKeys(
        card=names.key("enflame.com/gcu-device-id"),
        size=names.key("enflame.com/gcu-device-memory-request"),
        assigned=names.key("enflame.com/gcu-device-assigned"),
        time=names.key("enflame.com/gcu-device-assign-time"),
    )
    return Dialect(
        "gcushare-v1",
        partial(_claims, names, keys),
        reads=(names.keys,),
        receipt=partial(_receipt, names, keys),
        receipt_keys=(keys.assigned,),
    )


def _claims(
    names: ResourceNames, keys: AnnotationKeys, pod: Candidate, resource: str, cards: Cards
) -> Sequence[Claim]:
    """The claims of the pod's containers, all on one card.

    Raises:
        ValueError: The annotations make no sense, or do not fit what the pod asks for.
    """
    containers = of_pod.asking(pod, (resource,))
    minor = of_pod.number(pod.annotations, keys.card)
    if resource != names.memory or not containers or minor is None:
        return ()
    of_pod.check(pod, keys)
    promised, wanted = of_pod.number(pod.annotations, keys.size), of_pod.total(containers, (resource,))
    if promised != wanted:
        raise ValueError(_differs(keys.size, promised, wanted, resource))
    uuid = of_pod.card(minor, keys.card, cards)
    return [of_pod.claim(pod, it, uuid, {}) for it in containers]


def _receipt(
    names: ResourceNames, keys: AnnotationKeys, pod: Candidate, served: Sequence[ServedClaim]
) -> Mapping[str, str]:
    """That all containers have their units; nothing while one lacks them."""
    return {keys.assigned: "true"} if of_pod.is_served(pod, served, (names.memory,)) else {}


def _differs(key: str, promised: int | None, wanted: int, resource: str) -> str:
    if promised is None:
        return f"{key} is missing, awaited is {wanted}: what the pod's containers ask for together"
    what = f"{key} promises {promised} of {resource}, the pod's containers ask for {wanted} together"
    if _MIB * promised == wanted or promised == _MIB * wanted:
        return (
            f"{what}; MiB are counted in the dialect hami, this node speaks gcushare-v1, which counts units"
        )
    return what

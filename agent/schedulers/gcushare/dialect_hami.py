"""HAMi's annotations for GCUShare's device plugin: up to HAMi 2.8 of its second generation, then its fourth.

Source: Project-HAMi/HAMi pkg/device/enflame/device.go (4707fb02 and v2.8.0). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from agent.scheduler_api import Candidate, Cards, Claim, Dialect, ServedClaim

from . import card_annotations as of_pod
from . import pod_records as records
from .card_annotations import AnnotationKeys
from .dialect_v4 import believed, done, keys_of, on_card, recorded
from .dialect_v4 import receipt as of_records
from .names import ResourceNames
from .pod_records import RECORDS


def hami(names: ResourceNames) -> Dialect:
    """The dialect `hami`: `enflame.com/gcu-memory` counts MiB."""
    keys = keys_of(names)
    place = names.key("enflame.com/gcu-assigned-id")
    return Dialect(
        "hami",
        partial(_claims, names, keys, place),
        reads=(names.keys, RECORDS),
        receipt=partial(_receipt, names, keys),
        receipt_keys=(RECORDS, keys.assigned),
    )


def _claims(
    names: ResourceNames, keys: AnnotationKeys, place: str, pod: Candidate, resource: str, cards: Cards
) -> Sequence[Claim]:
    """The claims of the pod's containers, all on one card.

    Raises:
        ValueError: The annotations make no sense, or do not fit what the pod asks for.
    """
    containers = of_pod.asking(pod, (resource,))
    if resource not in (names.shared, names.drs) or not containers:
        return ()
    uuid = _card(pod, keys, place, cards)
    if uuid is None:
        return ()
    believed(pod, keys)
    _check_size(pod, keys, resource)
    known = {} if _is_old(pod, keys) else recorded(pod)
    return on_card(names, pod, containers, resource, uuid, known)


def _card(pod: Candidate, keys: AnnotationKeys, place: str, cards: Cards) -> str | None:
    """The card by its minor; up to HAMi 2.8 by its position among the cards."""
    minor = of_pod.number(pod.annotations, keys.card)
    if minor is not None:
        return of_pod.card(minor, keys.card, cards)
    at = of_pod.number(pod.annotations, place)
    if at is None:
        return None
    whole = [uuid for uuid, minor in cards.items() if minor is not None]  # a slice has no minor
    if at >= len(whole):
        raise ValueError(f"{place} names card {at} from 0 on, there are {len(whole)}")
    return whole[at]


def _check_size(pod: Candidate, keys: AnnotationKeys, resource: str) -> None:
    """Refuse another size than the pod's. HAMi writes the first container's size, up to 2.8 none."""
    promised = of_pod.number(pod.annotations, keys.size)
    containers = of_pod.asking(pod, (resource,))
    known = {of_pod.total(containers, (resource,)), containers[0].limits[resource]}
    if promised is not None and promised not in known:
        wanted = " or ".join(map(str, sorted(known)))
        raise ValueError(f"{keys.size} promises {promised} of {resource}, the pod asks for {wanted}")


def _is_old(pod: Candidate, keys: AnnotationKeys) -> bool:
    """Whether the annotations are of the second generation, which names a card by its position."""
    return keys.card not in pod.annotations


def _receipt(
    names: ResourceNames, keys: AnnotationKeys, pod: Candidate, served: Sequence[ServedClaim]
) -> Mapping[str, str]:
    """The annotations that the device plugin of the pod's generation would write.

    Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/resource/pod.go (3d6f337, of old; ee04a65).

    Raises:
        ValueError: The pod's records are not what GCUShare writes.
    """
    if not _is_old(pod, keys):
        return of_records(names, keys, pod, served)
    known = records.read_old(pod.annotations[RECORDS]) if RECORDS in pod.annotations else {}
    known |= {it.container: True for it in served}
    return {RECORDS: records.write_old(known), **done(names, keys, pod, served)}

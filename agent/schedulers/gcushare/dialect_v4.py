"""GCUShare's fourth generation: a scheduler plugin gives slices of one card, shared or the hardware's. Pure.

Source: EnflameTechnology/gcushare, gcushare-scheduler-plugin/src/v1/plugin/plugin.go and
gcushare-device-plugin/pkg/resource/pod.go (ee04a65); its annotations as they were written on a real server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from agent.scheduler_api import DEFAULT_SCHEDULER, Candidate, Cards, Claim, Dialect, PodContainer, ServedClaim

from . import card_annotations as of_pod
from . import pod_records as records
from .card_annotations import AnnotationKeys
from .names import ResourceNames
from .pod_records import RECORDS, PodRecord, slices

#: Parameters of a claim on a slice of the hardware, for the vendor that makes the slice: name and number of
#: the profile.
PROFILE, PROFILE_ID = "profile", "profile-id"


def keys_of(names: ResourceNames) -> AnnotationKeys:
    return AnnotationKeys(
        card=names.key("enflame.com/gcu-assigned-minor"),
        size=names.key("enflame.com/gcu-request-size"),
        assigned=names.key("enflame.com/gcu-assigned"),
        time=names.key("enflame.com/gcu-assigned-time"),
    )


def v4(names: ResourceNames) -> Dialect:
    """The dialect `gcushare-v4`."""
    keys = keys_of(names)
    return Dialect(
        "gcushare-v4",
        partial(_claims, names, keys),
        reads=(names.keys, RECORDS),
        receipt=partial(receipt, names, keys),
        receipt_keys=(RECORDS, keys.assigned),
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
    if resource not in (names.shared, names.drs) or not containers or minor is None:
        return ()
    believed(pod, keys)
    promised, wanted = of_pod.number(pod.annotations, keys.size), of_pod.total(containers, (resource,))
    if promised != wanted:
        raise ValueError(
            f"{keys.size} promises {promised} of {resource}, the pod's containers ask for {wanted} together"
        )
    uuid = of_pod.card(minor, keys.card, cards)
    return on_card(names, pod, containers, resource, uuid, recorded(pod))


def believed(pod: Candidate, keys: AnnotationKeys) -> None:
    """Refuse annotations that GCUShare's scheduler did not write.

    Raises:
        ValueError: They make no sense, or Kubernetes' own scheduler binds the pod, which chooses no card.
    """
    if pod.scheduler == DEFAULT_SCHEDULER:
        raise ValueError(f"{keys.card} is not believed of a pod of {DEFAULT_SCHEDULER}")
    of_pod.check(pod, keys)


def recorded(pod: Candidate) -> dict[str, PodRecord]:
    """The records on the pod, by container.

    Raises:
        ValueError: The annotation is not what GCUShare writes.
    """
    return records.read(pod.annotations[RECORDS]) if RECORDS in pod.annotations else {}


def on_card(
    names: ResourceNames,
    pod: Candidate,
    containers: Sequence[PodContainer],
    resource: str,
    uuid: str,
    known: Mapping[str, PodRecord],
) -> list[Claim]:
    """The claims of the containers on this card; a slice of the hardware with its recorded profile."""
    drs = resource == names.drs
    return [of_pod.claim(pod, it, uuid, _parameters(it, resource, known, drs=drs)) for it in containers]


def _parameters(
    container: PodContainer, resource: str, known: Mapping[str, PodRecord], *, drs: bool
) -> Mapping[str, str]:
    name, wanted = container.name, container.limits[resource]
    record = known.get(name)
    if record is not None and record.request not in (None, wanted):
        raise ValueError(
            f"{RECORDS} promises container {name} {record.request} of {resource}, it asks for {wanted}"
        )
    has_profile = record is not None and record.profile_name and record.profile_id
    if not drs or (container.init and not has_profile):  # GCUShare's scheduler overlooks init containers
        return {}
    if record is None or not has_profile:
        raise ValueError(f"{RECORDS} names no profile of container {name}, which asks for {resource}")
    if slices(record.profile_name) != wanted:
        raise ValueError(
            f"{RECORDS} names {record.profile_name} for container {name}, which asks for {wanted} slices"
        )
    return {PROFILE: record.profile_name, PROFILE_ID: record.profile_id}


def receipt(
    names: ResourceNames, keys: AnnotationKeys, pod: Candidate, served_claims: Sequence[ServedClaim]
) -> Mapping[str, str]:
    """The records with the containers that have their slices, and whether all containers have slices.

    Raises:
        ValueError: The pod's records are not what GCUShare writes.
    """
    served = [it for it in served_claims if it.resource == names.shared or it.partitions]
    known = recorded(pod)
    known |= {it.container: _allocated(known.get(it.container, PodRecord()), it) for it in served}
    return {RECORDS: records.write(known), **done(names, keys, pod, served)} if served else {}


def done(
    names: ResourceNames, keys: AnnotationKeys, pod: Candidate, served_claims: Iterable[ServedClaim]
) -> Mapping[str, str]:
    """That all containers have their slices; nothing while one lacks them."""
    return {keys.assigned: "true"} if of_pod.is_served(pod, served_claims, (names.shared, names.drs)) else {}


def _allocated(record: PodRecord, served: ServedClaim) -> PodRecord:
    """The record with the container's slice. The id of a slice is its number on the card, and its uuid."""
    if not served.partitions:
        return replace(record, allocated=True)
    number, _, uuid = served.partitions[0].partition(":")
    return replace(record, allocated=True, instance_id=number, instance_uuid=uuid)

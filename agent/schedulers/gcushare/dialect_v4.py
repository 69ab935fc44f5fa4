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

#: Parameters of a claim on a slice of the hardware, for the vendor that makes the slice: its profile's name,
#: and number.
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
        ValueError: The annotations make no sense, alone or beside what the pod asks for.
    """
    its = of_pod.asking(pod, (resource,))
    minor = of_pod.number(pod.annotations, keys.card)
    if resource not in (names.shared, names.drs) or not its or minor is None:
        return ()
    believed(pod, keys)
    promised, wanted = of_pod.number(pod.annotations, keys.size), of_pod.total(its, (resource,))
    if promised != wanted:
        raise ValueError(
            f"{keys.size} promises {promised} of {resource}, the pod's containers ask for {wanted} together"
        )
    return on_card(names, pod, its, resource, of_pod.card(minor, keys.card, cards), recorded(pod))


def believed(pod: Candidate, keys: AnnotationKeys) -> None:
    """Refuse what GCUShare's scheduler did not write.

    Raises:
        ValueError: It makes no sense, or Kubernetes' own scheduler binds the pod, which chooses no card.
    """
    if pod.scheduler == DEFAULT_SCHEDULER:
        raise ValueError(f"{keys.card} is not believed of a pod of {DEFAULT_SCHEDULER}")
    of_pod.check(pod, keys)


def recorded(pod: Candidate) -> dict[str, PodRecord]:
    """What stands on the pod of its containers.

    Raises:
        ValueError: It is not what GCUShare writes.
    """
    return records.read(pod.annotations[RECORDS]) if RECORDS in pod.annotations else {}


def on_card(
    names: ResourceNames,
    pod: Candidate,
    its: Sequence[PodContainer],
    resource: str,
    uuid: str,
    known: Mapping[str, PodRecord],
) -> list[Claim]:
    """Their claims on this card; slices of the hardware with the profile that is recorded of each."""
    drs = resource == names.drs
    return [of_pod.claim(pod, it, uuid, _parameters(it, resource, known, drs=drs)) for it in its]


def _parameters(
    it: PodContainer, resource: str, known: Mapping[str, PodRecord], *, drs: bool
) -> Mapping[str, str]:
    record, wanted = known.get(it.name), it.limits[resource]
    if record is not None and record.request not in (None, wanted):
        raise ValueError(
            f"{RECORDS} promises container {it.name} {record.request} of {resource}, it asks for {wanted}"
        )
    has_profile = record is not None and record.profile_name and record.profile_id
    if not drs or (it.init and not has_profile):  # GCUShare's scheduler overlooks init containers
        return {}
    if record is None or not has_profile:
        raise ValueError(f"{RECORDS} names no profile of container {it.name}, which asks for {resource}")
    if slices(record.profile_name) != wanted:
        raise ValueError(
            f"{RECORDS} names {record.profile_name} for container {it.name}, which asks for {wanted} slices"
        )
    return {PROFILE: record.profile_name, PROFILE_ID: record.profile_id}


def receipt(
    names: ResourceNames, keys: AnnotationKeys, pod: Candidate, given: Sequence[ServedClaim]
) -> Mapping[str, str]:
    """The records of those containers that have their slices, and a word for all once none lacks its own.

    Raises:
        ValueError: What stands there is not what GCUShare writes.
    """
    its = [it for it in given if it.resource == names.shared or it.partitions]
    known = recorded(pod)
    known |= {it.container: _allocated(known.get(it.container, PodRecord()), it) for it in its}
    return {RECORDS: records.write(known), **done(names, keys, pod, its)} if its else {}


def done(
    names: ResourceNames, keys: AnnotationKeys, pod: Candidate, given: Iterable[ServedClaim]
) -> Mapping[str, str]:
    """The word for all; while a container lacks its slices it stays as the scheduler wrote it."""
    return {keys.assigned: "true"} if of_pod.is_served(pod, given, (names.shared, names.drs)) else {}


def _allocated(record: PodRecord, given: ServedClaim) -> PodRecord:
    """One slice of the hardware is made for a container; its id is its number on the card, and its uuid."""
    if not given.partitions:
        return replace(record, allocated=True)
    number, _, uuid = given.partitions[0].partition(":")
    return replace(record, allocated=True, instance_id=number, instance_uuid=uuid)

"""What has happened between two looks at the agent that people should be told of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from agent.core.devices.health_rules import LOST_CONTACT
from agent.core.model import (
    Allocation,
    AllocationSource,
    AllocationState,
    DeviceStatus,
    VendorState,
    VendorStatus,
)
from agent.core.notices import ClaimSwap, Notice, PodRef, Refusal
from agent.core.publishing.agent_status import AgentStatus, SchedulerReport
from agent.scheduler_api import Candidate
from agent.vendor_api.agent import State
from agent.vendor_api.text import shorten

#: Reasons that are no fault of a device, and no news: another resource has the card for now.
QUIET = frozenset({"in-other-mode"})
#: Devices that one sentence names.
NAMED = 3

#: Reason of the notice, how the devices are, why.
_Word = tuple[str, str, str]


def news(before: AgentStatus, after: AgentStatus, pods: Sequence[Candidate] = ()) -> tuple[Notice, ...]:
    """The notices, in the order in which a person would ask. `pods` are those bound to the node.

    Whoever looks for the first time gives UNKNOWN as `before`.
    """
    return (
        *_of_config(before, after),
        *_of_checkpoint(before, after),
        *_of_vendors(before, after),
        *_of_devices(before, after),
        *_of_strangers(before, after),
        *_of_waits(before, after),
        *_of_units(before, after),
        *_of_refusals(before, after, pods),
        *_of_starts(before, after),
        *_of_claims(before, after),
        *_of_choices(before, after),
        *_of_overlaps(before, after),
        *_of_shares(before, after),
        *_of_limits(before, after),
        *_of_locks(before, after),
        *_of_report(before.reported, after.reported),
    )


def _of_config(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    was, error = _refused(before), _refused(after)
    if error and error != was:
        kept = "none is in force yet" if after.config_awaited else "the last good one stays in force"
        yield Notice("ConfigRefused", f"the config is refused, {kept}: {error}")
    if was and not error:
        yield Notice("ConfigTaken", f"the config is taken in again: {after.config_source}", "Normal")


def _refused(view: AgentStatus) -> str:
    """Why the config is refused; a config that waits for the labels of the Node is not."""
    return "" if view.labels_awaited else view.config_error


def _of_checkpoint(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    if after.set_aside and not before.set_aside:
        yield Notice("CheckpointSetAside", after.set_aside)
    if after.set_aside and after.rebuilt and not before.rebuilt:
        told = f"the allocations are known again: {after.read_back} were read back from the kubelet"
        yield Notice("CheckpointRebuilt", told, "Normal")


def _of_vendors(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    known = {it.name: it for it in before.snapshot.vendors}
    for vendor in after.snapshot.vendors:
        failed = _has_failed(after, vendor)
        had_failed = vendor.name in known and _has_failed(before, known[vendor.name])
        if failed and not had_failed:
            why = vendor.reason or "it does not say why"
            yield Notice("VendorFailed", f"vendor {vendor.name} is {vendor.state}: {why}")
        if had_failed and vendor.state is VendorState.OPEN:
            yield Notice("VendorOpened", f"vendor {vendor.name} is open again", "Normal")


def _has_failed(view: AgentStatus, vendor: VendorStatus) -> bool:
    wanted = vendor.name in view.required_vendors
    return vendor.state in (VendorState.FAILED, VendorState.LEFT_OUT) or (
        wanted and vendor.state is VendorState.UNAVAILABLE
    )


# Devices


def _of_devices(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    if before.snapshot is after.snapshot:
        return
    known = {it.uuid: it for it in before.snapshot.devices}
    now = {it.uuid: it for it in after.snapshot.devices}
    said = [(word, it) for it in now.values() for word in _words(known.get(it.uuid), it)]
    own = [(word, it) for word, it in said if not _is_its_cards(word, it, now, said)]
    for (vendor, word), group in groupby(sorted(own, key=_place), key=lambda one: (one[1].vendor, one[0])):
        devices = [it for _, it in group]
        reason, how, why = word
        there = [it for it in now.values() if it.vendor == vendor]
        text = f"{_subject(vendor, devices, there)} {how}{_because(why, devices)}"
        yield Notice(reason, text, "Warning" if reason == "DeviceUnhealthy" else "Normal")


def _words(before: DeviceStatus | None, after: DeviceStatus) -> Iterator[_Word]:
    old, new = _level(before), _level(after)
    if new is not None and new != old:
        reason, how, _ = new
        if reason != "DeviceHealthy":
            yield new
        elif old is not None:
            yield reason, f"{how} again", ""
    if before is not None and before.cordon != after.cordon:
        yield _cordoned(after)


def _level(status: DeviceStatus | None) -> _Word | None:
    """How a device is, in the words of a notice; None where nothing is said of it."""
    if status is None:
        return ("DeviceHealthy", "healthy", "")  # a card that is found well is no news
    health = status.health
    if status.gone or health.reason in QUIET:
        return None
    if not status.told_healthy:
        return ("DeviceUnhealthy", "unhealthy", health.reason)
    if health.state is State.HEALTHY:
        return ("DeviceHealthy", "healthy", "")
    # While contact is lost for a moment the kubelet keeps our last word, and so do people.
    return None if health.reason == LOST_CONTACT else ("DeviceUnwatched", "not watched", health.reason)


def _cordoned(status: DeviceStatus) -> _Word:
    if (cordon := status.cordon) is None:
        return ("DeviceUncordoned", "given out again", "")
    told = f"{cordon.author}: {cordon.reason}" if cordon.reason else cordon.author
    return ("DeviceCordoned", f"given to nobody new, cordoned by {told}", "")


def _is_its_cards(
    word: _Word,
    status: DeviceStatus,
    now: Mapping[str, DeviceStatus],
    said: Sequence[tuple[_Word, DeviceStatus]],
) -> bool:
    """Whether it is a slice of which its card's notice says it all."""
    card = now.get(status.device.parent or "")
    return card is not None and (_level(card) == word or (word, card) in said)


def _place(one: tuple[_Word, DeviceStatus]) -> tuple[str, _Word, int, str]:
    word, it = one
    return it.vendor, word, it.device.index, it.uuid


def _subject(vendor: str, devices: Sequence[DeviceStatus], there: Sequence[DeviceStatus]) -> str:
    what = "device" if any(it.device.parent for it in devices) else "card"
    if len(devices) == 1:
        return f"{vendor} {what} {devices[0].uuid} is"
    names = ", ".join(it.uuid for it in devices[:NAMED])
    more = f" and {len(devices) - NAMED} more" if len(devices) > NAMED else ""
    alike = [it for it in there if what == "device" or not it.device.parent]
    count = f"all {len(alike)}" if len(devices) == len(alike) else f"{len(devices)} of {len(alike)}"
    return f"{count} {vendor} {what}s ({names}{more}) are"


def _because(why: str, devices: Iterable[DeviceStatus]) -> str:
    if not why:
        return ""
    messages = {it.health.message for it in devices if it.health.reason == why} - {""}
    return f": {why}: {messages.pop()}" if len(messages) == 1 else f": {why}"


# What the kubelet and others do


def _of_strangers(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    for resource in sorted(after.other_plugins.keys() - before.other_plugins.keys()):
        yield Notice("ForeignPlugin", f"{resource}: {after.other_plugins[resource]}")


def _of_waits(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    """Said as it begins; each pod that ends is no news."""
    for resource in sorted(after.waits.keys() - before.waits.keys()):
        yield Notice("ResourceWaits", "; ".join(after.waits[resource]), "Normal")


def _of_units(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    """Said as it begins and as it ends; each pod that ends is no news."""
    was, now = ({name: it for name, (it, _) in one.kept_units.items()} for one in (before, after))
    for name in sorted(now):
        if now[name] != was.get(name):
            yield Notice("UnitKept", after.kept_units[name][1], "Warning" if now[name].why else "Normal")
    for name in sorted(was.keys() - now.keys()):
        told = f"{name}: what kept it counting memory in units of {was[name].unit} GiB is over"
        yield Notice("UnitChanged", told, "Normal")


def _of_refusals(before: AgentStatus, after: AgentStatus, pods: Sequence[Candidate]) -> Iterator[Notice]:
    last = max((it.number for it in before.refusals), default=0)
    fresh = [it for it in after.refusals if it.number > last]
    if fresh and (others := fresh[-1].number - last - len(fresh)):  # first, or similar ones would swallow it
        told = f"{others} more requests for devices were refused, too many at once to tell of each"
        yield Notice("AllocateRefused", f"{told}; the last one said: {fresh[-1].text}")
    for it in fresh:
        pod = whose(it, pods)
        yield Notice("AllocateRefused", it.text if pod else _unattributed(it), pod=pod)


def whose(refusal: Refusal, pods: Iterable[Candidate]) -> PodRef | None:
    """The pod that was refused: the newest whose status says so, or else the only one that waited."""
    told = [it for it in pods if it.message and refusal.text in it.message]
    if told:
        newest = max(told, key=lambda it: (it.created, it.uid))
        return PodRef(newest.namespace, newest.name, newest.uid)
    return refusal.waiting[0] if len(refusal.waiting) == 1 else None


def _unattributed(refusal: Refusal) -> str:
    """The refusal where nobody knows whose: its resource and IDs, and who may be meant."""
    pods = [f"{it.namespace}/{it.name}" for it in refusal.waiting[:NAMED]]
    maybe = f"; it may be {' or '.join(pods)}" if pods else ""
    ids = ", ".join(refusal.ids[:NAMED]) + (", ..." if len(refusal.ids) > NAMED else "")
    return f"a pod that asked for {refusal.resource} was refused ({ids}){maybe}: {refusal.text}"


def _of_starts(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    last = max((it.number for it in before.starts_refused), default=0)
    for it in after.starts_refused:
        if it.number > last:
            yield Notice("StartRefused", it.text, pod=it.pod)


def _of_claims(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    last = max((it.number for it in before.swaps), default=0)
    known = {it.id: it for it in after.allocations}
    for it in after.swaps:
        if it.number > last:
            pod = _holder(it, known.get(it.allocation))
            yield Notice("SwapRepaired", _swapped(it, pod), "Normal", pod)


def _swapped(swap: ClaimSwap, pod: PodRef | None) -> str:
    before, after = (f"{it.namespace}/{it.pod}" if it else "nobody" for it in (swap.before, swap.after))
    if pod is not None and swap.after is None:
        after = f"{pod.namespace}/{pod.name}, which was promised nothing that is left"
    return (
        f"allocation {swap.allocation} of {swap.resource} follows what the kubelet did: "
        f"it was answered for {before}, as the scheduler had promised, and is for {after}"
    )


def _holder(swap: ClaimSwap, it: Allocation | None) -> PodRef | None:
    """Who has it by the kubelet's word; before its name is known, whom its claim names."""
    owner, claim = it.owner if it else None, swap.after
    if owner is not None and owner.pod:
        return PodRef(owner.namespace, owner.pod, owner.uid)
    if claim is None or (owner is not None and owner.uid != claim.uid):
        return None
    return PodRef(claim.namespace, claim.pod, claim.uid)


def _of_report(before: SchedulerReport, after: SchedulerReport) -> Iterator[Notice]:
    if after.overwritten and not before.overwritten:
        now = "it is fed by a file from now on" if after.mode == "feed" else "the agent has stopped"
        what = f"{after.node_program} overwrote this node's Device"
        yield Notice("ReportOverwritten", f"{what}, {now}: {after.why}")
    if after.error and not before.error:
        why = f"{after.scheduler} is not told of the cards as they are: {after.error}"
        yield Notice("ReportFailed", why)
    if before.error and not after.error:
        yield Notice("ReportRestored", f"{after.scheduler} is told of the cards again", "Normal")
    for sentence in after.left_out:
        if sentence not in before.left_out:
            yield Notice("CardsNotReported", sentence)


def _of_choices(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    for it in after.unheeded:
        if it not in before.unheeded:
            yield Notice("ChoiceUnheeded", f"no scheduler's choice of cards is heeded: {it.why}", pod=it.pod)


def _of_overlaps(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    """That a pod which asks nobody here uses a card that another one has."""
    known = {it.id: it.reason for it in before.allocations}
    for it in after.allocations:
        owner = it.owner
        if (
            it.source is not AllocationSource.ANNOTATION
            or it.state is AllocationState.RELEASED
            or owner is None
        ):
            continue
        if it.reason and known.get(it.id) != it.reason:
            pod = PodRef(owner.namespace, owner.pod, owner.uid)
            told = f"a card of this pod is in use by another one, too: {it.reason}"
            yield Notice("CardGivenTwice", told, pod=pod)


def _of_shares(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    """Of what was answered since: that a container gets another share than it asked for."""
    known = {it.id: it.claim.remark for it in before.allocations if it.claim is not None}
    for it in after.allocations:
        claim = it.claim
        if claim is None or not claim.remark or it.source is not AllocationSource.ALLOCATE:
            continue
        if known.get(it.id) != claim.remark:
            pod = PodRef(claim.namespace, claim.pod, claim.uid)
            yield Notice("ShareAveraged", f"{it.resource}: {claim.remark}", "Normal", pod)


def _of_limits(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    """That a container was answered with the share of another claim than turned out to be its own."""
    known = {it.id: it for it in before.allocations}
    for it in after.allocations:
        pod, container = _whose(it)
        if not container or it.handed is None or it.state is AllocationState.RELEASED:
            continue
        was = known.get(it.id)
        if was is None and it.source is AllocationSource.CHECKPOINT:
            continue  # told in another life of the agent
        if was is None or (was.handed, was.claim, _whose(was)) != (it.handed, it.claim, (pod, container)):
            yield Notice("LimitsDiffer", _differing(it, it.handed, container), pod=pod)


def _whose(it: Allocation) -> tuple[PodRef | None, str]:
    """The pod that has it, and the container."""
    if it.claim is not None:
        return PodRef(it.claim.namespace, it.claim.pod, it.claim.uid), it.claim.container
    if it.owner is not None and it.owner.pod:
        return PodRef(it.owner.namespace, it.owner.pod, it.owner.uid), it.owner.container
    return None, ""


def _differing(it: Allocation, handed: Mapping[str, str], container: str) -> str:
    promised = "nothing that is left" if it.claim is None else _share(it.claim.parameters)
    return (
        f"allocation {it.id} of {it.resource}: container {container} was given {_share(handed)}, "
        f"the scheduler promised it {promised}; what a container was given cannot be "
        "changed: make the pod anew"
    )


def _share(parameters: Mapping[str, str]) -> str:
    said = ", ".join(f"{shorten(key)}={shorten(it)}" for key, it in sorted(parameters.items()))
    return said or "no limits"


def _of_locks(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    for it in after.stale_locks:
        if it not in before.stale_locks:
            yield Notice("LockExpired", it)

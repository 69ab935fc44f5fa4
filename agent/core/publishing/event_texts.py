"""The notices that follow from the difference between two statuses of the agent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from agent.core.devices.health_rules import LOST_CONTACT
from agent.core.event_notices import ClaimSwap, Notice, PodRef, Refusal
from agent.core.model import (
    Allocation,
    AllocationSource,
    AllocationState,
    DeviceStatus,
    VendorState,
    VendorStatus,
)
from agent.core.named_list import named_list
from agent.core.publishing.agent_status import AgentStatus, SchedulerReport
from agent.scheduler_api.candidate import Candidate
from agent.vendor_api.agent import State
from agent.vendor_api.text import shorten

#: Health reasons without a notice: another resource has the card for now, which is no fault.
REASONS_WITHOUT_NOTICE = frozenset({"in-other-mode"})
#: How many devices one sentence names.
MAX_NAMED_DEVICES = 3

#: (reason of the notice, state of the device as in "card X is STATE", health reason)
_Level = tuple[str, str, str]
#: What an allocation was, and what it is now. None: it is new.
_Changed = tuple[Allocation | None, Allocation]


def notices(before: AgentStatus, after: AgentStatus, pods: Sequence[Candidate] = ()) -> tuple[Notice, ...]:
    """The notices about what changed from `before` to `after`, the most general ones first.

    Pass `agent_status.UNKNOWN` as `before` for the first status. `pods` are the pods bound to the node.
    """
    changed = [*_changed_allocations(before, after)]
    return (
        *_of_config(before, after),
        *_of_checkpoint(before, after),
        *_of_vendors(before, after),
        *_of_devices(before, after),
        *_of_other_plugins(before, after),
        *_of_waits(before, after),
        *_of_units(before, after),
        *_of_refusals(before, after, pods),
        *_of_starts(before, after),
        *_of_claims(before, after),
        *_of_mismatches(before, after),
        *_of_overlaps(changed),
        *_of_shares(changed),
        *_of_limits(changed),
        *_of_locks(before, after),
        *_of_report(before.reported, after.reported),
        *_of_usage(before, after),
    )


def _of_config(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    was, error = _refused(before), _refused(after)
    if error and error != was:
        kept = "none is in force yet" if after.config_awaited else "the last good one stays in force"
        yield Notice("ConfigRefused", f"the config is refused, {kept}: {error}")
    if was and not error:
        yield Notice("ConfigTaken", f"the config is accepted again: {after.config_source}", "Normal")


def _refused(status: AgentStatus) -> str:
    """Why the config is refused; a config that waits for the labels of the Node is not."""
    return "" if status.labels_awaited else status.config_error


def _of_checkpoint(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    if after.set_aside and not before.set_aside:
        yield Notice("CheckpointSetAside", after.set_aside)
    if after.set_aside and after.rebuilt and not before.rebuilt:
        text = f"the allocations are known again: {after.read_back} were read back from the kubelet"
        yield Notice("CheckpointRebuilt", text, "Normal")


def _of_vendors(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    known = {it.name: it for it in before.snapshot.vendors}
    for vendor in after.snapshot.vendors:
        failed = _has_failed(after, vendor)
        had_failed = vendor.name in known and _has_failed(before, known[vendor.name])
        if failed and not had_failed:
            why = vendor.reason or "without a reason"
            yield Notice("VendorFailed", f"vendor {vendor.name} is {vendor.state}: {why}")
        if had_failed and vendor.state is VendorState.OPEN:
            yield Notice("VendorOpened", f"vendor {vendor.name} is open again", "Normal")


def _has_failed(status: AgentStatus, vendor: VendorStatus) -> bool:
    wanted = vendor.name in status.required_vendors
    return vendor.state in (VendorState.FAILED, VendorState.LEFT_OUT) or (
        wanted and vendor.state is VendorState.UNAVAILABLE
    )


# Devices


def _of_devices(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    if before.snapshot is after.snapshot:
        return
    known = {it.uuid: it for it in before.snapshot.devices}
    now = {it.uuid: it for it in after.snapshot.devices}
    changes = [(level, it) for it in now.values() for level in _changes(known.get(it.uuid), it)]
    own = [(level, it) for level, it in changes if not _follows_card(level, it, now, changes)]
    for (vendor, level), group in groupby(sorted(own, key=_place), key=lambda it: (it[1].vendor, it[0])):
        devices = [it for _, it in group]
        reason, state, why = level
        of_vendor = [it for it in now.values() if it.vendor == vendor]
        text = f"{_subject(vendor, devices, of_vendor)} {state}{_because(why, devices)}"
        yield Notice(reason, text, "Warning" if reason == "DeviceUnhealthy" else "Normal")


def _changes(before: DeviceStatus | None, after: DeviceStatus) -> Iterator[_Level]:
    old, new = _level(before), _level(after)
    if new is not None and new != old:
        reason, state, _ = new
        if reason != "DeviceHealthy":
            yield new
        elif old is not None:
            yield reason, f"{state} again", ""
    if before is not None and before.cordon != after.cordon:
        yield _cordoned(after)


def _level(status: DeviceStatus | None) -> _Level | None:
    """The level of a device for a notice; None where its state gets no notice."""
    if status is None:
        return ("DeviceHealthy", "healthy", "")  # a new device that is healthy gets no notice
    health = status.health
    if status.gone or health.reason in REASONS_WITHOUT_NOTICE:
        return None
    if not status.told_healthy:
        return ("DeviceUnhealthy", "unhealthy", health.reason)
    if health.state is State.HEALTHY:
        return ("DeviceHealthy", "healthy", "")
    # While contact is lost for a moment the advertised health stays, and there is no notice either.
    return None if health.reason == LOST_CONTACT else ("DeviceUnwatched", "not watched", health.reason)


def _cordoned(status: DeviceStatus) -> _Level:
    if (cordon := status.cordon) is None:
        return ("DeviceUncordoned", "given out again", "")
    by = f"{cordon.author}: {cordon.reason}" if cordon.reason else cordon.author
    return ("DeviceCordoned", f"kept from new pods, cordoned by {by}", "")


def _follows_card(
    level: _Level,
    status: DeviceStatus,
    now: Mapping[str, DeviceStatus],
    changes: Sequence[tuple[_Level, DeviceStatus]],
) -> bool:
    """Whether the device is a slice, and the notice about its card says the same."""
    card = now.get(status.device.parent or "")
    return card is not None and (_level(card) == level or (level, card) in changes)


def _place(change: tuple[_Level, DeviceStatus]) -> tuple[str, _Level, int, str]:
    level, status = change
    return status.vendor, level, status.device.index, status.uuid


def _subject(vendor: str, devices: Sequence[DeviceStatus], of_vendor: Sequence[DeviceStatus]) -> str:
    what = "device" if any(it.device.parent for it in devices) else "card"
    if len(devices) == 1:
        return f"{vendor} {what} {devices[0].uuid} is"
    names = named_list([it.uuid for it in devices], MAX_NAMED_DEVICES)
    alike = [it for it in of_vendor if what == "device" or not it.device.parent]
    count = f"all {len(alike)}" if len(devices) == len(alike) else f"{len(devices)} of {len(alike)}"
    return f"{count} {vendor} {what}s ({names}) are"


def _because(why: str, devices: Iterable[DeviceStatus]) -> str:
    if not why:
        return ""
    messages = {it.health.message for it in devices if it.health.reason == why} - {""}
    return f": {why}: {messages.pop()}" if len(messages) == 1 else f": {why}"


# Resources and allocations


def _of_other_plugins(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    for resource in sorted(after.other_plugins.keys() - before.other_plugins.keys()):
        yield Notice("ForeignPlugin", f"{resource}: {after.other_plugins[resource]}")


def _of_waits(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    """A notice when a wait begins, and none while its sentence changes as pods end."""
    for resource in sorted(after.resource_waits.keys() - before.resource_waits.keys()):
        yield Notice("ResourceWaits", "; ".join(after.resource_waits[resource]), "Normal")


def _of_units(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    """Notices when a unit begins and ceases to be kept, and none while the sentence changes as pods end."""
    was, now = ({name: it for name, (it, _) in status.kept_units.items()} for status in (before, after))
    for name in sorted(now):
        if now[name] != was.get(name):
            yield Notice("UnitKept", after.kept_units[name][1], "Warning" if now[name].why else "Normal")
    for name in sorted(was.keys() - now.keys()):
        text = f"{name} no longer counts memory in the former units of {was[name].unit} GiB"
        yield Notice("UnitChanged", text, "Normal")


def _of_refusals(before: AgentStatus, after: AgentStatus, pods: Sequence[Candidate]) -> Iterator[Notice]:
    last = max((it.number for it in before.refusals), default=0)
    fresh = [it for it in after.refusals if it.number > last]
    if fresh and (others := fresh[-1].number - last - len(fresh)):
        # This notice is first, because Events that look alike are limited in number.
        text = f"{others} more requests for devices were refused, too many at once for an Event each"
        yield Notice("AllocateRefused", f"{text}; the last refusal: {fresh[-1].text}")
    for refusal in fresh:
        pod = refused_pod(refusal, pods)
        yield Notice("AllocateRefused", refusal.text if pod else _unattributed(refusal), pod=pod)


def refused_pod(refusal: Refusal, pods: Iterable[Candidate]) -> PodRef | None:
    """The pod that was refused; None where the pod is not known.

    It is the newest pod with the refusal's text in its status, or else the only pod that was waiting.
    """
    named = [it for it in pods if it.message and refusal.text in it.message]
    if named:
        newest = max(named, key=lambda it: (it.created, it.uid))
        return PodRef(newest.namespace, newest.name, newest.uid)
    return refusal.waiting[0] if len(refusal.waiting) == 1 else None


def _unattributed(refusal: Refusal) -> str:
    """The sentence for a refusal of an unknown pod: the resource, the IDs and the pods that were waiting."""
    pods = [f"{it.namespace}/{it.name}" for it in refusal.waiting[:MAX_NAMED_DEVICES]]
    maybe = f"; the pod may be {' or '.join(pods)}" if pods else ""
    ids = ", ".join(refusal.ids[:MAX_NAMED_DEVICES])
    if len(refusal.ids) > MAX_NAMED_DEVICES:  # a refusal has its first IDs alone, so that there is no count
        ids += ", ..."
    return f"a pod that asked for {refusal.resource} was refused ({ids}){maybe}: {refusal.text}"


def _of_starts(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    last = max((it.number for it in before.starts_refused), default=0)
    for refusal in after.starts_refused:
        if refusal.number > last:
            yield Notice("StartRefused", refusal.text, pod=refusal.pod)


def _of_claims(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    last = max((it.number for it in before.swaps), default=0)
    known = {it.id: it for it in after.allocations} if after.swaps else {}
    for swap in after.swaps:
        if swap.number > last:
            pod = _holder(swap, known.get(swap.allocation))
            yield Notice("SwapRepaired", _swapped(swap, pod), "Normal", pod)


def _swapped(swap: ClaimSwap, pod: PodRef | None) -> str:
    before = f"{swap.before.namespace}/{swap.before.pod}"
    after = f"{swap.after.namespace}/{swap.after.pod}" if swap.after else "an unknown pod"
    if pod is not None and swap.after is None:
        after = f"{pod.namespace}/{pod.name}, for which no promise is left"
    return (
        f"allocation {swap.allocation} of {swap.resource} follows what the kubelet did: "
        f"it was answered for {before}, as the scheduler had promised, and is for {after}"
    )


def _holder(swap: ClaimSwap, allocation: Allocation | None) -> PodRef | None:
    """The owner's pod, or the claim's pod while the kubelet shows no name of the owner's."""
    owner, claim = allocation.owner if allocation else None, swap.after
    if owner is not None and owner.pod:
        return PodRef(owner.namespace, owner.pod, owner.uid)
    if claim is None or (owner is not None and owner.uid != claim.uid):
        return None
    return PodRef(claim.namespace, claim.pod, claim.uid)


def _of_report(before: SchedulerReport, after: SchedulerReport) -> Iterator[Notice]:
    if after.overwritten and not before.overwritten:
        now = "the agent writes its file from now on" if after.mode == "feed" else "the agent has stopped"
        what = f"{after.node_program} overwrote this node's {after.kind}"
        yield Notice("ReportOverwritten", f"{what}, {now}: {after.why}")
    if after.error and not before.error:
        text = f"the report of the cards to {after.scheduler} is not up to date: {after.error}"
        yield Notice("ReportFailed", text)
    if before.error and not after.error:
        text = f"the report of the cards to {after.scheduler} is up to date again"
        yield Notice("ReportRestored", text, "Normal")
    for sentence in after.left_out:
        if sentence not in before.left_out:
            yield Notice("CardsNotReported", sentence)


def _of_mismatches(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    for mismatch in after.placement_mismatches:
        if mismatch not in before.placement_mismatches:
            yield Notice(
                "ChoiceUnheeded",
                f"the scheduler's choice of cards is not followed: {mismatch.why}",
                pod=mismatch.pod,
            )


def _changed_allocations(before: AgentStatus, after: AgentStatus) -> Iterator[_Changed]:
    """The allocations that are new or have changed. An unchanged allocation is the same value as before."""
    if after.allocations == before.allocations:  # mostly: the status is looked at once a second
        return
    known = {it.id: it for it in before.allocations}
    for allocation in after.allocations:
        if (was := known.get(allocation.id)) is not allocation:
            yield was, allocation


def _of_overlaps(changed: Iterable[_Changed]) -> Iterator[Notice]:
    """Notices about external use of a card that another pod has."""
    for was, allocation in changed:
        owner = allocation.owner
        if (
            allocation.source is not AllocationSource.ANNOTATION
            or allocation.state is AllocationState.RELEASED
            or owner is None
        ):
            continue
        if allocation.reason and (was is None or was.reason != allocation.reason):
            pod = PodRef(owner.namespace, owner.pod, owner.uid)
            text = f"another pod uses a card of this pod, too: {allocation.reason}"
            yield Notice("CardGivenTwice", text, pod=pod)


def _of_shares(changed: Iterable[_Changed]) -> Iterator[Notice]:
    """Notices about new allocations with another share than the container requested."""
    for was, allocation in changed:
        claim = allocation.claim
        if claim is None or not claim.remark or allocation.source is not AllocationSource.ALLOCATE:
            continue
        if was is None or was.claim is None or was.claim.remark != claim.remark:
            pod = PodRef(claim.namespace, claim.pod, claim.uid)
            yield Notice("ShareAveraged", f"{allocation.resource}: {claim.remark}", "Normal", pod)


def _of_limits(changed: Iterable[_Changed]) -> Iterator[Notice]:
    """Notices about containers that got the share of another claim than their own."""
    for was, allocation in changed:
        pod, container = _pod_and_container(allocation)
        if not container or allocation.handed is None or allocation.state is AllocationState.RELEASED:
            continue
        if was is None and allocation.source is AllocationSource.CHECKPOINT:
            continue  # an earlier process of the agent made this notice
        unchanged = (
            was is not None
            and (was.handed, was.claim) == (allocation.handed, allocation.claim)
            and _pod_and_container(was) == (pod, container)
        )
        if not unchanged:
            yield Notice("LimitsDiffer", _differing(allocation, allocation.handed, container), pod=pod)


def _pod_and_container(allocation: Allocation) -> tuple[PodRef | None, str]:
    """The pod and the container of the claim, or else of the owner; (None, "") where neither is known."""
    holder = allocation.claim or allocation.owner
    if holder is None or (allocation.claim is None and not holder.pod):
        return None, ""
    return PodRef(holder.namespace, holder.pod, holder.uid), holder.container


def _differing(allocation: Allocation, handed: Mapping[str, str], container: str) -> str:
    promised = "nothing that is left" if allocation.claim is None else _share(allocation.claim.parameters)
    return (
        f"allocation {allocation.id} of {allocation.resource}: container {container} got {_share(handed)}, "
        f"the scheduler promised {promised}; the share of a running container cannot be changed: create the "
        "pod again"
    )


def _share(parameters: Mapping[str, str]) -> str:
    limits = ", ".join(f"{shorten(key)}={shorten(it)}" for key, it in sorted(parameters.items()))
    return limits or "no limits"


def _of_locks(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    for sentence in after.stale_locks:
        if sentence not in before.stale_locks:
            yield Notice("LockExpired", sentence)


def _of_usage(before: AgentStatus, after: AgentStatus) -> Iterator[Notice]:
    """Notices about alarms that came. An alarm that holds on is equal in both statuses."""
    known = set(before.usage_alarms)
    for alarm in after.usage_alarms:
        if alarm in known:
            continue
        who = f"container {alarm.container}" if alarm.container else "a container"
        where = f"card {alarm.uuid} ({alarm.resource})"
        time = f"{alarm.seconds / 60:.0f} min" if alarm.seconds >= 120 else f"{alarm.seconds:.0f} s"
        if alarm.reason == "LimitExceeded":
            used, limit = alarm.memory >> 20, alarm.memory_limit >> 20
            what = f"uses {used} MiB of the memory of {where} for {time}, and was granted {limit} MiB"
        else:
            what = f"holds {where} and has not used the card for {time}"
        yield Notice(
            alarm.reason,
            f"{who} {what}",
            "Warning" if alarm.reason == "LimitExceeded" else "Normal",
            PodRef(alarm.namespace, alarm.pod, alarm.uid),
        )

"""Rules of health: bad news at once, good news proven. Pure; time comes in as an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.core.model import Health
from agent.vendor_api.agent import Device, Fault, HealthEvent, Proof, State

LOST_CONTACT = "lost-contact"


@dataclass(frozen=True, slots=True)
class HealthTiming:
    """How patient the rules are; seconds."""

    bad_polls: int = 3  # failed polls in a row before a device is called unhealthy
    good_polls: int = 2  # clean polls before a transient fault is over ...
    good_for: float = 10.0  # ... and how long it must have been clean
    patience: float = 30.0  # how long the kubelet keeps hearing the last state after contact is lost
    forget_after: float = 600.0  # how long an absent free card stays listed


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """What is remembered of one device's health. `fault` None is healthy."""

    fault: Fault | None = None
    since: float = 0.0
    told_healthy: bool = True
    bad: int = 0
    good: int = 0
    good_since: float | None = None
    lost: str = ""
    lost_since: float | None = None
    #: Whether an event told of the fault, not the polls: these do not bring the device's watch back then.
    by_event: bool = False
    #: The device's counters at the last good look. They change all the time and make no record another one.
    counters: Mapping[str, int] = field(default_factory=dict, compare=False)
    #: Whether the driver wanted something done to the device when it last said.
    recovery_due: bool = False

    @property
    def sticky(self) -> bool:
        return self.fault is not None and bool(self.fault.cleared_by)

    @property
    def cleared_by(self) -> tuple[Proof, ...]:
        """What its fault waits for, beside an operator's word."""
        return self.fault.cleared_by if self.fault else ()

    def health(self) -> Health:
        """What is said of the device. A known fault outlives lost contact."""
        if self.lost_since is not None and (self.fault is None or self.fault.state is State.UNKNOWN):
            return Health(State.UNKNOWN, LOST_CONTACT, self.lost, self.lost_since)
        if self.fault is None:
            return Health(State.HEALTHY, since=self.since)
        return Health(self.fault.state, self.fault.reason, self.fault.message, self.since)


def polled(record: HealthRecord, fault: Fault | None, now: float, timing: HealthTiming) -> HealthRecord:
    """Take in what reading the device said. Contact is there, whatever it said."""
    record = _found_again(record, now, timing)
    if fault is not None and not (fault.state is State.UNKNOWN and _is_real(record.fault)):
        # What decides nothing is not counted: each change of a record is written to disk.
        record = replace(record, bad=min(record.bad + 1, timing.bad_polls), good=0, good_since=None)
        return _with_fault(record, fault, now) if record.bad >= timing.bad_polls else record
    record = replace(record, bad=0)
    unwatched = record.fault is not None and record.fault.state is State.UNKNOWN and record.by_event
    if record.fault is None or record.sticky or unwatched:
        return record
    since = now if record.good_since is None else record.good_since
    record = replace(record, good=record.good + 1, good_since=since)
    if record.good >= timing.good_polls and now - since >= timing.good_for:
        return HealthRecord(since=now, counters=record.counters, recovery_due=record.recovery_due)
    return record


def observed(record: HealthRecord, event: HealthEvent, now: float) -> HealthRecord:
    """Take in an event: bad news counts at once, good news only with the proof that the fault asks for."""
    if event.recovery_due or event.proof is Proof.RESET:
        record = replace(record, recovery_due=event.recovery_due)
    if event.fault is not None:
        return _with_fault(record, event.fault, now, by_event=True)
    if record.fault is not None and record.fault.state is State.UNKNOWN:
        return replace(record, fault=None, since=now, bad=0, by_event=False)  # something watches it now
    return proven(record, event.proof, now) if event.proof else record


def proven(record: HealthRecord, proof: Proof, now: float) -> HealthRecord:
    """Take in a proof: a sticky fault that it clears becomes a transient one, which clean polls end."""
    if record.fault is None or proof not in record.fault.cleared_by:
        return record
    return _transient(record, record.fault, now)


def cleared(record: HealthRecord, now: float) -> HealthRecord:
    """Take in an operator's word, which stands for every proof; what the device still shows counts anew."""
    return _transient(record, record.fault, now) if record.fault is not None and record.sticky else record


def shown(record: HealthRecord, device: Device) -> tuple[Proof, ...]:
    """What a look at the device proves, beside what is remembered of it; a broken one proves nothing.

    One that counts from 0 again had its driver loaded anew, one that waits for nothing any more was reset.
    """
    if device.fault is not None:
        return ()
    anew = any(device.counters.get(name, before) < before for name, before in record.counters.items())
    reset = record.recovery_due and device.recovery_due is False
    return (Proof.DRIVER_RELOAD,) * anew + (Proof.RESET,) * reset


def noted(record: HealthRecord, device: Device) -> HealthRecord:
    """Keep what the next look is held against. Of a broken device that is what it waits for, and no more."""
    if device.fault is not None:
        return replace(record, recovery_due=True) if device.recovery_due else record
    due = record.recovery_due if device.recovery_due is None else device.recovery_due
    return replace(record, recovery_due=due, counters={**record.counters, **device.counters})


def _transient(record: HealthRecord, fault: Fault, now: float) -> HealthRecord:
    return replace(record, fault=replace(fault, cleared_by=()), good=0, good_since=now, bad=0)


def lost(record: HealthRecord, why: str, now: float) -> HealthRecord:
    """Contact is gone: the state is unknown, and what the kubelet heard last stays for a while."""
    if record.lost_since is not None:
        return record
    return replace(record, lost=why, lost_since=now, good=0, good_since=None)


def ticked(record: HealthRecord, now: float, timing: HealthTiming) -> HealthRecord:
    """Let time pass: patience with lost contact ends."""
    return replace(record, told_healthy=_told(record, now, timing))


def _told(record: HealthRecord, now: float, timing: HealthTiming) -> bool:
    if _is_real(record.fault):
        return False
    if record.lost_since is None:
        return True  # healthy, or unknown for want of a source
    return record.told_healthy and now - record.lost_since < timing.patience


def deadline(record: HealthRecord, timing: HealthTiming) -> float | None:
    """When `ticked` will next say something new."""
    if record.lost_since is None or not record.told_healthy:
        return None
    return record.lost_since + timing.patience


def not_ahead(record: HealthRecord, now: float) -> HealthRecord:
    """The record without times that are yet to come: one written while the clock was ahead."""
    return replace(
        record,
        since=min(record.since, now),
        good_since=None if record.good_since is None else min(record.good_since, now),
        lost_since=None if record.lost_since is None else min(record.lost_since, now),
    )


def remembered(record: HealthRecord) -> bool:
    """Whether the record must outlive the process. That nothing watches a device is said anew."""
    return _is_real(record.fault)


def _found_again(record: HealthRecord, now: float, timing: HealthTiming) -> HealthRecord:
    if record.lost_since is None:
        return record
    told = record.told_healthy and now - record.lost_since < timing.patience
    too_long = record.fault is None and not told
    back = replace(record, lost="", lost_since=None)
    # The kubelet was told Unhealthy meanwhile, so coming back takes the proof of clean polls.
    return replace(back, fault=Fault(LOST_CONTACT, record.lost), since=now) if too_long else back


def _is_real(fault: Fault | None) -> bool:
    return fault is not None and fault.state is not State.UNKNOWN


def _with_fault(record: HealthRecord, fault: Fault, now: float, *, by_event: bool = False) -> HealthRecord:
    if fault.state is State.UNKNOWN and _is_real(record.fault):
        return record  # that nothing watches the device says nothing of what is wrong with it
    if record.fault is not None and not _worse(fault, record.fault):
        return replace(record, good=0, good_since=None)
    same = record.fault is not None and record.fault.state is fault.state
    record = replace(record, fault=fault, good=0, good_since=None, by_event=by_event)
    return record if same else replace(record, since=now)


def _worse(new: Fault, old: Fault) -> bool:
    """Whether the new fault is harder to clear than the old one, or the old one told less."""
    if old.state is State.UNKNOWN:
        return True
    if not new.cleared_by:
        return False
    return not old.cleared_by or set(new.cleared_by) < set(old.cleared_by)

"""Rules of health: a fault counts at once, recovery needs proof. Pure; the time is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.core.devices.health_thresholds import HealthThresholds
from agent.core.model import Health
from agent.vendor_api.agent import Device, Fault, HealthEvent, Proof, State

LOST_CONTACT = "lost-contact"


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """What is remembered of one device's health; no fault means healthy. Times are Unix seconds."""

    fault: Fault | None = None
    since: float = 0.0
    #: The advertised health: whether the last list called the device healthy.
    told_healthy: bool = True
    #: Failed polls in a row, up to `HealthThresholds.bad_polls`.
    bad: int = 0
    #: Clean polls in a row, and the time of the first one.
    good: int = 0
    good_since: float | None = None
    #: Why contact is lost, and since when; None while there is contact.
    lost: str = ""
    lost_since: float | None = None
    #: Whether an event and not a poll reported the fault. Clean polls do not end an unknown state then.
    by_event: bool = False
    #: The device's counters at the last good poll. They change all the time, so they do not count in `==`.
    counters: Mapping[str, int] = field(default_factory=dict, compare=False)
    #: Whether the driver wanted the device to be reset or the like when it last reported.
    recovery_due: bool = False

    @property
    def sticky(self) -> bool:
        return self.fault is not None and bool(self.fault.cleared_by)

    @property
    def cleared_by(self) -> tuple[Proof, ...]:
        """The proofs that end the fault, apart from an operator's command."""
        return self.fault.cleared_by if self.fault else ()

    def health(self) -> Health:
        """The health to show. A known fault is shown also while contact is lost."""
        if self.lost_since is not None and (self.fault is None or self.fault.state is State.UNKNOWN):
            return Health(State.UNKNOWN, LOST_CONTACT, self.lost, self.lost_since)
        if self.fault is None:
            return Health(State.HEALTHY, since=self.since)
        return Health(self.fault.state, self.fault.reason, self.fault.message, self.since)


def polled(record: HealthRecord, fault: Fault | None, now: float, timing: HealthThresholds) -> HealthRecord:
    """The record after a poll that returned `fault`, or None for a clean poll. Any poll restores contact."""
    record = _found_again(record, now, timing)
    if fault is not None and not (fault.state is State.UNKNOWN and _is_real(record.fault)):
        # The count stops at the limit, because each change of a record is written to disk.
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
    """The record after an event. A fault counts at once; recovery needs a proof that the fault accepts."""
    if event.recovery_due or event.proof is Proof.RESET:
        record = replace(record, recovery_due=event.recovery_due)
    if event.fault is not None:
        return _with_fault(record, event.fault, now, by_event=True)
    if record.fault is not None and record.fault.state is State.UNKNOWN:
        return replace(record, fault=None, since=now, bad=0, by_event=False)  # the device is watched again
    return proven(record, event.proof, now) if event.proof else record


def proven(record: HealthRecord, proof: Proof, now: float) -> HealthRecord:
    """The record after a proof: a sticky fault that accepts it becomes transient, and clean polls end it."""
    if record.fault is None or proof not in record.fault.cleared_by:
        return record
    return _transient(record, record.fault, now)


def cleared(record: HealthRecord, now: float) -> HealthRecord:
    """The record after an operator's command `health clear`, which counts as every proof.

    The fault becomes transient. A fault that the device still shows counts again at the next polls.
    """
    return _transient(record, record.fault, now) if record.fault is not None and record.sticky else record


def proofs_of_poll(record: HealthRecord, device: Device) -> tuple[Proof, ...]:
    """The proofs that follow from a poll, compared with the record. A device with a fault proves nothing.

    A counter that went back shows that the driver was loaded again. A recovery that is no longer due shows a
    reset.
    """
    if device.fault is not None:
        return ()
    reloaded = any(device.counters.get(name, before) < before for name, before in record.counters.items())
    reset = record.recovery_due and device.recovery_due is False
    return (Proof.DRIVER_RELOAD,) * reloaded + (Proof.RESET,) * reset


def with_baseline(record: HealthRecord, device: Device) -> HealthRecord:
    """The record with the values that the next poll is compared with.

    Of a device with a fault only a due recovery is kept.
    """
    if device.fault is not None:
        return replace(record, recovery_due=True) if device.recovery_due else record
    due = record.recovery_due if device.recovery_due is None else device.recovery_due
    return replace(record, recovery_due=due, counters={**record.counters, **device.counters})


def _transient(record: HealthRecord, fault: Fault, now: float) -> HealthRecord:
    return replace(record, fault=replace(fault, cleared_by=()), good=0, good_since=now, bad=0)


def lost(record: HealthRecord, why: str, now: float) -> HealthRecord:
    """The record after lost contact: the state is unknown, the advertised health stays for a while."""
    if record.lost_since is not None:
        return record
    return replace(record, lost=why, lost_since=now, good=0, good_since=None)


def ticked(record: HealthRecord, now: float, timing: HealthThresholds) -> HealthRecord:
    """The record at a later time: after `patience` seconds of lost contact the device is unhealthy."""
    return replace(record, told_healthy=_is_advertised_healthy(record, now, timing))


def _is_advertised_healthy(record: HealthRecord, now: float, timing: HealthThresholds) -> bool:
    if _is_real(record.fault):
        return False
    if record.lost_since is None:
        return True  # healthy, or unknown for want of a source
    return record.told_healthy and now - record.lost_since < timing.patience


def deadline(record: HealthRecord, timing: HealthThresholds) -> float | None:
    """When `ticked` will next change the record, Unix seconds; None where time changes nothing."""
    if record.lost_since is None or not record.told_healthy:
        return None
    return record.lost_since + timing.patience


def without_future_times(record: HealthRecord, now: float) -> HealthRecord:
    """The record without times after `now`. A record has such times if the clock was set back since."""
    return replace(
        record,
        since=min(record.since, now),
        good_since=None if record.good_since is None else min(record.good_since, now),
        lost_since=None if record.lost_since is None else min(record.lost_since, now),
    )


def must_be_saved(record: HealthRecord) -> bool:
    """Whether the record must outlive the process. An unknown state is found again and need not."""
    return _is_real(record.fault)


def _found_again(record: HealthRecord, now: float, timing: HealthThresholds) -> HealthRecord:
    if record.lost_since is None:
        return record
    advertised = record.told_healthy and now - record.lost_since < timing.patience
    too_long = record.fault is None and not advertised
    back = replace(record, lost="", lost_since=None)
    # The device was advertised as unhealthy meanwhile, so only clean polls make it healthy again.
    return replace(back, fault=Fault(LOST_CONTACT, record.lost), since=now) if too_long else back


def _is_real(fault: Fault | None) -> bool:
    return fault is not None and fault.state is not State.UNKNOWN


def _with_fault(record: HealthRecord, fault: Fault, now: float, *, by_event: bool = False) -> HealthRecord:
    if fault.state is State.UNKNOWN and _is_real(record.fault):
        return record  # a fault that is known stays, although the device is no longer watched
    if record.fault is not None and not _worse(fault, record.fault):
        return replace(record, good=0, good_since=None)
    same = record.fault is not None and record.fault.state is fault.state
    record = replace(record, fault=fault, good=0, good_since=None, by_event=by_event)
    return record if same else replace(record, since=now)


def _worse(new: Fault, old: Fault) -> bool:
    """Whether the new fault replaces the old one: it is harder to clear, or the old state was unknown."""
    if old.state is State.UNKNOWN:
        return True
    if not new.cleared_by:
        return False
    return not old.cleared_by or set(new.cleared_by) < set(old.cleared_by)

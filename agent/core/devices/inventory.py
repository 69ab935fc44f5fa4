"""The node's devices: discovery and health of every vendor, folded into one snapshot."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from agent.core.devices import health_rules
from agent.core.devices.health_rules import LOST_CONTACT, HealthRecord, HealthTiming
from agent.core.errors import NoSuchDevice
from agent.core.model import (
    AbsentDevice,
    Cordon,
    DeviceStatus,
    Health,
    NodeSnapshot,
    VendorState,
    VendorStatus,
)
from agent.vendor_api.agent import DRIVER_NOT_LOADED, Device, HealthEvent, Proof, State

#: Devices of one vendor whose names are kept; those that went longest ago go first.
REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class _Known:
    """A device as last seen, and what is remembered of its health."""

    vendor: str
    device: Device
    record: HealthRecord


class ClearedFaults(StrEnum):
    """What an operator's word has done."""

    CLEARED = "cleared"
    FORGOTTEN = "forgotten"
    NOTHING = "nothing"


class Inventory:
    """Folds what vendors report. It never forgets a device that is in use, nor a fault without its proof."""

    def __init__(
        self,
        remembered: Mapping[str, HealthRecord] | None = None,
        timing: HealthTiming | None = None,
        now: float = math.inf,
        devices: Mapping[str, Sequence[Device]] | None = None,
        cordons: Mapping[str, Cordon] | None = None,
    ) -> None:
        """`now` corrects records that were written while the clock was ahead; `devices` were here before."""
        self._timing = timing or HealthTiming()
        self._remembered = {
            uuid: health_rules.not_ahead(record, now)
            for uuid, record in (remembered or {}).items()
            if health_rules.remembered(record)
        }
        #: Vendor to its devices as they last told their names, without what changes.
        self._named: dict[str, tuple[Device, ...]] = {
            vendor: tuple(its) for vendor, its in (devices or {}).items()
        }
        #: An operator's word on a device, by its uuid; it holds for the device's slices, too.
        self._cordons: dict[str, Cordon] = dict(cordons or {})
        #: Whether the names are of an earlier boot: who was there then may be gone for good.
        self._rebooted = False
        #: Vendors that list no devices, where there were some when the agent ran before.
        self._emptied: set[str] = set()
        self._known: dict[str, _Known] = {}
        self._vendors: dict[str, VendorStatus] = {}
        self._driver_gone: set[str] = set()
        #: Vendor to events that came before the device that they are for.
        self._early: dict[str, list[HealthEvent]] = {}
        #: Slices that are not there any more, as their cards show.
        self._unmade: set[str] = set()
        self._now = 0.0  # the latest time that was told

    def enable(self, statuses: Iterable[VendorStatus]) -> None:
        """Name the vendors that count; what is known of others is dropped.

        One that is left out is asked no more: its devices are unknown from now on.
        """
        wanted: dict[str, VendorStatus] = {}
        for status in statuses:  # a second plugin of the same name is left out, the first one serves
            if wanted.get(status.name, status).state is VendorState.LEFT_OUT:
                wanted[status.name] = status
            else:
                wanted.setdefault(status.name, status)
        before = self._vendors
        self._vendors = {name: _status_of(before.get(name), status) for name, status in wanted.items()}
        for uuid, it in list(self._known.items()):
            if it.vendor not in wanted:
                self._forget(uuid, it.record)
            elif (status := wanted[it.vendor]).state is VendorState.LEFT_OUT:
                self._update(uuid, health_rules.lost(it.record, status.reason, self._now))

    def discovered(self, vendor: str, devices: Sequence[Device], now: float) -> None:
        """Take in a full list. An empty one where devices were is a broken library, not an empty node."""
        if not self._serves(vendor):
            return
        self._now = now
        devices = self._recognised(vendor, devices)
        had = [uuid for uuid, it in self._known.items() if it.vendor == vendor]
        if not devices and (missing := len(had) or self._had_before(vendor)):
            self.lost(vendor, VendorState.FAILED, _emptied(missing), now)
            return
        self._emptied.discard(vendor)
        foreign = {it.uuid: owner for it in devices if (owner := self._owner(it.uuid)) not in (None, vendor)}
        reason = "; ".join(f"{uuid} is listed by {owner} already" for uuid, owner in foreign.items())
        self._vendors[vendor] = VendorStatus(vendor, VendorState.OPEN, reason)
        ours = [device for device in devices if device.uuid not in foreign]
        self._prove_slices({device.uuid: self._see(vendor, device, now) for device in ours}, now)
        self._take(vendor, self._early.pop(vendor, ()), now)
        if devices and vendor in self._driver_gone:
            self._driver_gone.discard(vendor)
            self._prove(vendor, Proof.DRIVER_RELOAD, now)
        listed = {device.uuid: device for device in devices}
        for uuid in had:
            if uuid not in listed:
                self._miss(uuid, listed, now)

    def _recognised(self, vendor: str, devices: Sequence[Device]) -> Sequence[Device]:
        """Cards that cannot tell their names, with their slices, under the names that they had."""
        listed = {it.uuid for it in devices if not it.nameless}
        away = [it for it in self._named.get(vendor, ()) if it.uuid not in listed]
        found: list[Device] = []
        for device in devices:
            same = next((it for it in away if device.nameless and _same_place(it, device)), None)
            if same is None:
                found.append(device)
                continue
            back = [it for it in away if same.uuid in (it.uuid, it.parent)]
            away = [it for it in away if it not in back]
            found += [replace(it, fault=device.fault, recovery_due=device.recovery_due) for it in back]
        named = tuple(replace(_lasting(it), fault=None, links=()) for it in found if not it.nameless)
        self._named[vendor] = (*named, *away)[:REMEMBERED]
        return found

    def _had_before(self, vendor: str) -> int:
        """How many cards the vendor had when the agent ran before; a reboot may have taken them."""
        if self._rebooted:
            del self._named[vendor]
        missing = sum(it.parent is None for it in self._named.get(vendor, ()))
        if missing:
            self._emptied.add(vendor)
        return missing

    def _miss(self, uuid: str, listed: Mapping[str, Device], now: float) -> None:
        """A device is not in the list. A slice whose card reads well was unmade: nobody waits for it."""
        it = self._known[uuid]
        if it.device.nameless:
            self._forget(uuid, HealthRecord())  # it has told its name, or was taken out
            return
        record = health_rules.lost(it.record, "the library no longer lists it", now)
        card = listed.get(it.device.parent or "")
        if card is not None and card.fault is None:
            record = replace(record, told_healthy=False)
            self._unmade.add(uuid)
        self._update(uuid, record)

    def _serves(self, vendor: str) -> bool:
        """Whether the vendor counts; the last words of one that was replaced do not."""
        status = self._vendors.get(vendor)
        return status is not None and status.state is not VendorState.LEFT_OUT

    def _owner(self, uuid: str) -> str | None:
        """The vendor that listed the card first. Another one that lists it, too, does not take it over."""
        known = self._known.get(uuid)
        return known.vendor if known else None

    def _see(self, vendor: str, device: Device, now: float) -> Sequence[Proof]:
        """Take in one look at a device; what that proves."""
        known = self._known.get(device.uuid)
        timing = self._timing
        if known is None:
            record = self._remembered.pop(device.uuid, HealthRecord(since=now))
            # The first look decides at once: there is no good state to protect yet.
            timing = replace(timing, bad_polls=1)
        else:
            record = known.record
            links = device.links or known.device.links
            minor = known.device.minor if device.minor is None else device.minor  # not read this time
            memory = device.memory or known.device.memory  # what it counts must not go while it cannot tell
            device = replace(device, links=links, minor=minor, memory=memory)
        proofs = health_rules.shown(record, device)
        for proof in proofs:
            record = health_rules.proven(record, proof, now)
        record = health_rules.noted(record, device)
        record = health_rules.ticked(
            health_rules.polled(record, device.fault, now, timing), now, self._timing
        )
        self._known[device.uuid] = _Known(vendor, _lasting(device), record)
        self._unmade.discard(device.uuid)
        return proofs

    def _prove_slices(self, proofs: Mapping[str, Sequence[Proof]], now: float) -> None:
        """What was proven of cards, by uuid, is proven of their slices."""
        for uuid, it in list(self._known.items()):
            for proof in proofs.get(it.device.parent or "", ()):
                self._update(uuid, health_rules.proven(self._known[uuid].record, proof, now))

    def observed(self, vendor: str, events: Sequence[HealthEvent], now: float) -> None:
        """Take in events. A card's proof is its slices'. One for a device that nobody listed marks nobody.

        It waits for the next list: a new device may be heard of a moment before it is listed.
        """
        self._now = now
        strange = [it for it in events if it.uuid is not None and it.uuid not in self._known]
        if strange:
            self._early[vendor] = [*self._early.get(vendor, ()), *strange][-REMEMBERED:]
        self._take(vendor, events, now)

    def _take(self, vendor: str, events: Iterable[HealthEvent], now: float) -> None:
        for event in events:
            for uuid in self._meant(event):
                if (it := self._known[uuid]).vendor == vendor:
                    record = health_rules.observed(it.record, event, now)
                    self._update(uuid, health_rules.ticked(record, now, self._timing))

    def _meant(self, event: HealthEvent) -> Collection[str]:
        """The known devices that an event speaks of. Most speak of one, and there may be many of both."""
        if event.uuid is None:
            return tuple(self._known)
        its = [event.uuid] if event.uuid in self._known else []
        if event.proof:
            its += [uuid for uuid, it in self._known.items() if it.device.parent == event.uuid]
        return its

    def lost(self, vendor: str, state: VendorState, reason: str, now: float) -> None:
        """The vendor cannot be asked: its devices are unknown, not gone."""
        if not self._serves(vendor):
            return
        self._now = now
        self._vendors[vendor] = VendorStatus(vendor, state, reason)
        if reason == DRIVER_NOT_LOADED or reason.startswith(f"{DRIVER_NOT_LOADED}:"):
            self._driver_gone.add(vendor)
        for uuid, it in list(self._known.items()):
            if it.vendor == vendor:
                self._update(uuid, health_rules.lost(it.record, reason, now))

    def rebooted(self, now: float) -> None:
        """The node was started anew since the faults were remembered."""
        self._rebooted = True
        self._remembered = {
            uuid: health_rules.proven(record, Proof.REBOOT, now) for uuid, record in self._remembered.items()
        }

    def tick(self, now: float, in_use: Collection[str]) -> None:
        """Let time pass; free cards that stay away are forgotten."""
        self._now = now
        for uuid, it in list(self._known.items()):
            away = it.record.lost_since
            open_ = self._vendors[it.vendor].state is VendorState.OPEN
            patience = 0.0 if uuid in self._unmade else self._timing.forget_after
            if away is not None and open_ and uuid not in in_use and now - away >= patience:
                self._forget(uuid, it.record)
            else:
                self._update(uuid, health_rules.ticked(it.record, now, self._timing))

    def _forget(self, uuid: str, record: HealthRecord) -> None:
        """Drop a card; what only a proof ends is kept for its return."""
        del self._known[uuid]
        self._unmade.discard(uuid)
        if record.sticky:
            self._remembered[uuid] = record

    def next_deadline(self) -> float | None:
        """When `tick` will next change something that the kubelet hears."""
        times = [health_rules.deadline(it.record, self._timing) for it in self._known.values()]
        return min((time for time in times if time is not None), default=None)

    def snapshot(self) -> NodeSnapshot:
        devices = sorted(self._known.values(), key=_place)
        return NodeSnapshot(
            vendors=tuple(self._vendors[name] for name in sorted(self._vendors)),
            devices=tuple(self._status(it) for it in devices),
            absent=tuple(self._absent()),
        )

    def _status(self, it: _Known) -> DeviceStatus:
        """How a device is. A slice is never better than its card."""
        uuid, parent, record = it.device.uuid, it.device.parent or "", it.record
        gone, cordon = uuid in self._unmade, self._cordons.get(uuid, self._cordons.get(parent))
        own = DeviceStatus(
            it.vendor, it.device, record.health(), record.told_healthy, gone, cordon, record.cleared_by
        )
        card = self._known.get(parent)
        if card is None or not own.told_healthy or card.record.told_healthy:
            return own
        health_of_card = card.record.health()
        message = f"its card {card.device.uuid}: {health_of_card.message}".removesuffix(": ")
        its = replace(health_of_card, message=message)
        return replace(own, health=its, told_healthy=False, cleared_by=card.record.cleared_by)

    def _absent(self) -> Iterator[AbsentDevice]:
        """Devices that are not listed and have a fault, a cordon, or a library that lists none any more."""
        vendors = {it.uuid: vendor for vendor, its in self._named.items() for it in its}
        emptied = (uuid for uuid, vendor in vendors.items() if vendor in self._emptied)
        for uuid in sorted({*self._remembered, *self._cordons, *emptied} - self._known.keys()):
            record = self._remembered.get(uuid)
            unseen = Health(State.UNKNOWN, LOST_CONTACT, "not listed since the agent started")
            yield AbsentDevice(
                uuid,
                vendors.get(uuid, ""),
                record.health() if record else unseen,
                self._cordons.get(uuid),
                record.cleared_by if record else (),
            )

    # An operator's words

    def find(self, named: str) -> str:
        """The uuid of a device that is known or remembered, by itself or by how it alone begins.

        Raises:
            NoSuchDevice: None is called so, or several are.
        """
        here = {uuid for uuid, it in self._known.items() if not it.device.nameless}
        before = {it.uuid for its in self._named.values() for it in its}
        known = sorted(here | before | self._remembered.keys() | self._cordons.keys())
        found = [uuid for uuid in known if named and uuid.startswith(named)]
        if named not in found and len(found) != 1:
            raise NoSuchDevice(named, found, known)
        return named if named in found else found[0]

    def cordon(self, uuid: str, cordon: Cordon) -> None:
        """Give the device to nobody new."""
        self._cordons[uuid] = cordon

    def uncordon(self, uuid: str) -> bool:
        """Give it out again; whether it was cordoned."""
        return self._cordons.pop(uuid, None) is not None

    def cordons(self) -> Mapping[str, Cordon]:
        """What must outlive the process: every cordon, also of devices that are not listed."""
        return dict(self._cordons)

    def clear(self, uuid: str, now: float, in_use: Collection[str]) -> ClearedFaults:
        """Take an operator's word for a proof; a device that is not there and free is forgotten."""
        self._now = now
        slices = [it.device.uuid for it in self._known.values() if it.device.parent == uuid]
        done = [self._clear(it, now, in_use) for it in (uuid, *slices)]
        return next((it for it in done if it is not ClearedFaults.NOTHING), ClearedFaults.NOTHING)

    def _clear(self, uuid: str, now: float, in_use: Collection[str]) -> ClearedFaults:
        known = self._known.get(uuid)
        away = known is None or known.record.lost_since is not None
        if away and uuid not in in_use:
            self._drop(uuid)
            return ClearedFaults.FORGOTTEN
        record = known.record if known else self._remembered.get(uuid, HealthRecord())
        if not record.sticky:
            return ClearedFaults.NOTHING
        if known:
            self._update(uuid, health_rules.cleared(record, now))
        else:
            self._remembered[uuid] = health_rules.cleared(record, now)
        return ClearedFaults.CLEARED

    def _drop(self, uuid: str) -> None:
        """Know nothing of a device any more, but that it is cordoned."""
        self._known.pop(uuid, None)
        self._remembered.pop(uuid, None)
        self._unmade.discard(uuid)
        for vendor, its in self._named.items():
            self._named[vendor] = tuple(it for it in its if uuid not in (it.uuid, it.parent))

    def records(self) -> Mapping[str, HealthRecord]:
        """What must outlive the process: every fault, also of devices not seen since the start."""
        seen = {
            uuid: it.record
            for uuid, it in self._known.items()
            if health_rules.remembered(it.record) and not it.device.nameless
        }
        return {**self._remembered, **seen}

    def named(self) -> Mapping[str, tuple[Device, ...]]:
        """What must outlive the process, too: who was where, for a device that cannot tell its name."""
        return dict(self._named)

    def _prove(self, vendor: str, proof: Proof, now: float) -> None:
        for uuid, it in list(self._known.items()):
            if it.vendor == vendor:
                self._update(uuid, health_rules.proven(it.record, proof, now))

    def _update(self, uuid: str, record: HealthRecord) -> None:
        self._known[uuid] = replace(self._known[uuid], record=record)


def _emptied(missing: int) -> str:
    return (
        f"the library lists no devices, it had {missing}; "
        "if they are gone for good: reboot, or `xpu-agent health clear UUID` of each"
    )


def _lasting(device: Device) -> Device:
    """The device without what its record keeps."""
    return replace(device, counters={}, recovery_due=None)


def _same_place(known: Device, nameless: Device) -> bool:
    """Whether the card that was known is where the other one is. A lost one has an index at most."""
    if known.parent is not None:
        return False
    return known.pci == nameless.pci if nameless.pci else known.index == nameless.index


def _place(it: _Known) -> tuple[str, int, int, str]:
    """A card, then its slices."""
    number = -1 if it.device.slice is None else it.device.slice
    return it.vendor, it.device.index, number, it.device.uuid


def _status_of(before: VendorStatus | None, now: VendorStatus) -> VendorStatus:
    """What is known of a vendor stays known, but being left out is the config's word alone."""
    if before is None or VendorState.LEFT_OUT in (before.state, now.state):
        return now
    return before


def left_out(name: str, reason: str) -> VendorStatus:
    """A vendor whose plugin is broken."""
    return VendorStatus(name, VendorState.LEFT_OUT, reason)

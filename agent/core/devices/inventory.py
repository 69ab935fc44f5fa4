"""The node's devices: what all vendors discover and report of health, folded into one snapshot."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from msgspec import Struct, structs

from agent.core.devices import health_rules
from agent.core.devices.health_rules import LOST_CONTACT, HealthRecord
from agent.core.devices.health_thresholds import HealthThresholds
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

#: How many devices of one vendor are remembered by name. The devices that left first are dropped first.
REMEMBERED = 1024


class _Known(Struct, frozen=True):
    """A device as its vendor last listed it, with its health record."""

    vendor: str
    device: Device
    record: HealthRecord


class ClearedFaults(StrEnum):
    """What an operator's command `health clear` did."""

    CLEARED = "cleared"
    FORGOTTEN = "forgotten"
    NOTHING = "nothing"


class Inventory:
    """Folds the reports of vendors. A device in use is never dropped, nor a fault that lacks its proof."""

    def __init__(
        self,
        remembered: Mapping[str, HealthRecord] | None = None,
        timing: HealthThresholds | None = None,
        now: float = math.inf,
        devices: Mapping[str, Sequence[Device]] | None = None,
        cordons: Mapping[str, Cordon] | None = None,
    ) -> None:
        """`now` caps times in `remembered`. `devices`: vendor to the devices listed before the restart."""
        self._timing = timing or HealthThresholds()
        self._remembered = {
            uuid: health_rules.without_future_times(record, now)
            for uuid, record in (remembered or {}).items()
            if health_rules.must_be_saved(record)
        }
        #: Vendor to its devices as last listed with a uuid, without counters and links.
        self._named: dict[str, tuple[Device, ...]] = {
            vendor: tuple(vendor_devices) for vendor, vendor_devices in (devices or {}).items()
        }
        #: Cordons by uuid. A cordon of a card holds for its slices, too.
        self._cordons: dict[str, Cordon] = dict(cordons or {})
        #: Whether the names are from before a reboot. A reboot may have removed those devices for good.
        self._rebooted = False
        #: Vendors that list no devices now but had devices before the restart of the agent.
        self._emptied: set[str] = set()
        self._known: dict[str, _Known] = {}
        self._vendors: dict[str, VendorStatus] = {}
        self._driver_gone: set[str] = set()
        #: Vendor to events for devices that are not listed yet.
        self._early: dict[str, list[HealthEvent]] = {}
        #: Slices that were removed: their card is listed, and they are not.
        self._unmade: set[str] = set()
        self._now = 0.0  # the time of the latest report

    def enable(self, statuses: Iterable[VendorStatus]) -> None:
        """Set the vendors in service. Devices of other vendors are dropped.

        A vendor in state LEFT_OUT is asked no more, so its devices are unknown from now on.
        """
        wanted: dict[str, VendorStatus] = {}
        for status in statuses:  # a second plugin of the same name is left out, the first one serves
            if wanted.get(status.name, status).state is VendorState.LEFT_OUT:
                wanted[status.name] = status
            else:
                wanted.setdefault(status.name, status)
        before = self._vendors
        self._vendors = {name: _status_of(before.get(name), status) for name, status in wanted.items()}
        for uuid, known in list(self._known.items()):
            if known.vendor not in wanted:
                self._forget(uuid, known.record)
            elif (status := wanted[known.vendor]).state is VendorState.LEFT_OUT:
                self._update(uuid, health_rules.lost(known.record, status.reason, self._now))

    def discovered(self, vendor: str, devices: Sequence[Device], now: float) -> None:
        """Take in a full list. An empty list after a list with devices counts as a broken library."""
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
        own_devices = [device for device in devices if device.uuid not in foreign]
        self._prove_slices({device.uuid: self._see(vendor, device, now) for device in own_devices}, now)
        self._take(vendor, self._early.pop(vendor, ()), now)
        if devices and vendor in self._driver_gone:
            self._driver_gone.discard(vendor)
            self._prove(vendor, Proof.DRIVER_RELOAD, now)
        listed = {device.uuid: device for device in devices}
        for uuid in had:
            if uuid not in listed:
                self._miss(uuid, listed, now)

    def _recognised(self, vendor: str, devices: Sequence[Device]) -> Sequence[Device]:
        """The list with nameless cards replaced by the devices that were known at the same place.

        A card that is lost on the bus cannot report its uuid. Its slices come back with it.
        """
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
        """How many cards the vendor had before the agent's restart; 0 after a reboot."""
        if self._rebooted:
            del self._named[vendor]
        missing = sum(it.parent is None for it in self._named.get(vendor, ()))
        if missing:
            self._emptied.add(vendor)
        return missing

    def _miss(self, uuid: str, listed: Mapping[str, Device], now: float) -> None:
        """Take in that a device is not listed any more. A slice of a listed, healthy card was removed."""
        known = self._known[uuid]
        if known.device.nameless:
            self._forget(uuid, HealthRecord())  # the card is listed by its uuid now, or was taken out
            return
        record = health_rules.lost(known.record, "the library no longer lists it", now)
        card = listed.get(known.device.parent or "")
        if card is not None and card.fault is None:
            record = replace(record, told_healthy=False)
            self._unmade.add(uuid)
        self._update(uuid, record)

    def _serves(self, vendor: str) -> bool:
        """Whether the vendor is in service. Late reports of a vendor that was replaced do not count."""
        status = self._vendors.get(vendor)
        return status is not None and status.state is not VendorState.LEFT_OUT

    def _owner(self, uuid: str) -> str | None:
        """The vendor that listed the card first, and that keeps the card if another vendor lists it, too."""
        known = self._known.get(uuid)
        return known.vendor if known else None

    def _see(self, vendor: str, device: Device, now: float) -> Sequence[Proof]:
        """Take in one listed device; returns the proofs that follow."""
        known = self._known.get(device.uuid)
        timing = self._timing
        if known is None:
            record = self._remembered.pop(device.uuid, HealthRecord(since=now))
            # The first poll decides at once: there is no good state to protect yet.
            timing = replace(timing, bad_polls=1)
        else:
            record = known.record
            links = device.links or known.device.links
            minor = known.device.minor if device.minor is None else device.minor  # not read this time
            memory = (
                device.memory or known.device.memory
            )  # the memory units must stay when memory is unreadable
            device = replace(device, links=links, minor=minor, memory=memory)
        proofs = health_rules.proofs_of_poll(record, device)
        for proof in proofs:
            record = health_rules.proven(record, proof, now)
        record = health_rules.with_baseline(record, device)
        record = health_rules.ticked(
            health_rules.polled(record, device.fault, now, timing), now, self._timing
        )
        self._known[device.uuid] = _Known(vendor, _lasting(device), record)
        self._unmade.discard(device.uuid)
        return proofs

    def _prove_slices(self, proofs: Mapping[str, Sequence[Proof]], now: float) -> None:
        """Apply the proofs of cards to their slices. `proofs`: card uuid to proofs."""
        for uuid, known in list(self._known.items()):
            for proof in proofs.get(known.device.parent or "", ()):
                self._update(uuid, health_rules.proven(self._known[uuid].record, proof, now))

    def observed(self, vendor: str, events: Sequence[HealthEvent], now: float) -> None:
        """Take in events. A proof for a card counts for its slices, too.

        An event for an unlisted device waits for the next list, which may follow a moment later.
        """
        self._now = now
        early = [it for it in events if it.uuid is not None and it.uuid not in self._known]
        if early:
            self._early[vendor] = [*self._early.get(vendor, ()), *early][-REMEMBERED:]
        self._take(vendor, events, now)

    def _take(self, vendor: str, events: Iterable[HealthEvent], now: float) -> None:
        for event in events:
            for uuid in self._meant(event):
                if (known := self._known[uuid]).vendor == vendor:
                    record = health_rules.observed(known.record, event, now)
                    self._update(uuid, health_rules.ticked(record, now, self._timing))

    def _meant(self, event: HealthEvent) -> Collection[str]:
        """The uuids of the known devices that an event is about. Must be fast for many single events."""
        if event.uuid is None:
            return tuple(self._known)
        uuids = [event.uuid] if event.uuid in self._known else []
        if event.proof:
            uuids += [uuid for uuid, it in self._known.items() if it.device.parent == event.uuid]
        return uuids

    def lost(self, vendor: str, state: VendorState, reason: str, now: float) -> None:
        """Take in that the vendor cannot be asked. Its devices are unknown from now on, but not gone."""
        if not self._serves(vendor):
            return
        self._now = now
        self._vendors[vendor] = VendorStatus(vendor, state, reason)
        if reason == DRIVER_NOT_LOADED or reason.startswith(f"{DRIVER_NOT_LOADED}:"):
            self._driver_gone.add(vendor)
        for uuid, known in list(self._known.items()):
            if known.vendor == vendor:
                self._update(uuid, health_rules.lost(known.record, reason, now))

    def rebooted(self, now: float) -> None:
        """Take in that the node was rebooted after the records were saved."""
        self._rebooted = True
        self._remembered = {
            uuid: health_rules.proven(record, Proof.REBOOT, now) for uuid, record in self._remembered.items()
        }

    def tick(self, now: float, in_use: Collection[str]) -> None:
        """Take in the time. Free cards that are not listed for a long time are dropped."""
        self._now = now
        for uuid, known in list(self._known.items()):
            away = known.record.lost_since
            open_ = self._vendors[known.vendor].state is VendorState.OPEN
            patience = 0.0 if uuid in self._unmade else self._timing.forget_after
            if away is not None and open_ and uuid not in in_use and now - away >= patience:
                self._forget(uuid, known.record)
            else:
                self._update(uuid, health_rules.ticked(known.record, now, self._timing))

    def _forget(self, uuid: str, record: HealthRecord) -> None:
        """Drop a device. A sticky fault is kept for its return."""
        del self._known[uuid]
        self._unmade.discard(uuid)
        if record.sticky:
            self._remembered[uuid] = record

    def next_deadline(self) -> float | None:
        """When `tick` will next change an advertised health; None where time changes nothing."""
        times = [health_rules.deadline(it.record, self._timing) for it in self._known.values()]
        return min((time for time in times if time is not None), default=None)

    def snapshot(self) -> NodeSnapshot:
        devices = sorted(self._known.values(), key=_place)
        return NodeSnapshot(
            vendors=tuple(self._vendors[name] for name in sorted(self._vendors)),
            devices=tuple(self._status(it) for it in devices),
            absent=tuple(self._absent()),
        )

    def _status(self, known: _Known) -> DeviceStatus:
        """The status of a device. A slice of an unhealthy card is unhealthy, too."""
        uuid, parent, record = known.device.uuid, known.device.parent or "", known.record
        gone, cordon = uuid in self._unmade, self._cordons.get(uuid, self._cordons.get(parent))
        own = DeviceStatus(
            known.vendor, known.device, record.health(), record.told_healthy, gone, cordon, record.cleared_by
        )
        card = self._known.get(parent)
        if card is None or not own.told_healthy or card.record.told_healthy:
            return own
        health_of_card = card.record.health()
        message = f"its card {card.device.uuid}: {health_of_card.message}".removesuffix(": ")
        health = replace(health_of_card, message=message)
        return replace(own, health=health, told_healthy=False, cleared_by=card.record.cleared_by)

    def _absent(self) -> Iterator[AbsentDevice]:
        """Devices that are not listed and have a fault, a cordon, or a vendor that lost all its devices."""
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

    # Commands of an operator

    def find(self, named: str) -> str:
        """The uuid of a known or remembered device. `named` is a uuid or an unambiguous beginning of one.

        Raises:
            NoSuchDevice: No device matches, or several do.
        """
        here = {uuid for uuid, it in self._known.items() if not it.device.nameless}
        before = {it.uuid for its in self._named.values() for it in its}
        known = sorted(here | before | self._remembered.keys() | self._cordons.keys())
        found = [uuid for uuid in known if named and uuid.startswith(named)]
        if named not in found and len(found) != 1:
            raise NoSuchDevice(named, found, known)
        return named if named in found else found[0]

    def cordon(self, uuid: str, cordon: Cordon) -> None:
        """Keep new pods from the device."""
        self._cordons[uuid] = cordon

    def uncordon(self, uuid: str) -> bool:
        """Give the device out again; returns whether it was cordoned."""
        return self._cordons.pop(uuid, None) is not None

    def cordons(self) -> Mapping[str, Cordon]:
        """All cordons by uuid, also of devices that are not listed. They must outlive the process."""
        return dict(self._cordons)

    def clear(self, uuid: str, now: float, in_use: Collection[str]) -> ClearedFaults:
        """Clear the faults of a device and its slices. A free device that is not listed is dropped."""
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
        """Drop everything about a device except its cordon."""
        self._known.pop(uuid, None)
        self._remembered.pop(uuid, None)
        self._unmade.discard(uuid)
        for vendor, devices in self._named.items():
            self._named[vendor] = tuple(it for it in devices if uuid not in (it.uuid, it.parent))

    def records(self) -> Mapping[str, HealthRecord]:
        """The records with a fault by uuid, also of devices not listed since the start.

        They must outlive the process.
        """
        seen = {
            uuid: known.record
            for uuid, known in self._known.items()
            if health_rules.must_be_saved(known.record) and not known.device.nameless
        }
        return {**self._remembered, **seen}

    def remembered_devices(self) -> Mapping[str, tuple[Device, ...]]:
        """Vendor to devices with their places. They must outlive the process, to recognise nameless cards."""
        return dict(self._named)

    def _prove(self, vendor: str, proof: Proof, now: float) -> None:
        for uuid, known in list(self._known.items()):
            if known.vendor == vendor:
                self._update(uuid, health_rules.proven(known.record, proof, now))

    def _update(self, uuid: str, record: HealthRecord) -> None:
        self._known[uuid] = structs.replace(self._known[uuid], record=record)


def _emptied(missing: int) -> str:
    return (
        f"the library lists no devices, it had {missing}; "
        "if they are gone for good: reboot, or `xpu-agent health clear UUID` of each"
    )


def _lasting(device: Device) -> Device:
    """The device without the values that its health record keeps."""
    return replace(device, counters={}, recovery_due=None)


def _same_place(known: Device, nameless: Device) -> bool:
    """Whether both have the same PCI address, or the same index where the nameless card has no address."""
    if known.parent is not None:
        return False
    return known.pci == nameless.pci if nameless.pci else known.index == nameless.index


def _place(known: _Known) -> tuple[str, int, int, str]:
    """The sort key of a device: each card before its slices."""
    number = -1 if known.device.slice is None else known.device.slice
    return known.vendor, known.device.index, number, known.device.uuid


def _status_of(before: VendorStatus | None, now: VendorStatus) -> VendorStatus:
    """The last status of a vendor stays. Only the config decides whether a vendor is left out."""
    if before is None or VendorState.LEFT_OUT in (before.state, now.state):
        return now
    return before


def left_out(name: str, reason: str) -> VendorStatus:
    """The status of a vendor with a broken plugin."""
    return VendorStatus(name, VendorState.LEFT_OUT, reason)

"""The node as the agent sees it: reports and config in, snapshot and plan out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from agent.cluster.pod_state import PodState
from agent.core.allocation.admission import Scene
from agent.core.allocation.cards_of_answers import AnswerTies, resources_of_other_plugins
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.node_locks import lock_keys, locks_on_node, named_pods
from agent.core.cell import Cell
from agent.core.devices.cards_of_resources import absent
from agent.core.devices.health_rules import HealthRecord
from agent.core.devices.inventory import ClearedFaults, Inventory
from agent.core.devices.offers import OfferedResources, VendorRules
from agent.core.devices.plan import plan
from agent.core.devices.resource_waits import ResourceWait, awaited, waits
from agent.core.devices.topology import Topology, topology
from agent.core.devices.unit_changes import KeptUnit, UnitPlan, counting
from agent.core.model import (
    Command,
    Cordon,
    DeviceStatus,
    NodeSnapshot,
    Plan,
    Resource,
    VendorState,
    VendorStatus,
)
from agent.kubelet.device_list import too_long
from agent.scheduler_api import Scheduler
from agent.vendor_api.agent import Device, HealthEvent, State, Vendor

log = structlog.get_logger(__name__)

_CLEARED = {
    ClearedFaults.CLEARED: "cleared; good looks end what is left of the fault",
    ClearedFaults.FORGOTTEN: "forgotten: it is not there, and nobody uses it",
    ClearedFaults.NOTHING: "has no fault that waits for a proof",
}

Memory = tuple[Mapping[str, HealthRecord], Mapping[str, tuple[Device, ...]]]


class NodeState:
    """Takes in reports and publishes what follows. Everything here runs on the loop and never waits."""

    def __init__(
        self,
        inventory: Inventory,
        ledger: Ledger,
        clock: Callable[[], float],
        scheduled: PodState | None = None,
        schedulers: tuple[Scheduler, ...] = (),
    ) -> None:
        """`scheduled`: the pods bound to this node and its locks, as far as an API server tells.

        `schedulers`: the registered ones, in the order in which they are heard.
        """
        self._inventory = inventory
        self._ledger = ledger
        self._clock = clock
        self.schedulers = schedulers
        self._offers = OfferedResources(reserved=[name for it in schedulers for name in it.reserved])
        self._topology = Topology()
        self._told: tuple[str, ...] = ()
        self._waits: tuple[ResourceWait, ...] = ()
        self._counting = UnitPlan()
        self.vendors: Mapping[str, Vendor] = {}
        #: What ties answers of others to the cards that are here; another value when these are others.
        self.ties = AnswerTies()
        #: What schedulers go by.
        self._wall: Callable[[], float] = time.time
        self._scheduled = scheduled or PodState()
        self.snapshot: Cell[NodeSnapshot] = Cell(NodeSnapshot())
        self.plan: Cell[Plan] = Cell({})
        #: What must outlive the process: faults and what was proven of them, and the names of devices.
        self.memory: Cell[Memory] = Cell(({}, {}))
        #: CDI specs that containers need: vendor to file name to content; and why a vendor has none.
        self.specs: Cell[Mapping[str, Mapping[str, str]]] = Cell({})
        self._unspecified: dict[str, str] = {}
        self._unwritten: Mapping[str, str] = {}
        #: What each session serves; a cell lives as long as its resource.
        self.resources: dict[str, Cell[Resource]] = {}

    def configure(
        self, vendors: Mapping[str, Vendor], wishes: Sequence[VendorRules], statuses: Sequence[VendorStatus]
    ) -> None:
        """Serve these vendors with these rules from now on."""
        # A vendor that is gone may still have allocations: its edits are needed no more, its name is.
        self.vendors = {**self.vendors, **vendors}
        self._offers.wish(wishes)
        enabled = {it.vendor.name for it in wishes}
        self.specs.set({name: specs for name, specs in self.specs.value.items() if name in enabled})
        self._unspecified = {name: why for name, why in self._unspecified.items() if name in enabled}
        self._inventory.enable(statuses)
        self.refresh()

    def discovered(self, vendor: str, devices: Sequence[Device]) -> None:
        """A vendor listed its devices."""
        self._inventory.discovered(vendor, devices, self._clock())
        self.refresh()

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None:
        """A vendor told of its devices' health."""
        self._inventory.observed(vendor, events, self._clock())
        self.refresh()

    def specified(self, vendor: str, specs: Mapping[str, str]) -> None:
        """A vendor says which CDI specs its containers need."""
        if self.specs.value.get(vendor) == specs and vendor not in self._unspecified:
            return  # said after each slice that is made
        self._unspecified.pop(vendor, None)
        self.specs.set({**self.specs.value, vendor: specs})
        self.refresh()

    def unspecified(self, vendor: str, reason: str) -> None:
        """A vendor cannot say it."""
        if self._unspecified.get(vendor) != reason:
            log.warning("CDI specs not made", vendor=vendor, reason=reason)
        self._unspecified[vendor] = reason
        self.refresh()

    def unwritten(self, errors: Mapping[str, str]) -> None:
        """The CDI specs of these vendors are not on disk; vendor to reason."""
        self._unwritten = errors
        self.refresh()

    def lost(self, vendor: str, state: VendorState, reason: str) -> None:
        """A vendor cannot be asked."""
        self._inventory.lost(vendor, state, reason, self._clock())
        self.refresh()

    def apply(self, command: Command) -> str:
        """Do what an operator commands of a device; returns what came of it.

        Raises:
            NoSuchDevice: No device is called so, or several are.
        """
        uuid = self._inventory.find(command.device)
        done = self._applied(uuid, command)
        log.warning(done, device=uuid, author=command.author, reason=command.reason)
        self.refresh()
        return f"{uuid}: {done}"

    def _applied(self, uuid: str, command: Command) -> str:
        now = self._clock()
        match command.verb:
            case "cordon":
                self._inventory.cordon(uuid, Cordon(command.author, command.reason, now))
                return "cordoned"
            case "uncordon":
                return "uncordoned" if self._inventory.uncordon(uuid) else "was not cordoned"
        return _CLEARED[self._inventory.clear(uuid, now, self._ledger.devices_in_use())]

    def tick(self) -> None:
        """Let time pass."""
        self._inventory.tick(self._clock(), self._ledger.devices_in_use())
        self.refresh()

    def seconds_to_deadline(self) -> float | None:
        """How long until time alone changes what the kubelet hears."""
        deadline = self._inventory.next_deadline()
        return None if deadline is None else max(0.0, deadline - self._clock())

    def refresh(self) -> None:
        """Publish what follows from everything known now."""
        before, after = self.snapshot.value, self._inventory.snapshot()
        if before != after:
            _log_changes(before, after)
            self._topology = topology(after)
            self.snapshot.set(after)
        if before != after or self.ties.vendors is not self.vendors:
            self.ties = AnswerTies(after.devices, self.vendors)
        usage, planned_before = self._ledger.usage(), self.plan.value
        self._counting = counting(
            self._offers.of(after), after, usage, planned_before, self._counting, _too_long
        )
        offers = self._counting.offers
        self._waits = waits(offers, after, usage)
        self._tell_missing(after)
        self.memory.set((self._inventory.records(), self._inventory.named()))
        of_others = {
            name for name in resources_of_other_plugins(self._ledger.in_use()) if not self.ties.former(name)
        }
        planned = plan(
            offers,
            after,
            before=planned_before,
            usage=usage,
            withheld=self.withheld.keys(),
            of_others=of_others,
        )
        for name, resource in planned.items():
            if name in self.resources:
                self.resources[name].set(resource)
            else:
                self.resources[name] = Cell(resource)
        for name in self.resources.keys() - planned.keys():
            del self.resources[name]
        self.plan.set(planned)

    def makes(self, resource: Resource) -> bool:
        """Whether its containers need hardware made; a vendor that is left out makes none."""
        return resource.vendor in self.vendors and self.vendors[resource.vendor].prepares(resource.name)

    @property
    def cdi_error(self) -> str:
        """Why containers may not find their devices."""
        errors = (*self._unspecified.items(), *self._unwritten.items())
        return "; ".join(f"{vendor}: {reason}" for vendor, reason in errors)

    @property
    def withheld(self) -> Mapping[str, str]:
        """Vendors, or some of their resources, of which nothing is given out now, and why: a container would
        not start.
        """
        unspecified = {name: it for name, it in self._unspecified.items() if not self.specs.value.get(name)}
        errors = {**unspecified, **self._unwritten}
        by_cdi = {name: it for name, it in self.vendors.items() if it.offers.cdi_only and name in errors}
        slices = {name: it.makes.resources if it.makes else () for name, it in by_cdi.items()}
        return {one: errors[name] for name, resources in slices.items() for one in resources or (name,)}

    @property
    def complaints(self) -> tuple[str, ...]:
        """What of the config cannot be served with the devices there are, a sentence each."""
        return tuple(
            f"vendor {vendor}: {it}" for vendor, its in self._offers.complaints.items() for it in its
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """What a person should mend of cards that are offered nevertheless, a sentence each."""
        return tuple(f"vendor {vendor}: {it}" for vendor, its in self._offers.doubts.items() for it in its)

    @property
    def waits(self) -> Mapping[str, tuple[str, ...]]:
        """What of the config is served when pods have ended; resource to sentences."""
        found: dict[str, tuple[str, ...]] = {}
        for it in self._waits:
            owners = self._ledger.owners_on(it.holder, it.held)
            found[it.resource] = (*found.get(it.resource, ()), awaited(it, owners))
        return found

    @property
    def kept_units(self) -> Mapping[str, tuple[KeptUnit, str]]:
        """Resources that count memory in another unit than the config wants, with a sentence on each."""
        return {
            it.resource: (it, it.told(self._ledger.owners_in(it.resource, it.unit)))
            for it in self._counting.kept
        }

    def _tell_missing(self, snapshot: NodeSnapshot) -> None:
        notes = (f"vendor {vendor}: {it}" for vendor, its in self._offers.notes.items() for it in its)
        waiting = (it for its in self.waits.values() for it in its)
        kept = (it for _, it in self.kept_units.values())
        sentences = (
            *absent(self._offers.plain, snapshot),
            *self.complaints,
            *notes,
            *self.doubts,
            *waiting,
            *kept,
        )
        for sentence in sentences:
            if sentence not in self._told:
                log.warning("config not served in full", what=sentence)
        self._told = sentences

    def ended(self, name: str) -> None:
        """The session of a retired resource is over; if the config has it again, the plan begins anew."""
        self.resources.pop(name, None)
        self.plan.set({key: it for key, it in self.plan.value.items() if key != name})
        self.refresh()

    def locks(self) -> tuple[str, ...]:
        """The keys of the locks that schedulers take, or dialects of the vendors that serve here."""
        return lock_keys(self.schedulers, self.vendors.values())

    def _named(self) -> frozenset[tuple[str, str]]:
        """The pods that schedulers' locks name."""
        if not (its := locks_on_node(self._scheduled.locks.annotations.value, self.locks())):
            return frozenset()
        return named_pods(its, self._wall(), self._scheduled.locks.waited(self._clock()))

    def scene(self) -> Scene:
        candidates = self._scheduled.candidates  # merged once: each Allocate asks for the scene
        return Scene(
            self.plan.value,
            self.snapshot.value,
            self._topology,
            self.vendors,
            self.withheld,
            candidates,
            self._named(),
            self._scheduled.found(candidates),
            self._waits,
            self._ledger.external(),
            self._scheduled.unseen,
            self.schedulers,
        )


def _too_long(resource: Resource) -> str:
    return str(too_long(resource) or "")


def _log_changes(before: NodeSnapshot, after: NodeSnapshot) -> None:
    """Say once what an operator may want to know."""
    for vendor in after.vendors:
        old = next((it for it in before.vendors if it.name == vendor.name), None)
        if old != vendor:
            level = log.warning if vendor.state in (VendorState.FAILED, VendorState.LEFT_OUT) else log.info
            level("vendor state changed", vendor=vendor.name, state=vendor.state, reason=vendor.reason)
    known = {it.uuid: it for it in before.devices}
    for status in after.devices:
        _log_device(known.pop(status.uuid, None), status)
    for uuid, gone in known.items():
        log.info("device forgotten", vendor=gone.vendor, device=uuid)


def _log_device(old: DeviceStatus | None, new: DeviceStatus) -> None:
    if old is not None and old.health == new.health and old.told_healthy == new.told_healthy:
        return
    level = log.info if new.health.state is State.HEALTHY else log.warning
    level(
        "device found" if old is None else "device health changed",
        vendor=new.vendor,
        device=new.uuid,
        health=new.health.state,
        reason=new.health.reason,
        message=new.health.message,
        told="Healthy" if new.told_healthy else "Unhealthy",
    )

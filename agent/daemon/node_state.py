"""The state of the node: takes in the vendors' reports and the config, publishes snapshot and plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import anyio
import structlog
from msgspec import Struct

from agent.cluster.pod_state import PodState
from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.node_lock_rules import lock_keys, locks_on_node, named_pods
from agent.core.allocation.scene import Scene
from agent.core.cell import Cell
from agent.core.devices.cards_of_resources import Offer, missing_cards
from agent.core.devices.health_rules import HealthRecord
from agent.core.devices.inventory import ClearedFaults, Inventory
from agent.core.devices.offers import OfferedResources, VendorRules
from agent.core.devices.plan import plan
from agent.core.devices.resource_waits import ResourceWait, wait_sentence, waits_of_resources
from agent.core.devices.topology import Topology, topology
from agent.core.devices.unit_changes import KeptUnit, UnitPlan, plan_units
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
from agent.core.reconciling.cards_of_answers import AnswerReader, resources_of_other_plugins
from agent.kubelet.device_list import too_long
from agent.scheduler_api import Scheduler
from agent.vendor_api.agent import Device, HealthEvent, State, Vendor

log = structlog.get_logger(__name__)

#: Device IDs that were held or let go since the last refresh and are worth another one.
MANY_IDS = 1_000

#: What `clear` answers an operator.
_CLEARED = {
    ClearedFaults.CLEARED: "cleared; healthy polls end what is left of the fault",
    ClearedFaults.FORGOTTEN: "forgotten: the device is gone and not in use",
    ClearedFaults.NOTHING: "has no fault that only a proof ends",
}

Memory = tuple[Mapping[str, HealthRecord], Mapping[str, tuple[Device, ...]]]


class _PlanInputs(Struct, frozen=True):
    """All that the plan depends on: equal inputs have the same plan.

    `in_use` stands for the ledger's usage, which follows from it.
    """

    offers: tuple[Offer, ...]
    snapshot: NodeSnapshot
    in_use: AllocationsInUse
    before: Plan
    counting: UnitPlan
    withheld: frozenset[str]
    answer_reader: AnswerReader


class NodeState:
    """Takes in reports and publishes what follows. All but two `follow_` loops never waits."""

    def __init__(
        self,
        inventory: Inventory,
        ledger: Ledger,
        clock: Callable[[], float],
        pod_state: PodState | None = None,
        schedulers: tuple[Scheduler, ...] = (),
    ) -> None:
        """`clock`: Unix time that never jumps. `pod_state`: the node's pods and locks, from the API server.

        `schedulers`: the registered ones. Where several have a claim of one container, the first counts.
        """
        self._inventory = inventory
        self._ledger = ledger
        self._clock = clock
        self.schedulers = schedulers
        self._offers = OfferedResources(reserved=[name for it in schedulers for name in it.reserved])
        self._topology = Topology()
        #: What was logged of the config that is not served in full.
        self._logged: tuple[str, ...] = ()
        self._waits: tuple[ResourceWait, ...] = ()
        self._counting = UnitPlan()
        self.vendors: Mapping[str, Vendor] = {}
        #: What ties other plugins' answers to the cards of this node; a new value when the cards change.
        self.answer_reader: Cell[AnswerReader] = Cell(AnswerReader())
        #: The time that schedulers write into their locks. It may jump.
        self._wall: Callable[[], float] = time.time
        self._pod_state = pod_state or PodState()
        self.snapshot: Cell[NodeSnapshot] = Cell(NodeSnapshot())
        self.plan: Cell[Plan] = Cell({})
        #: What must outlive the process: faults with their proofs, and the names of devices.
        self.memory: Cell[Memory] = Cell(({}, {}))
        #: CDI specs that containers need: vendor to file name to content.
        self.specs: Cell[Mapping[str, Mapping[str, str]]] = Cell({})
        #: Vendor to the reason why it has no CDI specs, or why they are not on disk.
        self._unspecified: dict[str, str] = {}
        self._unwritten: Mapping[str, str] = {}
        #: The last plan that was made, and what it was made of: most reports say the same again.
        self._planned: Plan = {}
        self._planned_from: _PlanInputs | None = None
        #: What each session serves. A cell lives as long as its resource.
        self.resources: dict[str, Cell[Resource]] = {}

    def configure(
        self, vendors: Mapping[str, Vendor], rules: Sequence[VendorRules], statuses: Sequence[VendorStatus]
    ) -> None:
        """Serve these vendors with these rules from now on."""
        # A vendor that the config leaves out may still have allocations, so it is kept.
        self.vendors = {**self.vendors, **vendors}
        self._offers.set_rules(rules)
        enabled = {it.vendor.name for it in rules}
        self.specs.set({name: specs for name, specs in self.specs.value.items() if name in enabled})
        self._unspecified = {name: why for name, why in self._unspecified.items() if name in enabled}
        self._inventory.enable(statuses)
        self.refresh()

    def discovered(self, vendor: str, devices: Sequence[Device]) -> None:
        """A vendor listed its devices."""
        self._inventory.discovered(vendor, devices, self._clock())
        self.refresh()

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None:
        """A vendor reported the health of its devices."""
        self._inventory.observed(vendor, events, self._clock())
        self.refresh()

    def specified(self, vendor: str, specs: Mapping[str, str]) -> None:
        """A vendor made the CDI specs that its containers need; file name to content."""
        if self.specs.value.get(vendor) == specs and vendor not in self._unspecified:
            return  # they come after each slice that is made
        self._unspecified.pop(vendor, None)
        self.specs.set({**self.specs.value, vendor: specs})
        self.refresh()

    def unspecified(self, vendor: str, reason: str) -> None:
        """A vendor cannot make its CDI specs."""
        if self._unspecified.get(vendor) != reason:
            log.warning("CDI specs not made", vendor=vendor, reason=reason)
        self._unspecified[vendor] = reason
        self.refresh()

    def unwritten(self, errors: Mapping[str, str]) -> None:
        """Take in which vendors' CDI specs are not on disk; vendor to reason."""
        self._unwritten = errors
        self.refresh()

    def lost(self, vendor: str, state: VendorState, reason: str) -> None:
        """A vendor's process cannot be asked any more."""
        self._inventory.lost(vendor, state, reason, self._clock())
        self.refresh()

    def apply(self, command: Command) -> str:
        """Do what an operator commands of a device; returns what came of it.

        Raises:
            NoSuchDevice: No device has this name, or several have.
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

    def all_vendors(self) -> tuple[Vendor, ...]:
        """The vendors that serve here, and those that did since the start."""
        return tuple(self.vendors.values())

    async def follow_time(self, at_most: float) -> None:
        """Publish what time alone changes, for ever: at each deadline, and at least every so many seconds."""
        while True:
            deadline = self.seconds_to_deadline()
            with anyio.move_on_after(at_most if deadline is None else deadline + 0.001):
                await self.snapshot.changed()
            self.tick()

    async def follow_held_ids(self) -> None:
        """Refresh when the ledger has many IDs that no refresh has read yet, for ever.

        A refresh blocks the loop while it reads them: 128,000 units of memory held since the last one took
        0.4 s.
        """
        async for _ in self._ledger.changes.watch():
            if self._ledger.unread_ids >= MANY_IDS:
                self.refresh()

    def tick(self) -> None:
        """Let time pass."""
        self._inventory.tick(self._clock(), self._ledger.devices_in_use())
        self.refresh()

    def seconds_to_deadline(self) -> float | None:
        """Seconds until time alone changes the lists to the kubelet; None where it never does."""
        deadline = self._inventory.next_deadline()
        return None if deadline is None else max(0.0, deadline - self._clock())

    def refresh(self) -> None:
        """Publish what follows from everything known now."""
        before, after = self.snapshot.value, self._inventory.snapshot()
        if before != after:
            _log_changes(before, after)
            self._topology = topology(after)
            self.snapshot.set(after)
        if before != after or self.answer_reader.value.vendors is not self.vendors:
            self.answer_reader.set(AnswerReader(after.devices, self.vendors))
        inputs = _PlanInputs(
            self._offers.of(after),
            after,
            self._ledger.in_use(),
            self.plan.value,
            self._counting,
            frozenset(self.withheld),
            self.answer_reader.value,
        )
        if inputs != self._planned_from:
            self._planned_from, self._planned = inputs, self._plan(inputs)
        self._log_unserved(after)
        self.memory.set((self._inventory.records(), self._inventory.remembered_devices()))
        planned = self._planned
        for name, resource in planned.items():
            if name in self.resources:
                self.resources[name].set(resource)
            else:
                self.resources[name] = Cell(resource)
        for name in self.resources.keys() - planned.keys():
            del self.resources[name]
        self.plan.set(planned)

    def _plan(self, inputs: _PlanInputs) -> Plan:
        """Make the plan again, and note the units and waits that come with it."""
        snapshot, before, usage = inputs.snapshot, inputs.before, self._ledger.usage()
        self._counting = plan_units(inputs.offers, snapshot, usage, before, inputs.counting, _too_long)
        offers = self._counting.offers
        self._waits = waits_of_resources(offers, snapshot, usage)
        of_others = {
            name
            for name in resources_of_other_plugins(inputs.in_use)
            if not inputs.answer_reader.vendor_of_resource(name)
        }
        return plan(
            offers, snapshot, before=before, usage=usage, withheld=inputs.withheld, of_others=of_others
        )

    def makes(self, resource: Resource) -> bool:
        """Whether slices are made for the resource's containers. A vendor that is left out makes none."""
        return resource.vendor in self.vendors and self.vendors[resource.vendor].prepares(resource.name)

    @property
    def cdi_error(self) -> str:
        """Why containers may not find their devices."""
        errors = (*self._unspecified.items(), *self._unwritten.items())
        return "; ".join(f"{vendor}: {reason}" for vendor, reason in errors)

    @property
    def withheld(self) -> Mapping[str, str]:
        """Vendors, or resources, that no container gets now, with the reason why one would not start."""
        unspecified = {name: it for name, it in self._unspecified.items() if not self.specs.value.get(name)}
        errors = {**unspecified, **self._unwritten}
        by_cdi = {name: it for name, it in self.vendors.items() if it.offers.cdi_only and name in errors}
        slices = {name: it.makes.resources if it.makes else () for name, it in by_cdi.items()}
        return {
            withheld: errors[vendor]
            for vendor, resources in slices.items()
            for withheld in resources or (vendor,)
        }

    @property
    def complaints(self) -> tuple[str, ...]:
        """A sentence for each part of the config that the devices of this node cannot serve."""
        return _sentences(self._offers.complaints)

    @property
    def doubts(self) -> tuple[str, ...]:
        """A sentence for each card that is offered although an operator should mend something about it."""
        return _sentences(self._offers.doubts)

    @property
    def waits(self) -> Mapping[str, tuple[str, ...]]:
        """Resource to sentences on what of the config is served only once pods have ended."""
        found: dict[str, tuple[str, ...]] = {}
        for wait in self._waits:
            owners = self._ledger.owners_on_cards(wait.holder, wait.held)
            found[wait.resource] = (*found.get(wait.resource, ()), wait_sentence(wait, owners))
        return found

    @property
    def kept_units(self) -> Mapping[str, tuple[KeptUnit, str]]:
        """Resources that count memory in another unit than the config wants, with a sentence on each."""
        return {
            unit.resource: (unit, unit.sentence(self._ledger.owners_with_unit(unit.resource, unit.unit)))
            for unit in self._counting.kept
        }

    def _log_unserved(self, snapshot: NodeSnapshot) -> None:
        """Log once each part of the config that is not served in full."""
        waiting = (it for its in self.waits.values() for it in its)
        kept = (it for _, it in self.kept_units.values())
        sentences = (
            *missing_cards(self._offers.plain, snapshot),
            *self.complaints,
            *_sentences(self._offers.notes),
            *self.doubts,
            *waiting,
            *kept,
        )
        for sentence in sentences:
            if sentence not in self._logged:
                log.warning("config not served in full", what=sentence)
        self._logged = sentences

    def ended(self, name: str) -> None:
        """The session of a retired resource is over. A resource that the config has again is planned."""
        self.resources.pop(name, None)
        self.plan.set({key: it for key, it in self.plan.value.items() if key != name})
        self.refresh()

    def locks(self) -> tuple[str, ...]:
        """The Node annotations that are locks of the schedulers, or of the vendors' dialects."""
        return lock_keys(self.schedulers, self.vendors.values())

    def _pods_named_by_locks(self) -> frozenset[tuple[str, str]]:
        """The pods that schedulers' locks name."""
        if not (held := locks_on_node(self._pod_state.locks.annotations.value, self.locks())):
            return frozenset()
        return named_pods(held, self._wall(), self._pod_state.locks.waited(self._clock()))

    def scene(self) -> Scene:
        """All that an answer to the kubelet depends on, as of now."""
        candidates = self._pod_state.candidates
        return Scene(
            plan=self.plan.value,
            snapshot=self.snapshot.value,
            topology=self._topology,
            vendors=self.vendors,
            withheld=self.withheld,
            candidates=candidates,
            locked=self._pods_named_by_locks(),
            pods_at_kubelet_start=self._pod_state.found(candidates),
            waits=self._waits,
            external=self._ledger.external(),
            forgotten=self._ledger.forgotten(),
            unseen=self._pod_state.unseen,
            schedulers=self.schedulers,
        )


def _sentences(found: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The sentences of all vendors, each with the name of its vendor."""
    return tuple(f"vendor {vendor}: {it}" for vendor, its in found.items() for it in its)


def _too_long(resource: Resource) -> str:
    return str(too_long(resource) or "")


def _log_changes(before: NodeSnapshot, after: NodeSnapshot) -> None:
    """Log what changed of vendors and devices."""
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
        advertised="Healthy" if new.told_healthy else "Unhealthy",
    )

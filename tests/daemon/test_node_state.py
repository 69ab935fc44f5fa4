"""What follows at once for the kubelet from what is said of a vendor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from agent.cluster.pod_state import PodState
from agent.core.allocation.admission import admit
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.node_lock_rules import EXPIRES, parsed_lock
from agent.core.cell import Cell
from agent.core.devices.inventory import Inventory
from agent.core.devices.offers import VendorRules
from agent.core.devices.plan import plan
from agent.core.errors import ClosedDevice, StillHeld
from agent.core.model import (
    Allocation,
    AllocationSource,
    AllocationState,
    Command,
    Cordon,
    Owner,
    Plan,
    VendorState,
    VendorStatus,
)
from agent.daemon import node_state
from agent.daemon.node_state import NodeState
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate
from agent.scheduler_api.candidate import PodList
from agent.schedulers.common.node_lock import LOCKS
from agent.vendor_api.agent import (
    ContainerEdits,
    Device,
    Fault,
    HealthEvent,
    Offers,
    Proof,
    ResourceRule,
    Sharing,
    Slices,
    Vendor,
)

XPU, SHARES = "acme.com/xpu", "acme.com/share"


def served(*, by_cdi: bool, prepared: tuple[str, ...] = (), ledger: Ledger | None = None) -> NodeState:
    """A node with one card; `prepared` are the resources whose hardware is made."""
    node = NodeState(Inventory(), Ledger() if ledger is None else ledger, lambda: 0.0)
    vendor = Vendor(
        "acme",
        "a:B",
        XPU,
        lambda *_: ContainerEdits(),
        offers=Offers(cdi_only=by_cdi),
        makes=Slices(prepared),
    )
    node.configure({"acme": vendor}, [VendorRules(vendor)], [VendorStatus("acme", VendorState.STARTING)])
    node.discovered("acme", [Device("a-0", 0)])
    return node


def allocatable(node: NodeState) -> int:
    return node.plan.value[XPU].allocatable


def test_a_vendor_by_cdi_gives_nothing_out_from_the_moment_that_its_specs_can_not_be_written() -> None:
    node = served(by_cdi=True)
    assert allocatable(node) == 1

    node.unwritten({"acme": "/cdi: no space"})
    assert (allocatable(node), node.cdi_error) == (0, "acme: /cdi: no space")

    node.unwritten({})
    assert (allocatable(node), node.cdi_error) == (1, "")


def test_a_vendor_that_has_other_ways_goes_on_without_its_specs() -> None:
    node = served(by_cdi=False)

    node.unwritten({"acme": "/cdi: no space"})

    assert (allocatable(node), node.cdi_error) == (1, "acme: /cdi: no space")


def test_without_its_specs_a_vendor_that_makes_slices_withholds_those_and_no_whole_card() -> None:
    node = served(by_cdi=True, prepared=(SHARES,))

    node.unwritten({"acme": "/cdi: no space"})

    assert (allocatable(node), node.withheld) == (1, {SHARES: "/cdi: no space"})


def test_specs_that_a_vendor_can_not_renew_are_good_enough() -> None:
    node = served(by_cdi=True)
    node.specified("acme", {"acme.com-xpu.json": "{}"})

    node.unspecified("acme", "hung")
    node.refresh()

    assert (allocatable(node), node.cdi_error) == (1, "acme: hung")


def test_a_vendor_by_cdi_that_never_made_its_specs_gives_nothing_out() -> None:
    node = served(by_cdi=True)

    node.unspecified("acme", "hung")

    assert allocatable(node) == 0


def test_a_vendor_that_is_switched_off_leaves_no_error_of_its_specs() -> None:
    node = served(by_cdi=True)
    node.specified("acme", {"acme.com-xpu.json": "{}"})
    node.unspecified("acme", "hung")

    node.configure({}, [], [])

    assert (node.cdi_error, node.specs.value) == ("", {})


# What is in use


def test_cards_are_whole_and_free_only_where_no_share_lies_and_no_scheduler_gave_them_away() -> None:
    owner = Owner("uid-web", "main", "default", "web")
    done, said = AllocationState.DONE, AllocationSource.ANNOTATION
    share = Allocation("a", SHARES, "acme", ("a-0::0",), ("a-0",), done, 0.0, owner=owner, diverged=("a-1",))
    alone = Allocation("b", "koordinator.sh/gpu", "acme", (), ("a-2",), done, 0.0, said, owner=owner)
    node = NodeState(Inventory(), Ledger([share, alone]), lambda: 0.0)
    vendor = Vendor("acme", "a:B", XPU, lambda *_: ContainerEdits())
    rules = (
        ResourceRule(SHARES, devices=("a-0",), sharing=Sharing("replicas", 2)),
        ResourceRule(XPU, placement="auto"),
    )
    node.configure(
        {"acme": vendor}, [VendorRules(vendor, rules)], [VendorStatus("acme", VendorState.STARTING)]
    )

    node.discovered("acme", [Device(f"a-{n}", n) for n in range(4)])

    cards = node.plan.value[XPU].cards
    assert {it.uuid: it.healthy for it in cards} == {"a-2": False, "a-3": True}
    sentence = f"{XPU} waits for 1 card that pods hold as {SHARES}: default/web"
    assert node.waits == {XPU: (sentence,)}
    assert node.scene().external == {"a-2": alone}


def test_a_device_that_the_kubelet_has_forgotten_is_refused_by_the_name_of_the_pod_that_has_it() -> None:
    """The refusal is shown on the pod that asked: that pod is not to be deleted."""
    owner = Owner("uid-web", "main", "default", "web")
    done = Allocation("a", XPU, "acme", ("a-0",), ("a-0",), AllocationState.DONE, 0.0, owner=owner)
    ledger = Ledger([done])
    node = served(by_cdi=False, ledger=ledger)
    ledger.set_forgotten("a", forgotten=True)
    node.refresh()

    with pytest.raises(StillHeld, match=r"device a-0 is held by default/web, .*delete that pod to free it"):
        admit(node.scene(), XPU, ["a-0"])

    ledger.release("a", "pod gone", now=1.0)
    with pytest.raises(ClosedDevice, match="no pod could have it until a moment ago"):
        admit(node.scene(), XPU, ["a-0"])
    node.refresh()
    assert admit(node.scene(), XPU, ["a-0"]).uuids == ("a-0",)


def test_a_pod_that_was_listed_at_once_is_in_the_scene() -> None:
    web, job = (Candidate(f"uid-{name}", "default", name) for name in ("web", "job"))

    async def listed() -> PodList:
        return PodList((web, job))

    scheduled = PodState(Cell(KnownPods.of([web])))
    scheduled.ask = listed
    node = NodeState(Inventory(), Ledger(), lambda: 0.0, scheduled, registered())

    asyncio.run(scheduled.look())

    assert tuple(node.scene().candidates) == (job, web)


# Health


def sick() -> Fault:
    return Fault("xid-79", cleared_by=(Proof.DRIVER_RELOAD,))


def test_looking_at_the_devices_again_writes_nothing_down_though_their_counters_grow() -> None:
    node = served(by_cdi=False)
    node.observed("acme", [HealthEvent("a-0", sick())])
    before = node.snapshot.value, node.plan.value, node.memory.value
    told = [id(cell.value) for cell in (node.snapshot, node.plan, node.memory)]

    for energy in range(1, 5):
        node.discovered("acme", [Device("a-0", 0, counters={"energy": energy})])

    assert (node.snapshot.value, node.plan.value, node.memory.value) == before
    assert [id(cell.value) for cell in (node.snapshot, node.plan, node.memory)] == told


def test_an_operators_word_is_done_at_once_and_told_with_the_device_it_was_for() -> None:
    node = served(by_cdi=False)

    assert node.apply(Command("cordon", "a", "alice", "maintenance")) == "a-0: cordoned"
    assert allocatable(node) == 0
    assert node.snapshot.value.devices[0].cordon == Cordon("alice", "maintenance", 0.0)

    assert node.apply(Command("uncordon", "a-0", "alice")) == "a-0: uncordoned"
    assert node.apply(Command("uncordon", "a-0", "alice")) == "a-0: was not cordoned"
    assert allocatable(node) == 1


def test_an_operators_word_is_logged_with_who_said_it_and_why() -> None:
    node = served(by_cdi=False)

    with structlog.testing.capture_logs() as logged:
        node.apply(Command("cordon", "a-0", "alice", "maintenance"))

    assert logged == [
        {
            "event": "cordoned",
            "log_level": "warning",
            "device": "a-0",
            "author": "alice",
            "reason": "maintenance",
        }
    ]


def test_what_is_cleared_is_told_as_what_it_was() -> None:
    node = served(by_cdi=False)
    node.observed("acme", [HealthEvent("a-0", sick())])

    said = [node.apply(Command("clear", "a-0", "alice")) for _ in range(2)]
    node.lost("acme", VendorState.FAILED, "hung")
    said.append(node.apply(Command("clear", "a-0", "alice")))

    assert said == [
        "a-0: cleared; healthy polls end what is left of the fault",
        "a-0: has no fault that only a proof ends",
        "a-0: forgotten: the device is gone and not in use",
    ]


def test_a_lock_of_a_time_to_come_names_its_pod_only_for_as_long_as_one_may_last() -> None:
    (key,), value, now = LOCKS, "2999-01-01T00:00:00Z,default,web", [7.0]
    held = parsed_lock(key, value)
    assert held is not None
    scheduled = PodState()
    scheduled.locks.annotations.set({key: value})
    scheduled.locks.dated_ahead = {held: 7.0}
    node = NodeState(Inventory(), Ledger(), lambda: now[0], scheduled, registered())

    assert node.scene().locked == {("default", "web")}
    now[0] += EXPIRES
    assert node.scene().locked == frozenset()


# Reports that say the same again


def test_a_plan_is_made_again_only_where_something_that_it_depends_on_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = Ledger([Allocation("a", XPU, "acme", ("a-0",), ("a-0",), AllocationState.DONE, 0.0)])
    node = served(by_cdi=True, ledger=ledger)
    made: list[Plan] = []

    def counted(*args: Any, **more: Any) -> Plan:
        made.append(plan(*args, **more))
        return made[-1]

    def plans_after(change: Callable[[], object]) -> bool:
        """Whether the change makes a new plan, which no later refresh makes again."""
        change()
        node.refresh()
        count = len(made)
        node.refresh()  # a plan that follows from its own predecessor, too
        made.clear()
        node.tick()
        node.refresh()
        return count > 0 and not made

    monkeypatch.setattr(node_state, "plan", counted)

    assert plans_after(lambda: node.discovered("acme", [Device("a-0", 0), Device("a-1", 1)]))
    assert plans_after(lambda: ledger.confirm("a", Owner("uid-web", "main")))
    assert plans_after(lambda: node.unwritten({"acme": "/cdi: no space"}))
    assert plans_after(lambda: node.apply(Command("cordon", "a-1", "me")))
    assert plans_after(lambda: ledger.release("a", "over", now=1.0))


def test_a_resource_whose_session_has_ended_is_planned_again_where_all_else_is_as_before() -> None:
    node = served(by_cdi=False)
    planned = node.plan.value

    node.ended(XPU)

    assert node.plan.value == planned
    assert node.resources[XPU].value == planned[XPU]

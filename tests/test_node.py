"""What follows at once for the kubelet from what is said of a vendor."""

from __future__ import annotations

from agent.core.inventory import Inventory
from agent.core.ledger import Ledger
from agent.core.model import VendorState, VendorStatus
from agent.core.offers import Wish
from agent.core.vendor import ContainerEdits, Device, Vendor
from agent.node import Node

XPU = "acme.com/xpu"


def served(*, by_cdi: bool) -> Node:
    """A node with one card."""
    node = Node(Inventory(), Ledger(), lambda: 0.0)
    vendor = Vendor("acme", "a:B", lambda *_: ContainerEdits(), XPU, by_cdi=by_cdi)
    node.configure({"acme": vendor}, [Wish(vendor)], [VendorStatus("acme", VendorState.STARTING)])
    node.discovered("acme", [Device("a-0", 0)])
    return node


def allocatable(node: Node) -> int:
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

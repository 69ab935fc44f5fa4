"""What shows that a vendor is on this node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from agent.core.errors import VendorAbsent, VendorError
from agent.isolation.presence import absence
from agent.isolation.vendor_supervisor import VendorSupervisor
from agent.vendor_api.agent import Host, Signs, Vendor

from .rig import Recorder, vendor

BARE = "libxpu-nowhere.so.1"


@pytest.fixture
def shy(tmp_path: Path) -> Vendor:
    """A vendor of which nothing is here."""
    signs = Signs((f"{tmp_path}/module",), pci=("0xabab", "0xacac"), sysfs=f"{tmp_path}/sys")
    return replace(vendor(), host=Host(lambda: (BARE, f"{tmp_path}/libxpu.so"), signs))


def card(root: Path, maker: str, address: str = "0000:3b:00.0") -> None:
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{maker}\n")


def test_a_vendor_of_which_nothing_is_here_says_what_was_looked_for_and_what_would_work(
    shy: Vendor, tmp_path: Path
) -> None:
    card(tmp_path, "0x8086")

    assert absence(shy) == (
        f"library-not-found: here is none of {tmp_path}/module, a PCI device of 0xabab or 0xacac, {BARE}, "
        f"{tmp_path}/libxpu.so; install the driver of acme, or let vendors.acme.library name its library"
    )


def gone_meanwhile(root: Path) -> None:
    (root / "sys/bus/pci/devices/0000:00:00.0").mkdir(parents=True)
    card(root, "0xacac")


@pytest.mark.parametrize(
    "show",
    [
        lambda root: (root / "module").mkdir(),
        lambda root: (root / "module").symlink_to("nowhere"),
        lambda root: card(root, "0xacac"),
        gone_meanwhile,
        lambda root: (root / "libxpu.so").symlink_to("nowhere"),
    ],
    ids=["driver", "link to nowhere", "card", "card beside one that went", "library"],
)
def test_any_sign_shows_the_vendor(show: Callable[[Path], None], shy: Vendor, tmp_path: Path) -> None:
    assert absence(shy)

    show(tmp_path)

    assert not absence(shy)


def test_a_device_that_goes_while_it_is_looked_at_is_no_sign(shy: Vendor, tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices/0000:00:00.0").mkdir(parents=True)

    assert absence(shy)


def test_a_vendor_without_signs_is_taken_to_be_here(shy: Vendor) -> None:
    assert not absence(replace(shy, host=replace(shy.host, signs=None)))


def test_a_vendor_that_can_not_say_where_its_library_is_is_taken_to_be_here_and_that_is_told(
    shy: Vendor,
) -> None:
    def broken() -> tuple[str, ...]:
        raise ZeroDivisionError

    with structlog.testing.capture_logs() as logs:
        assert not absence(replace(shy, host=replace(shy.host, libraries=broken)))

    assert [it["reason"] for it in logs] == ["ZeroDivisionError()"]


def test_signs_of_a_wrong_type_harm_nobody(shy: Vendor) -> None:
    wrong: Any = 5

    assert not absence(replace(shy, host=replace(shy.host, signs=Signs(wrong))))


def test_a_bus_that_can_not_be_read_may_hold_a_card(shy: Vendor, tmp_path: Path) -> None:
    bus = tmp_path / "sys/bus/pci/devices"
    bus.parent.mkdir(parents=True)
    bus.touch()

    assert not absence(shy)


async def test_a_vendor_of_which_nothing_is_here_has_no_slices_that_could_be_asked_for(shy: Vendor) -> None:
    process = VendorSupervisor(shy, Recorder())
    process.configure(required=False, sought=False)
    with pytest.raises(VendorAbsent):
        await process.call("partitions")
    with pytest.raises(VendorError) as refused:  # of one that was not looked for yet nobody knows it
        await VendorSupervisor(vendor(), Recorder()).call("partitions")
    assert not isinstance(refused.value, VendorAbsent)

"""What sysfs and /dev say of MetaX's cards, and what of it is believed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from metax_host import Host
from mxsml_stub import MxsmlStub

from agent.vendors.metax.child import device_nodes
from agent.vendors.metax.shared import sysfs

pytest_plugins = ["mxsml_fixtures", "metax_fixtures"]

BDF = "0000:20:00.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:0E:00.0", "0000:0e:00.0"),
        ("00000000:0e:00.0", "0000:0e:00.0"),
        ("10000:0e:00.0", "10000:0e:00.0"),
        (" 0000:0e:1f.7\n", "0000:0e:1f.7"),
        ("", None),
        ("0e:00.0", None),
        ("0000:0e:20.0", None),
        ("../../etc", None),
        ("0000:0e:00.0/../..", None),
    ],
)
def test_a_pci_address_is_one_or_none(text: str, expected: str | None) -> None:
    assert sysfs.bdf(text) == expected


@pytest.mark.parametrize("driver", ["pci:METAX", "pci:metax"])
def test_cards_are_found_under_either_name_of_the_driver(tmp_path: Path, driver: str) -> None:
    place = tmp_path / "module/metax/drivers" / driver
    for name in ("0000:30:00.0", BDF, "bind", "new_id", "0000:2F:00.0"):
        (place / name / "drm" / "renderD130").mkdir(parents=True)

    assert sysfs.cards(tmp_path) == [BDF, "0000:30:00.0"]
    assert sysfs.drm(tmp_path, BDF) == ("renderD130",)


def test_the_nodes_of_a_card_are_also_found_where_its_device_is(tmp_path: Path) -> None:
    for name in ("card3", "renderD131", "card3-DP-1", "version", "controlD64"):
        (tmp_path / "bus/pci/devices" / BDF / "drm" / name).mkdir(parents=True)

    assert sysfs.drm(tmp_path, BDF) == ("card3", "renderD131")


def test_a_card_without_sysfs_has_no_nodes(tmp_path: Path) -> None:
    assert sysfs.cards(tmp_path) == []
    assert sysfs.drm(tmp_path, BDF) == ()
    assert not sysfs.driver_loaded(tmp_path)
    assert not sysfs.read_only(tmp_path / "nowhere")


def test_the_version_of_the_driver_is_that_of_its_module(host: Host) -> None:
    (host.sysfs / "module/metax/version").write_text("3.6.11\n")
    backend = host.backend()
    backend.open()

    assert {it.attributes["driver-version"] for it in backend.discover()} == {"3.6.11"}


@pytest.mark.parametrize(("mode", "expected"), [("sgpu", {"read-only"}), ("native", {None})])
def test_a_sysfs_mounted_read_only_is_noticed_before_a_slice_is_asked_for(
    host: Host, monkeypatch: pytest.MonkeyPatch, mode: str, expected: set[str | None]
) -> None:
    real = os.statvfs
    monkeypatch.setattr(
        os,
        "statvfs",
        lambda path: SimpleNamespace(f_flag=os.ST_RDONLY) if path == host.sysfs else real(path),
    )
    backend = host.backend(mode=mode)
    backend.open()

    assert {it.attributes.get("sysfs") for it in backend.discover()} == expected


# Nodes

NUMBERS = device_nodes.SliceNumbers(minor=160, sgpu=3, card=1, render=128)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (None, ["/dev/dri/renderD160"]),
        (["/dev/mxs{sgpu}", "/dev/dri/card{card}"], ["/dev/mxs3", "/dev/dri/card1"]),
        (["/dev/x{minor}{minor}"], ["/dev/x160160"]),
        (["/dev/x{minor.__class__}", "/dev/{0}"], []),
        ([], []),
    ],
)
def test_a_pattern_names_numbers_of_the_slice_and_nothing_else(
    patterns: list[str] | None, expected: list[str]
) -> None:
    assert device_nodes.of_slice({"sliceNodes": patterns}, NUMBERS) == expected


def test_a_slice_whose_card_has_no_drm_nodes_says_so(host: Host) -> None:
    settings = host.settings(sliceNodes=["/dev/dri/card{card}"])

    assert "no DRM nodes in sysfs" in device_nodes.lacking(
        settings, "GPU-1", device_nodes.SliceNumbers(160, 3)
    )


def test_a_file_is_no_device_node(host: Host) -> None:
    (host.root / "dev/mxcd").unlink()
    (host.root / "dev/mxcd").write_text("")

    assert device_nodes.control(host.settings()) == []


def test_only_control_nodes_that_exist_are_named(host: Host) -> None:
    host.make("/dev/mxgd")

    wanted = ["/dev/mxcd", "/dev/mxnd", "/dev/mxgd"]

    assert device_nodes.control(host.settings(controlNodes=wanted)) == ["/dev/mxcd", "/dev/mxgd"]


def test_without_a_mount_the_hosts_nodes_are_our_own(stub: MxsmlStub) -> None:
    assert device_nodes.exists({"containerDriverRoot": "/nowhere"}, "/dev/null")
    assert not device_nodes.exists({"containerDriverRoot": "/nowhere"}, "/dev/mxcd")

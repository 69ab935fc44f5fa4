"""What sysfs tells of any vendor's card."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.vendors.common import pci_sysfs

BDF = "0000:20:00.0"


@pytest.mark.parametrize(
    ("text", "expected"), [("3\n", 3), ("0\n", 0), ("-1\n", None), ("", None), ("x", None)]
)
def test_a_numa_node_is_a_number_from_0_or_none(tmp_path: Path, text: str, expected: int | None) -> None:
    (tmp_path / "bus/pci/devices" / BDF).mkdir(parents=True)
    (tmp_path / "bus/pci/devices" / BDF / "numa_node").write_text(text)

    assert pci_sysfs.numa_node(tmp_path, BDF) == expected


def test_a_card_without_sysfs_has_no_numa_node_and_no_root_complex(tmp_path: Path) -> None:
    assert pci_sysfs.root_complex(tmp_path, BDF) == ""
    assert pci_sysfs.numa_node(tmp_path, BDF) is None

"""What a vendor's process loads, whichever vendor's it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: The part of what vendors have in common that their processes may load: `setting_values` needs more.
PARTS = (
    "card_faults",
    "cdi_file",
    "device_fields",
    "earlier_readings",
    "host",
    "library_backend",
    "library_cards",
    "own_files",
    "pci_sysfs",
    "shared_library",
)
COMMON = {"agent.vendors.common", *(f"agent.vendors.common.{it}" for it in PARTS)}
#: How all that others made is read, by the agent as well; standard library only.
COMMON |= {"agent.vendor_api.bounded_reads"}
CONTRACT = {"agent", "agent.vendor_api", "agent.vendor_api.backend", "agent.vendors"}


@pytest.mark.parametrize("vendor", ["enflame", "metax", "nvidia", "simulated"])
def test_a_vendors_process_imports_the_standard_library_and_the_contract_alone(vendor: str) -> None:
    code = (
        f"import sys; before = set(sys.modules); import agent.vendors.{vendor}.child.backend; "
        "print(*(m for m in set(sys.modules) - before if m.partition('.')[0] not in sys.stdlib_module_names))"
    )

    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)

    its = {it for it in found.stdout.split() if not f"{it}.".startswith(f"agent.vendors.{vendor}.")}
    assert its >= CONTRACT
    assert its - CONTRACT <= COMMON

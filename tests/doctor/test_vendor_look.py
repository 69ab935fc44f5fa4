"""Rules of the checks that a vendor brings to the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from agent.daemon.vendor_plugins import VendorPlugin
from agent.doctor.checks import examined
from agent.doctor.host_parts import CHECK as PARTS
from agent.scheduler_api.findings import Finding, FindingKind, Severity, well
from agent.scheduler_api.node_checks import Observed
from agent.vendor_api.agent import VendorCheck, VendorLook

from .surveyed import CARD, Devices, around, vendor

CHECK, FIRMWARE = "acme-firmware", "/sys/module/acme/firmware"
OLD = FindingKind(CHECK, "acme-firmware-old", Severity.WARNS, "old", "Cards hang.", "flash {version}")


def _firmware(look: VendorLook) -> Iterator[Finding]:
    text = look.files[FIRMWARE]
    if text.value is None:
        yield well(CHECK, f"unknown: {text.why}, absent {text.is_absent}")
    elif text.value.strip() < "2":
        yield OLD.found(f"{len(look.devices.value or ())} cards with {text.value.strip()}", version=2)
    else:
        yield well(CHECK, f"firmware {text.value[:3].strip()}, {len(text.value)} characters")


def _acme(*checks: VendorCheck) -> VendorPlugin:
    plugin = vendor("acme")
    assert plugin.vendor is not None
    return structs.replace(plugin, vendor=replace(plugin.vendor, checks=checks))


def _found(root: Path, found: Devices | None = None, check: VendorCheck | None = None) -> list[Finding]:
    plugin = _acme(check or VendorCheck(CHECK, _firmware, (FIRMWARE,)))
    cards = found or Observed((CARD,))
    return [*examined(around(plugin, found={"acme": cards}, root=root))]


def _own(findings: list[Finding]) -> list[Finding]:
    return [it for it in findings if it.check == CHECK]


def _write(root: Path, text: str) -> None:
    (root / FIRMWARE.lstrip("/")).parent.mkdir(parents=True)
    (root / FIRMWARE.lstrip("/")).write_text(text)


def test_a_vendors_check_sees_its_devices_and_its_files_below_the_hosts_root(tmp_path: Path) -> None:
    _write(tmp_path, "1.9\n")

    findings = _found(tmp_path)

    (finding,) = _own(findings)
    assert (finding.severity, finding.what) == (Severity.WARNS, "1 cards with 1.9")
    assert (finding.kind, finding.remedy) == ("acme-firmware-old", "flash 2")
    checks = [it.check for it in findings]
    assert checks[checks.index(CHECK) - 1] == PARTS


def test_a_file_that_is_absent_is_told_with_its_reason(tmp_path: Path) -> None:
    (finding,) = _own(_found(tmp_path))

    assert finding.what == f"unknown: {FIRMWARE}: No such file or directory, absent True"


def test_a_long_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    _write(tmp_path, "3.0" + " " * 200_000)

    (finding,) = _own(_found(tmp_path))

    assert finding.what == "firmware 3.0, 65536 characters"


def test_a_vendor_without_cards_here_has_no_checks(tmp_path: Path) -> None:
    assert not _own(_found(tmp_path, Observed(why="library-not-found")))


def test_a_vendors_check_that_raises_is_not_made_and_harms_no_other(tmp_path: Path) -> None:
    def broken(look: VendorLook) -> list[Finding]:
        raise RuntimeError("no luck")

    findings = _found(tmp_path, check=VendorCheck(CHECK, broken))

    (finding,) = _own(findings)
    assert (finding.severity, finding.what) == (Severity.NOT_MADE, "the check failed: RuntimeError: no luck")
    assert findings[-1].check != CHECK

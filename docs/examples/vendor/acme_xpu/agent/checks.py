"""Acme's checks of `xpu-agent doctor`."""

from collections.abc import Iterator

from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.vendor_api.agent import VendorCheck, VendorLook

CHECK, VERSION = "acme-driver", "/sys/module/acme/version"
OLDEST = (2, 0)
TOO_OLD = FindingKind(
    CHECK,
    "acme-driver-old",
    Severity.WARNS,
    "Acme's driver is older than 2.0",
    "Before 2.0 the driver does not report a card with a broken link, and pods still get the card.",
    "install driver {oldest} or newer, and restart the node",
)


def driver(look: VendorLook) -> Iterator[Finding]:
    """Whether the driver reports broken links."""
    version = look.files[VERSION]
    if version.value is None:
        yield not_made(CHECK, version.why)
    elif _numbers(version.value) < OLDEST:
        yield TOO_OLD.found(f"{VERSION} has {version.value.strip()}", oldest="2.0")
    else:
        yield well(CHECK, f"driver {version.value.strip()}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(it) for it in version.strip().split(".") if it.isdecimal())


CHECKS = (VendorCheck(CHECK, driver, files=(VERSION,)),)

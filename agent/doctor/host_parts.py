"""What else a vendor's cards are served with: its driver, its container runtime, its tools."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agent.doctor.surroundings import Surroundings
from agent.doctor.vendor_libraries import weighed
from agent.isolation.presence import on_the_bus
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.state.uninstall_record import is_pod
from agent.vendor_api.agent import HostPart, Vendor

CHECK = "vendor-parts"

MISSING = FindingKind(
    CHECK,
    "part-missing",
    Severity.STOPS,
    "something that a vendor's cards are served with is not on the node",
    "Nothing of the vendor works without it, or not what the configuration asks for.",
    "{remedy}",
)
LACKING = FindingKind(
    CHECK,
    "part-lacking",
    Severity.WARNS,
    "something that a vendor's containers may need is not on the node",
    "The cards are given out nevertheless; what goes without it is named there.",
    "{remedy}",
)


def parts(around: Surroundings) -> Iterator[Finding]:
    """What vendors name as needed on a node with their cards."""
    vendors = [it for it in present(around) if it.host.parts]
    for vendor in vendors:
        for part in vendor.host.parts:
            yield _looked_for(around, vendor.name, part)
    if not vendors:
        yield well(CHECK, "no vendor with cards here needs more than its library")


def present(around: Surroundings) -> list[Vendor]:
    """The vendors with cards here, whether these are listed or only seen on the bus."""
    vendors = (it.vendor for it in around.configuration.plugins if it.vendor is not None)
    return [it for it in vendors if around.has_cards(it.name) or _is_on_the_bus(it)]


def is_hidden(around: Surroundings) -> bool:
    """Whether the host's files are not seen from here."""
    return around.root == Path("/") and is_pod(os.environ)


def _is_on_the_bus(vendor: Vendor) -> bool:
    with suppress(OSError):
        return vendor.host.signs is not None and on_the_bus(vendor.host.signs)
    return False


def _looked_for(around: Surroundings, vendor: str, part: HostPart) -> Finding:
    if part.shown and around.lists(vendor):
        return well(CHECK, f"{vendor}: {part.name} is there, for its cards are listed")
    found = next((it for it in part.paths if _is_there(around.root if part.host else None, it)), "")
    if found:
        return well(CHECK, f"{vendor}: {part.name} is there ({found})")
    looked = f"{vendor}: {part.name} is not there: none of {', '.join(part.paths)}"
    if part.host and is_hidden(around):
        what = f"{looked}; a pod does not see them: mount the host's / and name where with --host-root"
        return not_made(CHECK, what)
    ailment = MISSING if part.needed else LACKING
    finding = ailment.found(f"{looked}; without it {part.without}", remedy=part.remedy)
    return weighed(around, vendor, finding)


def _is_there(root: Path | None, path: str) -> bool:
    if "/" not in path:
        return shutil.which(path) is not None
    return os.path.lexists(root / path.lstrip("/") if root else path)

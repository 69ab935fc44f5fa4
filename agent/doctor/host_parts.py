"""Checks for the other parts that a vendor's cards need on the node: driver, container runtime, tools."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agent.doctor.surroundings import Surroundings
from agent.doctor.vendor_libraries import weaker_without_cards
from agent.isolation.presence import on_the_bus
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.state.uninstall_record import is_pod
from agent.vendor_api.agent import HostPart, Vendor

CHECK = "vendor-parts"

MISSING = FindingKind(
    CHECK,
    "part-missing",
    Severity.STOPS,
    "a part that a vendor's cards need is not on the node",
    "Without the part nothing of the vendor works, or something that the configuration asks for does "
    "not work.",
    "{remedy}",
)
LACKING = FindingKind(
    CHECK,
    "part-lacking",
    Severity.WARNS,
    "a part that a vendor's containers may need is not on the node",
    "The agent gives the cards to pods nevertheless. The finding names what does not work.",
    "{remedy}",
)


def parts(around: Surroundings) -> Iterator[Finding]:
    """The parts that the vendors of this node's cards name."""
    vendors = [it for it in vendors_with_cards(around) if it.host.parts]
    for vendor in vendors:
        for part in vendor.host.parts:
            yield _looked_for(around, vendor.name, part)
    if not vendors:
        yield well(CHECK, "no vendor with cards here needs more than its library")


def vendors_with_cards(around: Surroundings) -> list[Vendor]:
    """The vendors with cards on this node, listed by the library or only seen on the PCI bus."""
    vendors = (it.vendor for it in around.configuration.plugins if it.vendor is not None)
    return [it for it in vendors if around.has_cards(it.name) or _is_on_the_bus(it)]


def is_hidden(around: Surroundings) -> bool:
    """Whether this is a pod without the host's files."""
    return around.root == Path("/") and is_pod(os.environ)


def _is_on_the_bus(vendor: Vendor) -> bool:
    with suppress(OSError):
        return vendor.host.signs is not None and on_the_bus(vendor.host.signs)
    return False


def _looked_for(around: Surroundings, vendor: str, part: HostPart) -> Finding:
    if part.proven_by_devices and around.lists(vendor):
        return well(CHECK, f"{vendor}: {part.name} is there, because the vendor lists its cards")
    found = next((it for it in part.paths if _is_there(around.root if part.on_host else None, it)), "")
    if found:
        return well(CHECK, f"{vendor}: {part.name} is there ({found})")
    looked = f"{vendor}: {part.name} is not there: none of {', '.join(part.paths)}"
    if part.on_host and is_hidden(around):
        how = "mount the host's / and give the place with --host-root"
        return not_made(CHECK, f"{looked}; a pod does not see the host's files: {how}")
    kind = MISSING if part.needed else LACKING
    finding = kind.found(f"{looked}; without it {part.consequence}", remedy=part.remedy)
    return weaker_without_cards(around, vendor, finding)


def _is_there(root: Path | None, path: str) -> bool:
    if "/" not in path:
        return shutil.which(path) is not None
    return os.path.lexists(root / path.lstrip("/") if root else path)

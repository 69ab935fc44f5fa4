"""Checks whether the cards of this node can serve the resources of the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from agent.daemon.config_forecast import lacking
from agent.daemon.vendor_config import vendor_rules
from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.vendor_api.agent import NO_LIBRARY, Device

CHECK = "resources"

UNSERVED = FindingKind(
    CHECK,
    "resource-unserved",
    Severity.STOPS,
    "the cards of this node cannot serve something that the config asks for",
    "The agent serves the rest and is not ready. So a rollout stops at this node.",
    "change the resources of the vendor in the configuration as the finding says; see what the config "
    "means for a node with every card: xpu-agent config check",
)


def served(around: Surroundings) -> Iterator[Finding]:
    """What keeps `run` from being ready here, by the code of `run`."""
    found = {
        name: devices
        for name, look in around.vendors.items()
        if (devices := _devices_of_library(look.value or ()))
    }
    if not found:
        yield not_made(CHECK, "no vendor's cards are seen here")
        return
    vendors = [it.vendor for it in around.configuration.plugins if it.vendor and it.name in found]
    wrong = list(lacking([vendor_rules(it, around.config) for it in vendors], found))
    # The agent makes its sentences by `lacking` too, so equal sentences say the same thing.
    new = [it for it in wrong if it not in around.document.troubles]
    yield from (UNSERVED.found(it) for it in new)
    if wrong and not new:
        yield not_made(CHECK, "not repeated: the running agent says the same (see check agent)")
    elif not wrong:
        names = ", ".join(sorted(around.names))
        yield well(CHECK, f"the cards here can serve what the config asks of {', '.join(found)}: {names}")


def _devices_of_library(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices of a vendor with a library; none without one, which the check vendor-library reports."""
    return () if any(it.fault and it.fault.reason == NO_LIBRARY for it in devices) else devices

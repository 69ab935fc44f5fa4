"""What the configuration asks of the cards that are here, against what they can serve."""

from __future__ import annotations

from collections.abc import Iterator

from agent.daemon.config_forecast import lacking
from agent.daemon.vendors_in_service import vendor_rules
from agent.doctor.findings import Finding, FindingKind, Severity, not_made, well
from agent.doctor.surroundings import Surroundings
from agent.vendor_api.agent import NO_LIBRARY, Device

CHECK = "resources"

UNSERVED = FindingKind(
    CHECK,
    "resource-unserved",
    Severity.STOPS,
    "something that the config asks for cannot be served with the cards of this node",
    "The agent serves the rest and is not ready, so that no rollout goes on over it.",
    "mend the resources of that vendor in the configuration as is said there; xpu-agent config check shows "
    "what holds on a node with every card",
)


def served(around: Surroundings) -> Iterator[Finding]:
    """What `run` would not be ready with here, by the same code."""
    found = {name: devices for name, look in around.vendors.items() if (devices := _known(look.value or ()))}
    if not found:
        yield not_made(CHECK, "no vendor's cards are seen here")
        return
    vendors = [it.vendor for it in around.configuration.plugins if it.vendor and it.name in found]
    wrong = list(lacking([vendor_rules(it, around.config) for it in vendors], found))
    told = (around.told.value or {}).get("troubles") or ()
    untold = [it for it in wrong if it not in told]
    yield from (UNSERVED.found(it) for it in untold)
    if wrong and not untold:
        yield not_made(CHECK, "not said again, for the running agent complains of it (see check agent)")
    elif not wrong:
        names = ", ".join(sorted(around.names))
        yield well(CHECK, f"the cards here can serve what the config asks of {', '.join(found)}: {names}")


def _known(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices of a vendor whose library is here; without it the check of the library says what lacks."""
    return () if any(it.fault and it.fault.reason == NO_LIBRARY for it in devices) else devices

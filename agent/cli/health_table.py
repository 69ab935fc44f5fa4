"""`health list`: the health of each device that the running agent knows, as a table or as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from agent.cli.inspect_cells import age, health_reason, place
from agent.host.terminal import show_table
from agent.http.admin_client import fetch_document
from agent.http.inspect_document import InspectedAbsentDevice, InspectedDevice


def known_devices(path: Path) -> list[InspectedDevice | InspectedAbsentDevice]:
    """The devices that the agent behind the admin socket lists or remembers.

    Raises:
        CannotAsk: No agent answers.
    """
    document = fetch_document(path)
    return [*document.devices, *document.absent]


def as_builtins(device: InspectedDevice | InspectedAbsentDevice) -> dict[str, Any]:
    """What --json prints of a device. Keys may be added; keys that are here stay."""
    listed = device if isinstance(device, InspectedDevice) else None
    return {
        "vendor": device.vendor,
        "uuid": device.uuid,
        "index": listed.index if listed else None,
        "slice": listed.slice if listed else None,
        "listed": listed is not None,
        "health": msgspec.to_builtins(device.health),
        "clearedBy": _proofs(device),
        "cordon": msgspec.to_builtins(device.cordon),
        "inUse": device.in_use,
    }


def _proofs(device: InspectedDevice | InspectedAbsentDevice) -> list[str]:
    """What ends the fault of the device. An operator's command ends every fault that waits for a proof."""
    proofs = list(device.cleared_by)
    return [*proofs, "operator"] if proofs and "operator" not in proofs else proofs


def show(
    devices: Sequence[InspectedDevice | InspectedAbsentDevice],
    stream: TextIO | None = None,
    now: float | None = None,
) -> None:
    """Print the devices as a table. `now` is Unix time in seconds."""
    now = time.time() if now is None else now
    show_table("health", [_row(device, now) for device in devices], stream)


def _row(device: InspectedDevice | InspectedAbsentDevice, now: float) -> dict[str, Any]:
    listed = device if isinstance(device, InspectedDevice) else None
    health, cordon = device.health, device.cordon
    no_proof_needed = ["good looks"] if health.state == "unhealthy" else []
    return {
        "vendor": device.vendor,
        "index": place(listed) if listed else None,
        "uuid": device.uuid,
        "health": health.state if listed else f"{health.state} (not listed)",
        "reason": health_reason(device),
        "since": age(health.since, now),
        "ends with": ", ".join(_proofs(device) or no_proof_needed),
        "in use": device.in_use,
        "cordoned by": cordon.author if cordon else None,
        "because": cordon.reason if cordon else None,
        "for": age(cordon.since, now) if cordon else None,
    }

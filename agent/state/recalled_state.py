"""The state that the agent finds at its start: allocations and health from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.config import AgentSettings
from agent.core.allocation.ledger import Ledger
from agent.core.devices.health_thresholds import HealthThresholds
from agent.core.devices.inventory import Inventory
from agent.core.model import FirstList
from agent.state.checkpoint import boot_id
from agent.state.damaged_files import SetAside
from agent.state.journaled_checkpoint import JournaledCheckpoint
from agent.state.retried_writes import LedgerStore

log = structlog.get_logger()


class RecalledState(Struct, frozen=True):
    """The recalled state. `set_aside` says why the checkpoint or its journal was unusable, or is None.

    `first` are the kubelet's pods at its start, as an earlier agent saw them.
    """

    ledger: Ledger
    inventory: Inventory
    store: LedgerStore
    set_aside: SetAside | None
    first: FirstList | None = None


def recalled(settings: AgentSettings, timing: HealthThresholds, clock: Callable[[], float]) -> RecalledState:
    """Read the checkpoint; call with the agent's lock held. After a reboot, the state is adjusted.

    Raises:
        StateError: The file may not be read.
    """
    file = JournaledCheckpoint(settings.state_dir)
    saved, set_aside = file.load()
    for one in set_aside:
        _report(one)
    boot, now = boot_id(), clock()
    ledger = Ledger(saved.allocations, now=now)
    inventory = Inventory(saved.health, timing, now, saved.devices, saved.cordons)
    if saved.boot_id != boot:
        ledger.mark_rebooted()
        inventory.rebooted(now)
    store = LedgerStore(file, ledger, inventory, replace(saved, boot_id=boot))
    return RecalledState(ledger, inventory, store, set_aside[0] if set_aside else None, saved.first)


def _report(set_aside: SetAside) -> None:
    log.error(
        "checkpoint set aside",
        reason="CheckpointSetAside",
        message=set_aside.message,
        path=str(set_aside.path),
        aside=set_aside.aside,
    )

"""What outlives the process, as it was found at the start: allocations, health, and the file of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from agent.config import AgentSettings
from agent.core.allocation.ledger import Ledger
from agent.core.devices.health_rules import HealthTiming
from agent.core.devices.inventory import Inventory
from agent.core.model import FirstList
from agent.state.checkpoint import CHECKPOINT, CheckpointFile, boot_id
from agent.state.checkpoint_store import LedgerStore
from agent.state.damaged_files import SetAside

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RecalledState:
    """`set_aside` is why the agent began without its checkpoint; None where it did not. `first`: whom the
    kubelet found as it began, as the agent before saw it.
    """

    ledger: Ledger
    inventory: Inventory
    store: LedgerStore
    set_aside: SetAside | None
    first: FirstList | None = None


def recalled(settings: AgentSettings, timing: HealthTiming, clock: Callable[[], float]) -> RecalledState:
    """Read the checkpoint, which is ours once the lock is held. Another boot of the node is taken in.

    Raises:
        StateError: There is a file that may not be read.
    """
    file = CheckpointFile(settings.state_dir / CHECKPOINT)
    saved, set_aside = file.load()
    if set_aside:
        _tell(set_aside)
    boot, now = boot_id(), clock()
    ledger = Ledger(saved.allocations, now=now)
    inventory = Inventory(saved.health, timing, now, saved.devices, saved.cordons)
    if saved.boot_id != boot:
        ledger.rebooted()
        inventory.rebooted(now)
    store = LedgerStore(file, ledger, inventory, replace(saved, boot_id=boot))
    return RecalledState(ledger, inventory, store, set_aside, saved.first)


def _tell(it: SetAside) -> None:
    log.error(
        "checkpoint set aside",
        reason="CheckpointSetAside",
        message=it.message,
        path=str(it.path),
        aside=it.aside,
    )

"""Runs the sampling of use while the config wants it. Without it, nothing of it is imported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

from agent.config import Config, ConfigState
from agent.core.attribution.scheduler_promises import Promises
from agent.core.cell import Cell, first
from agent.core.endless_tasks import for_ever

if TYPE_CHECKING:
    from agent.core.usage.minute_history import UsageHistory
    from agent.core.usage.usage_alarms import UsageAlarm
    from agent.core.usage.usage_report import UsageReport
    from agent.daemon.usage.kept_history import KeptHistory
    from agent.daemon.usage.usage_sampler import UsageSampler
    from agent.daemon.usage.vendor_samples import SampledVendor
    from agent.daemon.vendors_in_service import VendorsInService


log = structlog.get_logger(__name__)


class UsageSwitch:
    """The sampling of use, on and off."""

    def __init__(
        self,
        config: Cell[ConfigState],
        vendors: VendorsInService,
        promises: Callable[[], Promises],
        clock: Callable[[], float],
        state_dir: Path,
    ) -> None:
        """`clock`: Unix time that never jumps."""
        self._config = config
        self._vendors = vendors
        self._promises = promises
        self._clock = clock
        self._state_dir = state_dir
        self._sampler: UsageSampler | None = None

    @property
    def report(self) -> UsageReport | None:
        """The use of the cards as of now; None where it is not sampled."""
        return self._sampler.report() if self._sampler is not None else None

    def prepare(self) -> Awaitable[object] | None:
        """Makes in a thread what takes long of `report`; None where use is not sampled."""
        return self._sampler.prepare() if self._sampler is not None else None

    @property
    def alarms(self) -> tuple[UsageAlarm, ...]:
        """The containers above their limit, and those that do not use their cards."""
        return self._sampler.alarms if self._sampler is not None else ()

    @property
    def history(self) -> UsageHistory | None:
        """What containers used in each minute; None where use is not sampled."""
        return self._sampler.history if self._sampler is not None else None

    async def run(self) -> None:
        """Follow the config for ever."""
        while True:
            await self._until(wanted=True)
            try:
                await first(self._sample, lambda: self._until(wanted=False))
            finally:
                self._sampler = None

    async def _until(self, *, wanted: bool) -> None:
        while self._is_wanted != wanted:
            await self._config.changed()

    @property
    def _is_wanted(self) -> bool:
        state = self._config.value
        return state.config.usage.enabled and not state.waiting

    def _processes(self) -> Mapping[str, SampledVendor]:
        return self._vendors.processes

    def _config_in_force(self) -> Config:
        return self._config.value.config

    async def _sample(self) -> None:
        tried = self._config.value
        try:
            sampler, kept = await self._made()
        except (ImportError, OSError) as exc:
            then = "use is not sampled until the config changes; all else goes on"
            log.exception("use of cards cannot be sampled", error=str(exc), then=then)
            await self._config.other_than(tried)
            return
        self._sampler = sampler
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, sampler.run)
            group.start_soon(for_ever, kept.run)

    async def _made(self) -> tuple[UsageSampler, KeptHistory]:
        # Some 20 ms of work, in a thread.
        await anyio.to_thread.run_sync(import_module, "agent.daemon.usage.usage_sampler")
        from agent.daemon.usage.kept_history import KeptHistory
        from agent.daemon.usage.usage_sampler import UsageSampler
        from agent.state.usage_history_file import UsageHistoryFile

        file = UsageHistoryFile(self._state_dir)
        history = await anyio.to_thread.run_sync(file.read, abandon_on_cancel=True)
        sampler = UsageSampler(self._processes, self._promises, self._config_in_force, self._clock, history)
        return sampler, KeptHistory(file, history)

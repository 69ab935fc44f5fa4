"""Samples the use of the cards every few seconds: what the last samples say, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import anyio
import structlog

from agent.config import Config
from agent.core.attribution.scheduler_promises import Promises
from agent.core.endless_tasks import sleep_in_step
from agent.core.errors import SamplingEnded
from agent.core.usage.card_accounts import Accounts
from agent.core.usage.minute_history import UsageHistory
from agent.core.usage.usage_alarms import UsageAlarm
from agent.core.usage.usage_report import UsageReport
from agent.daemon.usage.current_accounts import CurrentAccounts
from agent.daemon.usage.usage_followers import UsageFollowers
from agent.daemon.usage.vendor_samples import SampledVendor, VendorSamples
from agent.host.node_processes import pod_log_directories

log = structlog.get_logger(__name__)


class UsageSampler:
    """From each round of samples to accounts of the cards, and from these to the history and alarms."""

    def __init__(
        self,
        vendors: Callable[[], Mapping[str, SampledVendor]],
        promises: Callable[[], Promises],
        config: Callable[[], Config],
        clock: Callable[[], float],
        history: UsageHistory,
        log_directories: Callable[[], Collection[str]] = pod_log_directories,
    ) -> None:
        """`vendors` and `config`: those in service and in force now. `clock`: Unix time that never jumps."""
        self._promises = promises
        self._config = config
        self._clock = clock
        self._samples = VendorSamples(vendors, promises, config, clock, log_directories)
        self._accounts = CurrentAccounts(self._samples.fresh, promises)
        self._followers = UsageFollowers(history)
        #: The last defect that was told where no vendor is to be named.
        self._defect = ""

    async def run(self) -> None:
        """Sample for ever."""
        async with anyio.create_task_group() as group:
            while True:
                await sleep_in_step(self._config().usage.interval)
                for name, process in self.begin().items():
                    group.start_soon(self.sample, name, process)

    def begin(self) -> Mapping[str, SampledVendor]:
        """Begin a round: the vendors whose samples are to be made now."""
        asked = self._samples.begin()
        if not self._samples.fresh():
            self._end_of_samples()  # no later sample says that the containers are gone
        return asked

    async def sample(self, name: str, process: SampledVendor) -> None:
        """Make one sample, and note what follows from it. A defect in doing so costs the sample alone."""
        try:
            if await self._samples.ask(name, process):
                self._follow(await self._accounts.of_new_sample())
        except SamplingEnded:
            self._end_of_samples()
        except Exception as exc:
            self._samples.add_defect(name, exc)

    def _end_of_samples(self) -> None:
        """What the last sample of a vendor said ends now. A defect in doing so ends no round."""
        if self._followers.has_containers:
            try:
                self._follow(self._accounts.now())
            except Exception as exc:
                if repr(exc) != self._defect:  # once, and not in each round
                    log.exception("use of cards not ended, please report this with the log")
                self._defect = repr(exc)

    def _follow(self, accounts: Accounts) -> None:
        in_use, settings = self._promises().in_use, self._config().usage
        self._followers.saw(self._clock(), accounts.containers, in_use, settings)

    async def prepare(self) -> None:
        """Make the accounts as of now in a thread; `report` then takes little of the loop's time."""
        await self._accounts.of_new_sample()

    def report(self) -> UsageReport:
        """The use of the cards by the last samples, and by the allocations as of now."""
        config, found = self._config(), self._accounts.now()
        return UsageReport(
            config.usage.interval,
            self._clock(),
            self._samples.statuses,
            found.cards,
            tuple(self._followers.timed(found.containers)),
            found.processes,
            found.unknown,
            self._samples.sees_node_pids,
        )

    @property
    def alarms(self) -> tuple[UsageAlarm, ...]:
        """What people are to be told of."""
        return self._followers.alarms

    @property
    def history(self) -> UsageHistory:
        """What containers used in each minute."""
        return self._followers.history

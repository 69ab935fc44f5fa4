"""Samples of the use of one vendor process's cards: beside the calls, or between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import structlog

from agent.core.errors import SamplingEnded, VendorError, VendorTimeout
from agent.isolation.vendor_answers import OpenedBackend, WrongAnswer
from agent.isolation.vendor_process import VendorProcess

if TYPE_CHECKING:
    from agent.core.usage.usage_report import VendorSample

log = structlog.get_logger()

#: The methods of a backend that a sample is made of.
SAMPLED = frozenset({"usage", "processes"})
#: So many late samples in a row end the sampling of a process.
MISSES = 3
#: So many processes that are lost in a row over a sample end the sampling of a vendor.
LOSSES = 3
_SETTINGS_CHANGE = "the vendor's settings change or the agent is started again"


class SampleLosses:
    """Counts the processes that one vendor lost in a row while a sample was made.

    Each loss takes health, Allocate and slices with it for a moment, which the figures are not worth.
    """

    def __init__(self, vendor: str) -> None:
        self._vendor = vendor
        self._lost = 0

    def add(self, reason: str) -> None:
        """Count a process; `reason`: how it was lost."""
        self._lost += 1
        if self._lost == LOSSES:
            log.warning(
                "sampling ended", vendor=self._vendor, lost=LOSSES, reason=reason, until=_SETTINGS_CHANGE
            )

    def forget(self) -> None:
        """Count from zero: a sample was made, or the config says something new of the vendor."""
        self._lost = 0

    def check(self) -> None:
        """Raises SamplingEnded: too many were lost."""
        if self._lost >= LOSSES:
            why = f"{LOSSES} processes in a row were lost while a sample was made"
            raise SamplingEnded(self._vendor, _SETTINGS_CHANGE, why)


class Sampling:
    """The sampling of one process. A late sample costs the samples after it, and never the process.

    `ask` queues a call behind all others. It makes the samples of a library with one caller.
    """

    def __init__(
        self,
        vendor: str,
        process: VendorProcess,
        opened: OpenedBackend,
        seconds: float,
        ask: Callable[[str], Awaitable[Any]],
        losses: SampleLosses,
    ) -> None:
        self._vendor = vendor
        self._process = process
        self._opened = opened
        self._seconds = seconds
        self._ask = ask
        self._losses = losses
        self._started = False
        self._missed = 0

    async def sample(self) -> VendorSample:
        """Make a sample; one caller at a time (`VendorSupervisor.sample`)."""
        if self._opened.methods.isdisjoint(SAMPLED):
            raise VendorError(f"{self._vendor}: sample: the backend has neither usage nor processes")
        self._losses.check()
        if self._opened.one_caller:
            raw = await self._ask("sample")
        else:
            raw = await self._answer()
        self._losses.forget()
        return await _decoded(self._vendor, raw)

    async def _answer(self) -> bytes:
        if self._missed >= MISSES:
            why = f"{MISSES} samples in a row did not return within {self._seconds:g} s"
            raise SamplingEnded(self._vendor, "the vendor's process is replaced", why)
        try:
            # Each miss is a whole deadline, however often a sample is wanted.
            await self._process.sampled(self._seconds)
            await self._start()
            raw = await self._process.sample(self._seconds)
        except TimeoutError:
            self._missed += 1
            if self._missed == MISSES:
                log.warning("sampling ended", vendor=self._vendor, missed=MISSES, seconds=self._seconds)
            raise VendorTimeout(self._vendor, "sample", self._seconds) from None
        self._missed = 0
        return raw

    async def _start(self) -> None:
        """Have the process read beside its calls, which it begins to do between two of them."""
        if not self._started:
            await self._ask("start_sampling")
            self._started = True


async def _decoded(vendor: str, raw: bytes) -> VendorSample:
    """Decode a sample, in a thread where that may take long: no call of a pod is to wait for that."""
    from agent.isolation import sample_answers  # here: an agent that samples nothing loads none of it

    if (sample := sample_answers.quick_sample(raw)) is not None:
        return sample
    try:
        return await anyio.to_thread.run_sync(sample_answers.sample, raw, abandon_on_cancel=True)
    except WrongAnswer as exc:
        raise VendorError(f"{vendor}: sample answered wrongly: {exc}") from exc

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
    ) -> None:
        self._vendor = vendor
        self._process = process
        self._opened = opened
        self._seconds = seconds
        self._ask = ask
        self._started = False
        self._missed = 0

    async def sample(self) -> VendorSample:
        """Make a sample; one caller at a time (`VendorSupervisor.sample`)."""
        if self._opened.methods.isdisjoint(SAMPLED):
            raise VendorError(f"{self._vendor}: sample: the backend has neither usage nor processes")
        if self._opened.one_caller:
            return await _decoded(self._vendor, await self._ask("sample"))
        if self._missed >= MISSES:
            raise SamplingEnded(self._vendor, MISSES, self._seconds)
        return await _decoded(self._vendor, await self._answer())

    async def _answer(self) -> bytes:
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

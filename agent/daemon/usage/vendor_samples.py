"""Asks the vendors' processes for samples of use, and keeps the last one of each with how sampling goes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import anyio.to_thread
import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.config import Config
from agent.core.attribution.scheduler_promises import Promises
from agent.core.errors import SamplingEnded, VendorError
from agent.core.model import VendorState
from agent.core.usage.usage_report import SamplingStatus, VendorSample
from agent.daemon.usage.sample_joiner import JoinedSample, SampleJoiner
from agent.host.node_processes import ProcessReader, pod_log_directories, sees_node_pids
from agent.vendor_api.text import shorten

log = structlog.get_logger(__name__)


class SampledVendor(Protocol):
    """The process of one vendor, as `VendorSupervisor` has it."""

    async def sample(self) -> VendorSample:
        """The use of the vendor's cards now. Raises VendorError."""


class _Vendor(Struct):
    """What is known of one vendor's samples."""

    status: SamplingStatus
    joiner: SampleJoiner
    last: JoinedSample | None = None
    #: Whether a sample is awaited.
    is_asked: bool = False
    #: The last defect of the agent that was told.
    defect: str = ""


class VendorSamples:
    """The samples of the vendors in service. A vendor that hangs delays nothing but its own samples."""

    def __init__(
        self,
        vendors: Callable[[], Mapping[str, SampledVendor]],
        promises: Callable[[], Promises],
        config: Callable[[], Config],
        clock: Callable[[], float],
        log_directories: Callable[[], Collection[str]] = pod_log_directories,
    ) -> None:
        """`vendors` and `config`: those in service and in force now. `clock`: Unix time that never jumps."""
        self._vendors = vendors
        self._promises = promises
        self._config = config
        self._clock = clock
        self._log_directories = log_directories
        self._known: dict[str, _Vendor] = {}
        self._proc = config().usage.proc_dir

    @property
    def statuses(self) -> tuple[SamplingStatus, ...]:
        """How the sampling of each vendor in service goes."""
        vendors = self._vendors()
        return tuple(it.status for name, it in self._known.items() if name in vendors)

    @property
    def sees_node_pids(self) -> bool:
        """Whether the agent has the PIDs of the machine."""
        return sees_node_pids(self._proc)

    def fresh(self) -> Mapping[str, JoinedSample]:
        """The last samples that speak of now, of the vendors in service."""
        interval, vendors, now = self._config().usage.interval, self._vendors(), self._clock()
        return {
            name: known.last
            for name, known in self._known.items()
            if name in vendors and known.last is not None and known.status.is_fresh(interval, now)
        }

    def begin(self) -> Mapping[str, SampledVendor]:
        """Begin a round: the vendors whose samples are to be made now.

        A vendor that is not open is not asked. Its reason is in the vendor's state and in the log.
        """
        self._follow_proc_dir()
        vendors = self._vendors()
        states = {it.name: it for it in self._promises().scene.snapshot.vendors}
        is_open = {name for name in vendors if name in states and states[name].state is VendorState.OPEN}
        known = (name for name in vendors if name in self._known or name in is_open)
        self._known = {name: self._known.get(name) or self._new(name) for name in known}
        for name in self._known.keys() - is_open:
            vendor = self._known[name]
            vendor.status = replace(vendor.status, error=f"{name}: the vendor is not open")
        asked = {
            name: process
            for name, process in vendors.items()
            if name in is_open and not self._known[name].is_asked
        }
        for name in asked:
            self._known[name].is_asked = True
        return asked

    async def ask(self, name: str, process: SampledVendor) -> bool:
        """Make the sample of a vendor that `begin` returned, and return whether something follows from it.

        Nothing does where there is no sample, or the vendor is out of service since.

        Raises:
            SamplingEnded: The vendor is sampled no more, and `fresh` has lost its last sample.
        """
        vendor = self._known[name]
        try:
            await self._ask(vendor, process)
        except VendorError as exc:
            ended = isinstance(exc, SamplingEnded)
            self._set_status(vendor, replace(vendor.status, error=str(exc), ended=ended))
            if ended:
                raise
            return False
        except Exception as exc:
            self.add_defect(name, exc)
            return False
        finally:
            vendor.is_asked = False
        return self._known.get(name) is vendor

    def add_defect(self, name: str, exc: Exception) -> None:
        """Say in the vendor's status and in the log that the agent failed with the sample."""
        vendor = self._known.get(name)
        if vendor is not None:
            error = f"{name}: a defect of the agent: {type(exc).__name__}: {shorten(str(exc), 300)}"
            if error != vendor.defect:  # once, and not with each sample
                log.exception("sampling failed, please report this with the log", vendor=name)
            vendor.defect = error
            self._set_status(vendor, replace(vendor.status, error=error))

    async def _ask(self, vendor: _Vendor, process: SampledVendor) -> None:
        sample = await process.sample()
        at = self._clock()
        join, promises = vendor.joiner.join, self._promises()
        joined = await anyio.to_thread.run_sync(join, sample, promises, abandon_on_cancel=True)
        vendor.last = joined
        complaints = [f"{method}: {it}" for method, it in joined.known.sample.complaints.items()]
        error = "; ".join(filter(None, (*complaints, joined.trouble)))
        tells = sample.processes is not None or "processes" in sample.complaints
        self._set_status(vendor, SamplingStatus(vendor.status.vendor, at, error, tells_processes=tells))

    def _new(self, name: str) -> _Vendor:
        return _Vendor(SamplingStatus(name), self._new_joiner(name))

    def _new_joiner(self, name: str) -> SampleJoiner:
        return SampleJoiner(name, ProcessReader(self._proc), self._log_directories)

    def _follow_proc_dir(self) -> None:
        """Look for the processes where the config has them now. A sample that is awaited keeps its joiner."""
        proc = self._config().usage.proc_dir
        if proc != self._proc:
            self._proc = proc
            for name, vendor in self._known.items():
                vendor.joiner = self._new_joiner(name)

    def _set_status(self, vendor: _Vendor, status: SamplingStatus) -> None:
        if status.error and not vendor.status.error:  # the text may change with each sample
            log.warning("use of cards not known in full", vendor=status.vendor, error=status.error)
        if vendor.status.error and not status.error:
            log.info("use of cards known again", vendor=status.vendor)
        vendor.status = status

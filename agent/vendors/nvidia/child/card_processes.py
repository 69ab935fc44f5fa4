"""Reads which processes use the cards and MIG devices, and how much of them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from struct import Struct
from typing import Any

from agent.vendor_api.backend import ProcessUsage
from agent.vendors.nvidia.shared import constants

from . import mig
from .cards import NvidiaCard
from .struct_array import StructArray

#: Of nvmlProcessInfo_t, second and third version: pid, and bytes of memory.
INFO = Struct("=I4xQ8x")
#: Of nvmlProcessUtilizationSample_t: pid, Unix time in microseconds, and percent of time with a kernel.
SAMPLE = Struct("=I4xQI12x")

#: A process with a context for compute and one for graphics is in two lists, each with all its memory. The
#: clients of MPS are in the last list. The driver of `recorded_driver.json` has them in the first one, too.
COMPUTE, GRAPHICS, MPS = (
    f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute")
)
#: The third version is there from R510 on; the structs of the second are the same. The first one is older
#: than any driver that this agent meets.
VERSIONS = ("_v3", "_v2")

#: What NVML says of memory that is not available, and what stands for that here: less than any memory.
NOT_AVAILABLE, UNKNOWN = (1 << 64) - 1, -1


class CardProcesses:
    """Reads the processes within one NVML session. All calls come from one thread at a time."""

    def __init__(self, nvml: Any, clock: Callable[[], float] = time.time) -> None:
        self._nvml = nvml
        self._clock = clock
        self._infos, self._samples = StructArray(nvml, INFO), StructArray(nvml, SAMPLE)
        self._lists = {name: _newest(nvml.nvmlLib, name) for name in (COMPUTE, GRAPHICS, MPS)}
        self._sampled = getattr(nvml.nvmlLib, "nvmlDeviceGetProcessUtilization", None)
        #: The time of the newest sample by the card's UUID.
        self._seen: dict[str, int] = {}
        self._absent = frozenset(
            {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION}
        )

    def read(self, cards: Iterable[NvidiaCard]) -> list[ProcessUsage]:
        """The processes on these cards, or on the MIG devices of cards in MIG mode.

        A card or MIG device that cannot be read is left out.
        """
        found: list[ProcessUsage] = []
        for card in cards:
            for uuid, handle in self._devices(card):
                try:
                    found += self._read(uuid, handle, split=uuid != card.uuid)
                except self._nvml.NVMLError:
                    continue
        return found

    def _devices(self, card: NvidiaCard) -> Iterator[tuple[str, Any]]:
        if card.handle is None:
            return
        if constants.in_mig_mode(card.device):
            for device, handle in mig.handles(self._nvml, card):
                yield device.uuid, handle
        else:
            yield card.uuid, card.handle

    def _read(self, uuid: str, handle: Any, *, split: bool) -> list[ProcessUsage]:
        lists = {name: self._listed(name, handle) for name in self._lists}
        memory: dict[int, int] = {}
        for listed in lists.values():
            for pid, amount in listed:
                known = UNKNOWN if amount == NOT_AVAILABLE else amount
                memory[pid] = max(memory.get(pid, UNKNOWN), known)
        # NVML has no utilization of processes on MIG devices. Where nothing runs, the call is not worth its
        # milliseconds.
        busy = None if split or not memory else self._utilization(uuid, handle)
        clients = {pid for pid, _ in lists[MPS]}
        return [
            ProcessUsage(uuid, pid, None if known == UNKNOWN else known, _part(pid, busy, clients))
            for pid, known in memory.items()
        ]

    def _listed(self, name: str, handle: Any) -> list[tuple[int, ...]]:
        """Pid and memory of each process in a list; none if this driver, or card, has no such list.

        Raises:
            NVMLError: The device cannot be read.
        """
        call = self._lists[name]
        try:
            return [] if call is None else self._infos.fill(lambda out, count: call(handle, count, out))
        except self._nvml.NVMLError as error:
            if error.value not in self._absent:
                raise
            return []

    def _utilization(self, uuid: str, handle: Any) -> Mapping[int, int] | None:
        """Percent by pid, of the processes that were busy since the last call; None if NVML cannot tell.

        NVML keeps samples of the last seconds, and tells those newer than a time that the caller gives. If
        that time is in the future, because the node's clock was set or a sample was garbage, all samples are
        new.
        """
        if self._sampled is None:
            return None
        seen = self._seen.get(uuid, 0)
        since = seen if seen <= self._clock() * 1e6 else 0
        call = partial(self._sampled, handle)
        try:
            samples = self._samples.fill(lambda out, count: int(call(out, count, ctypes.c_ulonglong(since))))
        except self._nvml.NVMLError as error:
            return {} if error.value == self._nvml.NVML_ERROR_NOT_FOUND else None
        samples = sorted((sample for sample in samples if sample[1] > since), key=itemgetter(1))
        if samples:
            self._seen[uuid] = samples[-1][1]
        return {pid: percent for pid, _, percent in samples}


def _newest(library: ctypes.CDLL, name: str) -> Any:
    """The newest version of a function that this driver has; None if there is none."""
    found = (getattr(library, name + version, None) for version in VERSIONS)
    return next((function for function in found if function is not None), None)


def _part(pid: int, busy: Mapping[int, int] | None, clients: Iterable[int]) -> float | None:
    """The utilization of a process, from 0 to 1.

    A process without a sample is idle, but a client of MPS: the samples of clients are their server's.
    """
    if busy is None or (pid in clients and pid not in busy):
        return None
    return busy.get(pid, 0) / 100

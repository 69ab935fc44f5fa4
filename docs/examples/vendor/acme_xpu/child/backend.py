"""Acme's cards through libacme.so, in the vendor's own process."""

import ctypes
from collections.abc import Iterator, Sequence

from agent.vendor_api.backend import (
    DRIVER_NOT_LOADED,
    Backend,
    BackendUnavailable,
    Device,
    Fault,
    HealthEvent,
    ProcessUsage,
    Proof,
    Usage,
)

LINK_DOWN, WAS_RESET = 1, 2
MOST_PROCESSES = 64


class AcmeBackend(Backend):
    """Each call is one of the library's; what the library cannot say is None or a Fault, never a guess."""

    def open(self) -> None:
        try:
            self._lib = ctypes.CDLL(self.settings.get("library") or "libacme.so")
        except OSError as exc:
            raise BackendUnavailable("library-not-found", f"{exc}; install Acme's driver") from exc
        if self._lib.acme_open() != 0:
            raise BackendUnavailable(DRIVER_NOT_LOADED, "libacme.so finds no driver")

    def discover(self) -> Sequence[Device]:
        count = self._lib.acme_count()
        if count < 0:
            raise BackendUnavailable(DRIVER_NOT_LOADED, "the driver has gone")
        return [self._device(index) for index in range(count)]

    def _device(self, index: int) -> Device:
        uuid, path = self._uuid(index), f"/dev/acme{index}"
        if uuid is None:
            fault = Fault("unreadable", "acme_uuid does not answer")
            return Device(f"nameless-{index}", index, paths=(path,), fault=fault, nameless=True)
        return Device(
            uuid, index, minor=index, memory=self._lib.acme_gib(index) << 30, model="Acme 1", paths=(path,)
        )

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        """One event at most; the agent asks again at once."""
        index = ctypes.c_int()
        what = self._lib.acme_wait(int(timeout * 1000), ctypes.byref(index))
        uuid = self._uuid(index.value) if what else None
        if uuid is None:
            return ()
        if what == LINK_DOWN:
            proofs = (Proof.RESET, Proof.DRIVER_RELOAD, Proof.REBOOT)
            return (HealthEvent(uuid, Fault("link-down", "a port lost its signal", cleared_by=proofs)),)
        return (HealthEvent(uuid, None, Proof.RESET),) if what == WAS_RESET else ()

    def usage(self) -> Sequence[Usage]:
        """The memory and the load of each card, without cards that do not answer."""
        found = []
        for index, uuid in self._readable():
            used, percent = ctypes.c_longlong(), ctypes.c_int()
            if self._lib.acme_load(index, ctypes.byref(used), ctypes.byref(percent)) == 0:
                total = self._lib.acme_gib(index) << 30
                found.append(Usage(uuid, used.value, total, utilization=percent.value / 100))
        return found

    def processes(self) -> Sequence[ProcessUsage]:
        """Each process with its memory; the library does not say how much it computes."""
        pids, used = (ctypes.c_int * MOST_PROCESSES)(), (ctypes.c_longlong * MOST_PROCESSES)()
        found: list[ProcessUsage] = []
        for index, uuid in self._readable():
            count = self._lib.acme_processes(index, pids, used, MOST_PROCESSES)
            found += [ProcessUsage(uuid, pids[at], used[at]) for at in range(max(0, count))]
        return found

    def _readable(self) -> Iterator[tuple[int, str]]:
        for index in range(self._lib.acme_count()):
            if (uuid := self._uuid(index)) is not None:
                yield index, uuid

    def _uuid(self, index: int) -> str | None:
        text = ctypes.create_string_buffer(64)
        return text.value.decode() if self._lib.acme_uuid(index, text, len(text)) == 0 else None

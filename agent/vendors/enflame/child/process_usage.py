"""Which processes use the cards, through EFML, with what follows from earlier samples.

A process on a slice of DRS is told for the slice's card, because EFML does not know these slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.vendor_api.backend import ProcessUsage
from agent.vendors.common import library_cards

from .cards import EnflameCard, EnflameReading
from .library import Efml
from .library_errors import EfmlError
from .values import Process, ProcessLoad

#: The unit in which the index family counts the memory of processes is not published. Numbers that are, as
#: bytes, this part of the memory in use prove bytes: as KiB they would be 16 times the memory in use.
PROVING_PART = 1 / 64


class ProcessSampler:
    """Reads the processes on all cards, sample by sample."""

    def __init__(self) -> None:
        #: The newest load of each process at the last sample, by the card's uuid and the pid.
        self._newest: dict[str, dict[int, ProcessLoad]] = {}
        #: Whether the index family was seen to count bytes of memory that processes use.
        self._in_bytes = False

    def processes(self, efml: Efml, cards: Iterable[EnflameCard]) -> list[ProcessUsage]:
        """The processes on each card that can list them.

        Raises:
            EfmlError: No card tells its processes.
        """
        found: list[ProcessUsage] = []
        asked = [card for card in cards if card.reachable]
        failed: list[EfmlError] = []
        for card in asked:
            try:
                listed = efml.processes(card.index)
            except EfmlError as error:
                failed.append(error)
            else:
                found += self._measured(EnflameReading(efml, card.index), card, listed)
        if failed and len(failed) == len(asked):
            raise failed[0]
        return found

    def _measured(
        self, reading: EnflameReading, card: EnflameCard, listed: Sequence[Process]
    ) -> list[ProcessUsage]:
        if not listed:
            return []
        loads = self._loads(reading, card)
        is_known = all(it.in_bytes for it in listed) or self._counts_bytes(reading, card, listed)
        return [
            library_cards.process(
                card, process.pid, process.memory if is_known else None, loads.get(process.pid)
            )
            for process in listed
        ]

    def _counts_bytes(self, reading: EnflameReading, card: EnflameCard, listed: Iterable[Process]) -> bool:
        if not self._in_bytes and (memory := reading.get(reading.efml.memory, None)) and memory.used:
            held = sum(it.memory for it in listed if it.memory <= memory.total)
            self._in_bytes = held >= memory.used * PROVING_PART
        return self._in_bytes

    def _loads(self, reading: EnflameReading, card: EnflameCard) -> dict[int, int]:
        """Percent of the card's compute that processes use: the newest load, if there is one since last time.

        A process without a new load is absent: EFML does not say that such a process was idle.
        """
        none: tuple[ProcessLoad, ...] = ()
        loads = sorted(reading.get(reading.efml.process_loads, none), key=lambda it: it.time)
        newest = {it.pid: it for it in loads}
        before, self._newest[card.uuid] = self._newest.get(card.uuid, {}), newest
        return {pid: it.percent for pid, it in newest.items() if it != before.get(pid) and it.percent <= 100}

"""Enflame's backend: cards, health and links through EFML, slices through the tool efsmi."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import (
    Device,
    Fault,
    HealthEvent,
    Link,
    Partition,
    ProcessUsage,
    Request,
    RequestRefused,
    State,
    Usage,
)
from agent.vendors.common import library_cards
from agent.vendors.common.library_backend import LibraryBackend
from agent.vendors.enflame.shared import cdi_spec, constants, device_nodes, sysfs

from . import card_usage, cards, efsmi, faults, library, survey, survey_by_sysfs
from . import links as topology
from .cards import EnflameCard, EnflameReading
from .disturbances import Disturbances
from .driver_events import EfmlEventWatch
from .efsmi import Efsmi, EfsmiError
from .faults_over_time import FaultsOverTime
from .library import Efml
from .library_errors import EfmlError, unavailable
from .process_usage import ProcessSampler
from .slice_journal import DrsJournal
from .slice_profiles import KnownProfiles
from .slices import DrsSlices

#: Seconds for all efsmi commands of one call: to make or remove slices, to list them, to discover cards. Each
#: is a little less than the agent's deadline for the call.
MAKING, LISTING, DISCOVERING = 7.0, 1.8, 4.0
#: Seconds between two runs of efsmi in `discover`, while this backend changes no slices.
PERIOD = 30.0
#: Seconds between two readings of a card's temperature and heartbeat.
PULSE = 1.0


@dataclass(slots=True)
class EfmlSession:
    """The parts that exist between `open` and `close` if there is a library."""

    efml: Efml
    slices: DrsSlices
    watch: EfmlEventWatch
    #: Attributes that are the same for all cards: versions of driver and library.
    driver: Mapping[str, str]


class EnflameBackend(LibraryBackend[EfmlSession, EnflameCard]):
    """One session with EFML. The lock `calls` is never held while efsmi runs, because efsmi may be slow."""

    library_name = "EFML"
    one_caller = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._journal: DrsJournal | None = None
        self._profiles: KnownProfiles | None = None
        self._over_time = FaultsOverTime()
        self._disturbances = Disturbances()
        self._processes = ProcessSampler()
        #: When efsmi was last run in `discover`; None: it is due now.
        self._sliced_at: float | None = None
        #: When temperature and heartbeat of each card were last read.
        self._pulsed: dict[str, float] = {}
        self.period = PERIOD
        self.clock = time.monotonic

    def discover(self) -> Sequence[Device]:
        with self.calls:
            session = self._current_session()
            if session is None:
                return survey_by_sysfs.devices(self.settings)
            found = self._with_more_faults(self._all_cards(session))
            self._cards = {card.uuid: card for card in found}
            self._watch_cards(session)
        own = self._efsmi_attributes(session, found)
        return library_cards.in_order(library_cards.labelled(found, self._node(session), own))

    def links(self, uuid: str) -> Sequence[Link]:
        card = self._cards.get(uuid)
        if card is None or self.session is None:
            return ()
        return topology.links(self.session.efml, self._sysfs, card, self._cards.values())

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        session = self.session
        if session is None:
            self._wait_for_close(timeout)
            return ()
        return session.watch.next_events(timeout)

    def prepare(self, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        slices = self._library_session().slices
        distinct = set(uuids)  # `uuids` has one card for each device ID
        if len(distinct) != 1:
            raise RequestRefused(
                f"{len(request.ids)} of {request.resource} are on {len(distinct)} cards: a container gets a "
                "slice of one card; ask for no more than one card has"
            )
        chosen = self._card(uuids[0])
        others = [it for it in self._sliceable() if it.uuid != chosen.uuid]
        slices.set_deadline(MAKING)
        self._sliced_at = None
        return [slices.make(request, chosen, others).partition()]

    def release(self, allocation: str) -> None:
        if (session := self._session_if_any()) is None:
            return
        session.slices.set_deadline(MAKING)
        self._sliced_at = None
        session.slices.remove(allocation, self._sliceable())

    def partitions(self) -> Sequence[Partition]:
        if (session := self._session_if_any()) is None:
            return ()
        session.slices.set_deadline(LISTING)
        return [it.partition() for it in session.slices.all(self._sliceable())]

    def cdi(self) -> Mapping[str, str]:
        if self.session is None:
            return cdi_spec.spec(())
        control = device_nodes.control(self.settings)
        named = []
        for uuid, allocation, instance in self.session.slices.own_instances():
            if card := self._cards.get(uuid):
                paths = (*filter(None, (control,)), *card.device.paths)
                named.append(cdi_spec.Sliced(allocation, instance, card.device.minor, paths))
        return cdi_spec.spec(named)

    def usage(self) -> Sequence[Usage]:
        if self.session is None:
            return ()
        return card_usage.usages(self.session.efml, self._cards.values())

    def processes(self) -> Sequence[ProcessUsage]:
        return self._processes.processes(self._library_session().efml, self._cards.values())

    # The library

    def _start(self) -> EfmlSession:
        efml = library.start(self.settings)
        path = efsmi.find(self.settings, _root(device_nodes.root(self.settings)))
        self._journal = self._journal or DrsJournal(self.directory)
        self._profiles = self._profiles or KnownProfiles(self.directory)

        slices = DrsSlices(Efsmi(path) if path else None, self._journal, self._profiles)
        watch = EfmlEventWatch(
            efml, self._read_fault, self._read_over_time, self._disturbances, self.calls, lambda: self.clock()
        )
        session = EfmlSession(efml, slices, watch, _driver(efml, self._sysfs))
        self._sliced_at = None
        return session

    def _end(self, session: EfmlSession | None) -> None:
        if session is not None:
            session.watch.close()
            session.efml.close()

    def _cards_of_sysfs(self) -> list[str]:
        return sysfs.cards(self._sysfs)

    def _sysfs_is_enough(self) -> bool:
        return sysfs.driver_loaded(self._sysfs)

    def _rescan(self, session: EfmlSession) -> None:
        try:
            session.efml.init()
        except EfmlError as error:
            raise unavailable(error) from error
        session.driver = _driver(session.efml, self._sysfs)

    def _survey(self, session: EfmlSession) -> list[EnflameCard]:
        try:
            return survey.survey(session.efml, self.settings, self._cards)
        except EfmlError as error:
            raise unavailable(error, "efml") from error

    def _expected(self) -> bool:
        return bool(self._cards_of_sysfs())

    def _grown(self, counter: str, before: int, now: int) -> Fault:
        return faults.grown(counter, before, now)

    def _node(self, session: EfmlSession) -> dict[str, str]:
        """Attributes of all cards: the versions, and the driver's control node if there is one."""
        control = device_nodes.control(self.settings)
        return {**session.driver, constants.CONTROL_NODE: control} if control else dict(session.driver)

    # Health

    def _with_more_faults(self, found: Sequence[EnflameCard]) -> list[EnflameCard]:
        """The cards with the faults that driver events and readings over time show."""
        more: dict[str, Fault] = {}
        for card in found:
            fault = self._disturbances.fault(card.uuid, self.clock()) or self._over_time.fault(card.uuid)
            if fault is not None:
                more[card.uuid] = fault
        return survey.with_faults(found, more)

    def _watch_cards(self, session: EfmlSession) -> None:
        """Give the cards to the watch, and report errors that their counters show now."""
        session.watch.watch_cards({uuid: card.index for uuid, card in self._cards.items() if card.reachable})
        session.watch.add_events(self._counter_events())

    def _read_fault(self, uuid: str) -> Fault | None:
        """Read the fault of a card now. The watch calls this."""
        card, session = self._cards.get(uuid), self.session
        if card is None or session is None:
            return None
        reading = EnflameReading(session.efml, card.index)
        wrong = cards.health(reading, self.settings, card.device.pci) or reading.fault
        new = self._baseline.new_faults(uuid, cards.counters(reading))
        if wrong is not None and wrong.state is not State.UNKNOWN:
            session.watch.add_events([HealthEvent(uuid, fault) for fault in new])
            return wrong
        return next(iter(new), None)

    def _read_over_time(self, uuid: str) -> Fault | None:
        """Read temperature and heartbeat of a card if that is due, and return the fault that they show.

        The watch calls this in each round.
        """
        card, session, now = self._cards.get(uuid), self.session, self.clock()
        if card is None or session is None:
            return None
        if now - self._pulsed.get(uuid, -PULSE) >= PULSE:
            self._pulsed[uuid] = now
            chip: float | None = None
            with suppress(EfmlError):  # `_read_fault` and `discover` report a card that cannot be read
                chip = session.efml.temperature(card.index).chip
            beat = sysfs.beat(self._sysfs, card.device.pci) if card.device.pci else None
            self._over_time.add(uuid, now, chip, beat)
        return self._over_time.fault(uuid)

    # Slices

    def _card(self, uuid: str) -> EnflameCard:
        card = self._cards.get(uuid)
        if card is None:
            raise RequestRefused(f"{uuid} is not among the cards here")
        if not card.sliceable or not card.reachable:
            why = card.device.fault.message if card.device.fault else "it tells no uuid"
            raise RequestRefused(f"no slice is made on {uuid}: {why}")
        return card

    def _sliceable(self) -> list[EnflameCard]:
        """The cards that may have slices. Slices are made on fewer of them: see `_card`."""
        return [it for it in self._cards.values() if it.sliceable]

    def _efsmi_attributes(
        self, session: EfmlSession, found: Sequence[EnflameCard]
    ) -> dict[str, dict[str, str]]:
        """The attributes of each card that come from efsmi, by uuid. efsmi runs once in `period` seconds.

        efsmi also runs if this backend makes no slices, because other programs may make some. Without efsmi
        this does nothing, unless slices are wanted or the journal has some. An error of efsmi is logged.
        """
        slices = session.slices
        if not (slices.has_tool or self.settings.get(constants.DRS_WANTED) or slices.has_journal_pages):
            return {}
        now = self.clock()
        if self._sliced_at is None or now - self._sliced_at >= self.period:
            self._sliced_at = now
            slices.set_deadline(DISCOVERING)
            try:
                slices.refresh([card for card in found if card.sliceable])
            except (EfsmiError, OSError) as error:
                slices.log_once(str(error))
        return {card.uuid: slices.attributes(card) for card in found}


def _root(host: str) -> str:
    return "" if host == "/" else host


def _driver(efml: Efml, root: Path) -> dict[str, str]:
    """The versions of driver and library. A version that is not readable is absent."""
    found = {constants.DRIVER_VERSION: sysfs.driver_version(root)}
    with suppress(EfmlError):  # no version is no fault of a card
        found[constants.DRIVER_VERSION] = found[constants.DRIVER_VERSION] or efml.driver_version()
    with suppress(EfmlError):
        found[constants.LIBRARY_VERSION] = efml.library_version()
    return {name: text for name, text in found.items() if text}

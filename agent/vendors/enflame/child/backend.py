"""Enflame's half in the child process: cards, their health and links through EFML, their slices by efsmi."""

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
    Request,
    RequestRefused,
    State,
    Usage,
)
from agent.vendors.common import library_cards
from agent.vendors.common.earlier_readings import CounterBaseline
from agent.vendors.common.library_backend import LibraryBackend
from agent.vendors.enflame import cdi, constants, device_nodes, sysfs

from . import cards, efsmi, faults, library, survey, survey_by_sysfs
from . import links as topology
from .cards import EnflameCard, EnflameReading
from .disturbances import Disturbances
from .driver_events import EfmlEventWatch
from .efsmi import Efsmi, EfsmiError
from .faults_over_time import FaultsOverTime
from .library import Efml
from .library_errors import EfmlError, unavailable
from .slice_journal import DrsJournal
from .slice_profiles import KnownProfiles
from .slices import DrsSlices

#: Seconds that all commands of one call may take together, each a little less than the agent waits.
MAKING, LISTING, LOOKING = 7.0, 1.8, 4.0
#: Seconds between two looks at what lies on cards, while we change nothing there.
PERIOD = 30.0
#: Seconds between two looks at what only time shows.
PULSE = 1.0


@dataclass(slots=True)
class EfmlSession:
    """What lives between open and close."""

    efml: Efml
    slices: DrsSlices
    watch: EfmlEventWatch
    #: What is the same for all cards.
    driver: Mapping[str, str]


class EnflameBackend(LibraryBackend[EfmlSession, EnflameCard]):
    """One session with EFML; efsmi is never run while `calls` is held: efsmi may be slow."""

    library_name = "EFML"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._journal: DrsJournal | None = None
        self._known: KnownProfiles | None = None
        self._baseline: CounterBaseline | None = None
        self._vitals = FaultsOverTime()
        self._disturbances = Disturbances()
        self._sliced_at: float | None = None
        self._pulsed: dict[str, float] = {}
        self.period = PERIOD
        self.clock = time.monotonic

    def discover(self) -> Sequence[Device]:
        with self.calls:
            session = self._current_session()
            if session is None:
                return survey_by_sysfs.devices(self.settings)
            found = self._disturbed(self._all_cards(session))
            self._cards = {card.uuid: card for card in found}
            self._watched(session)
        own = self._sliced(session, found)
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
        return session.watch.news(timeout)

    def prepare(self, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        slices = self._library_session().slices
        distinct = set(uuids)  # each ID's card
        if len(distinct) != 1:
            raise RequestRefused(
                f"{len(request.ids)} of {request.resource} lie on {len(distinct)} cards: the slice of a "
                "container lies on one card; ask for no more than a card has"
            )
        chosen = self._card(uuids[0])
        others = [it for it in self._sliceable() if it.uuid != chosen.uuid]
        slices.hurry(MAKING)
        self._sliced_at = None
        return [slices.make(request, chosen, others).partition()]

    def release(self, allocation: str) -> None:
        if (session := self._session_if_any()) is None:
            return
        session.slices.hurry(MAKING)
        self._sliced_at = None
        session.slices.remove(allocation, self._sliceable())

    def partitions(self) -> Sequence[Partition]:
        if (session := self._session_if_any()) is None:
            return ()
        session.slices.hurry(LISTING)
        return [it.partition() for it in session.slices.all(self._sliceable())]

    def cdi(self) -> Mapping[str, str]:
        if self.session is None:
            return cdi.spec(())
        control = device_nodes.control(self.settings)
        named = []
        for uuid, allocation, instance in self.session.slices.ours():
            if card := self._cards.get(uuid):
                paths = (*filter(None, (control,)), *card.device.paths)
                named.append(cdi.Sliced(allocation, instance, card.device.minor, paths))
        return cdi.spec(named)

    def usage(self) -> Sequence[Usage]:
        if self.session is None:
            return ()
        efml = self.session.efml
        return [it for card in self._cards.values() if card.reachable and (it := cards.usage(efml, card))]

    # The library

    def _start(self) -> EfmlSession:
        efml = library.start(self.settings)
        path = efsmi.find(self.settings, _root(device_nodes.root(self.settings)))
        self._journal = self._journal or DrsJournal(self.directory)
        self._known = self._known or KnownProfiles(self.directory)
        self._baseline = self._baseline or CounterBaseline(self.directory, faults.grown)
        slices = DrsSlices(Efsmi(path) if path else None, self._journal, self._known)
        watch = EfmlEventWatch(
            efml, self._look, self._pulse, self._disturbances, self.calls, lambda: self.clock()
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

    def _node(self, session: EfmlSession) -> dict[str, str]:
        """What all cards have: the driver and its node."""
        control = device_nodes.control(self.settings)
        return {**session.driver, constants.CONTROL_NODE: control} if control else dict(session.driver)

    # Health

    def _disturbed(self, found: Sequence[EnflameCard]) -> list[EnflameCard]:
        """The cards with what the driver told of them, and with what only time shows."""
        more: dict[str, Fault] = {}
        for card in found:
            fault = self._disturbances.fault(card.uuid, self.clock()) or self._vitals.fault(card.uuid)
            if fault is not None:
                more[card.uuid] = fault
        return survey.with_faults(found, more)

    def _watched(self, session: EfmlSession) -> None:
        """Hand the cards to the watch, with what reading them told that polls would tell too late."""
        assert self._baseline is not None
        session.watch.put({uuid: card.index for uuid, card in self._cards.items() if card.reachable})
        for uuid, card in self._cards.items():
            new = self._baseline.new_faults(uuid, card.device.counters)
            session.watch.tell([HealthEvent(uuid, fault) for fault in new])

    def _look(self, uuid: str) -> Fault | None:
        """What is wrong with a card now, asked by the watch."""
        card, session = self._cards.get(uuid), self.session
        if card is None or session is None or self._baseline is None:
            return None
        look = EnflameReading(session.efml, card.index)
        said = cards.health(look, self.settings, card.device.pci) or look.fault
        new = self._baseline.new_faults(uuid, cards.counters(look))
        if said is not None and said.state is not State.UNKNOWN:
            session.watch.tell([HealthEvent(uuid, fault) for fault in new])
            return said
        return next(iter(new), None)

    def _pulse(self, uuid: str) -> Fault | None:
        """What only time shows of a card, asked by the watch."""
        card, session, now = self._cards.get(uuid), self.session, self.clock()
        if card is None or session is None:
            return None
        if now - self._pulsed.get(uuid, -PULSE) >= PULSE:
            self._pulsed[uuid] = now
            chip: float | None = None
            with suppress(EfmlError):  # what this means a look at the card says
                chip = session.efml.temperature(card.index).chip
            beat = sysfs.beat(self._sysfs, card.device.pci) if card.device.pci else None
            self._vitals.look(uuid, now, chip, beat)
        return self._vitals.fault(uuid)

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
        """The cards on which slices may lie; they are made on fewer."""
        return [it for it in self._cards.values() if it.sliceable]

    def _sliced(self, session: EfmlSession, found: Sequence[EnflameCard]) -> dict[str, dict[str, str]]:
        """What efsmi says of the cards, where it is here, or slices are wanted or were. Others may make some
        whatever we offer. That it fails hides no card.
        """
        if not (session.slices.seeing or self.settings.get(constants.DRS_WANTED) or session.slices.written):
            return {}
        now = self.clock()
        if self._sliced_at is None or now - self._sliced_at >= self.period:
            self._sliced_at = now
            session.slices.hurry(LOOKING)
            try:
                session.slices.look([card for card in found if card.sliceable])
            except (EfsmiError, OSError) as error:
                session.slices.complain(str(error))
        return {card.uuid: session.slices.attributes(card) for card in found}


def _root(host: str) -> str:
    return "" if host == "/" else host


def _driver(efml: Efml, root: Path) -> dict[str, str]:
    """The versions of driver and library; one that is not told is absent."""
    found = {constants.DRIVER_VERSION: sysfs.driver_version(root)}
    with suppress(EfmlError):  # it says nothing of the cards
        found[constants.DRIVER_VERSION] = found[constants.DRIVER_VERSION] or efml.driver_version()
    with suppress(EfmlError):
        found[constants.LIBRARY_VERSION] = efml.library_version()
    return {name: text for name, text in found.items() if text}

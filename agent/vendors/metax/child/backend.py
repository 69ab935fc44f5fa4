"""MetaX's half in the child process: cards, their slices, links and health, all through MXSML."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from agent.vendor_api.backend import (
    Device,
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
from agent.vendors.metax import constants, sysfs

from . import cdi, device_nodes, faults, library, survey, survey_by_sysfs
from . import driver_version as driver
from . import links as topology
from .cards import MetaxCard, MetaxReading, counters, health, usage
from .driver_events import MxsmlEventWatch
from .earlier_layouts import EarlierLayouts
from .layouts import SgpuSlice
from .library import Mxsml, MxsmlError
from .slice_journal import SgpuJournal
from .slices import SgpuSlices

#: Seconds until the nodes of a new slice are there: who makes them (udev) is told by the kernel.
NODE_PATIENCE = 2.0
GLANCE = 0.01


class MxsmlSession:
    """What lives between open and close."""

    def __init__(self, mxsml: Mxsml, slices: SgpuSlices, driver: Mapping[str, str]) -> None:
        """`driver` is the same for all cards."""
        self.mxsml, self.slices, self.driver = mxsml, slices, driver
        self.zones: Mapping[str, int] = {}
        #: The cards whose groups these are.
        self.grouped: frozenset[str] = frozenset()


class MetaxBackend(LibraryBackend[MxsmlSession, MetaxCard]):
    """One session with MXSML; `calls` is held for each call, for MXSML promises nothing of two at once."""

    library_name = "MXSML"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._mode = settings.get("mode") or constants.NATIVE
        self._baseline: CounterBaseline | None = None
        self._watch: MxsmlEventWatch | None = None
        self.node_patience = NODE_PATIENCE
        #: The cards of the request that was prepared last, until its slices were told.
        self._prepared: frozenset[str] = frozenset()

    def discover(self) -> Sequence[Device]:
        with self.calls:
            session = self._current_session()
            if session is None:
                return survey_by_sysfs.devices(self.settings)
            found = self._all_cards(session)
            self._group(session, found)
            session.slices.probe(card for card in found if card.sliceable)
            zones = {uuid: {constants.LINK_ZONE: str(zone)} for uuid, zone in session.zones.items()}
            found = library_cards.labelled(found, self._node(session), zones)
            self._cards = {card.uuid: card for card in found}
            session.slices.learn(self._sliced())
            self._watched(session.mxsml)
            return library_cards.in_order(found)

    def links(self, uuid: str) -> Sequence[Link]:
        with self.calls:
            card = self._cards.get(uuid)
            if card is None or self.session is None or card.device.parent:
                return ()
            whole = [it for it in self._cards.values() if not it.device.parent]
            return topology.links(self.session.mxsml, card, whole)

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        watch = self._watch
        if watch is None or self.session is None:
            self._wait_for_close(timeout)
            return ()
        return watch.news(timeout)

    def prepare(self, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        with self.calls:
            session = self._library_session()
            self._prepared = frozenset(uuids)
            chosen = [self._card(uuid) for uuid in uuids]
            others = [it for it in self._sliced() if it.uuid not in uuids]
            try:
                made = session.slices.make(request, chosen, others)
                self._await_nodes(made)
            except (RequestRefused, MxsmlError) as error:
                if isinstance(error, MxsmlError) and not error.read_only:
                    raise
                session.slices.remove(request.allocation, self._sliced())
                raise _refusal(error) from error
            return [it.partition() for it in made]

    def release(self, allocation: str) -> None:
        with self.calls:
            if (session := self._session_if_any()) is not None:
                self._prepared = frozenset()
                session.slices.remove(allocation, self._sliced())

    def partitions(self) -> Sequence[Partition]:
        with self.calls:
            return [it.partition() for it in self._slices()]

    def cdi(self) -> Mapping[str, str]:
        with self.calls:
            ours = [it for it in self._readable() if it.allocation]
            named = [(it.allocation or "", it.sgpu.uuid, self._nodes(it)) for it in ours]
            return cdi.spec(named, self.settings.get("visibleDevices") or "")

    def usage(self) -> Sequence[Usage]:
        with self.calls:
            if self.session is None:
                return ()
            mxsml = self.session.mxsml
            return [it for card in self._cards.values() if card.reachable and (it := usage(mxsml, card))]

    # The library

    def _start(self) -> MxsmlSession:
        mxsml = library.start(self.settings)
        journal, seen = SgpuJournal(self.directory), EarlierLayouts(self.directory)
        slices = SgpuSlices(mxsml, journal, seen, self.settings.get("unclaimed") or "share")
        return MxsmlSession(mxsml, slices, driver.attributes(mxsml, self._sysfs))

    def _end(self, session: MxsmlSession | None) -> None:
        if self._watch is not None:
            self._watch.put({})
            self._watch.renew()

    def _cards_of_sysfs(self) -> list[str]:
        return sysfs.cards(self._sysfs)

    def _sysfs_is_enough(self) -> bool:
        return self._mode == constants.NATIVE and sysfs.driver_loaded(self._sysfs)

    def _rescan(self, session: MxsmlSession) -> None:
        if self._watch is not None:
            self._watch.renew()
        try:
            session.mxsml.init()
        except MxsmlError as error:
            raise library.unavailable(error, driver_loaded=sysfs.driver_loaded(self._sysfs)) from error

    def _survey(self, session: MxsmlSession) -> list[MetaxCard]:
        return survey.survey(session.mxsml, self.settings, self._cards)

    def _expected(self) -> bool:
        return bool(self._cards or self._cards_of_sysfs())

    def _node(self, session: MxsmlSession) -> dict[str, str]:
        """What all cards have: the driver, its nodes, and whether slices can be made."""
        found = dict(session.driver)
        if control := device_nodes.control(self.settings):
            found[constants.CONTROL_NODES] = ",".join(control)
        if self._mode == constants.SGPU and (session.slices.read_only or sysfs.read_only(self._sysfs)):
            found[constants.SYSFS] = constants.READ_ONLY
        return found

    def _group(self, session: MxsmlSession, found: Sequence[MetaxCard]) -> None:
        """Find the MetaXLink groups where the cards are others; links are not read again and again."""
        there = frozenset(card.uuid for card in found if card.reachable and not card.device.parent)
        if there != session.grouped:
            whole = [card for card in found if card.uuid in there]
            session.zones, session.grouped = topology.zones(session.mxsml, whole), there

    # Health

    def _watched(self, mxsml: Mxsml) -> None:
        """Hand the cards to the watch, with what reading them told that polls would tell too late."""
        if self._baseline is None:
            self._baseline = CounterBaseline(self.directory, faults.grown)
        if self._watch is None:
            self._watch = MxsmlEventWatch(mxsml, self._look, self.calls)
        self._watch.put(
            {card.index: uuid for uuid, card in self._cards.items() if card.reachable and not card.limited}
        )
        for uuid, card in self._cards.items():
            new = self._baseline.new_faults(uuid, card.device.counters)
            self._watch.tell([HealthEvent(uuid, fault) for fault in new])

    def _look(self, index: int) -> Sequence[HealthEvent]:
        """What is wrong with a card now, asked by the watch."""
        with self.calls:
            card = next((it for it in self._cards.values() if it.index == index), None)
            if card is None or self.session is None or self._baseline is None:
                return ()
            look = MetaxReading(self.session.mxsml, index, card.dies)
            said = health(look) or look.fault
            counted = {} if card.device.parent else counters(look)
            new = self._baseline.new_faults(card.uuid, counted)
            if said is not None and said.state is not State.UNKNOWN:
                new = [said, *new]
            return [HealthEvent(card.uuid, fault) for fault in new]

    # Slices

    def _card(self, uuid: str) -> MetaxCard:
        card = self._cards.get(uuid)
        if card is None:
            raise RequestRefused(f"{uuid} is not among the cards here")
        return card

    def _sliced(self) -> list[MetaxCard]:
        """The cards on which slices may lie; they are made on fewer."""
        return [it for it in self._cards.values() if it.may_be_sliced]

    def _slices(self) -> tuple[SgpuSlice, ...]:
        session = self._session_if_any()
        return session.slices.all(self._sliced()) if session else ()

    def _readable(self) -> tuple[SgpuSlice, ...]:
        """The slices that can be read, those of the request that was just prepared without fail."""
        needed, self._prepared = self._prepared, frozenset()
        session = self._session_if_any()
        return session.slices.readable(self._sliced(), needed) if session else ()

    def _nodes(self, it: SgpuSlice) -> list[str]:
        return device_nodes.of_slice(self.settings, self._numbers(it))

    def _numbers(self, it: SgpuSlice) -> device_nodes.SliceNumbers:
        names = tuple(path.rpartition("/")[2] for path in self._card(it.card).device.paths)
        card, render = sysfs.number(sysfs.CARD, names), sysfs.number(sysfs.RENDER, names)
        return device_nodes.SliceNumbers(it.sgpu.minor, it.sgpu.id, card, render)

    def _await_nodes(self, made: Sequence[SgpuSlice]) -> None:
        """Wait until the slices have their nodes; raises RequestRefused where they get none."""
        until = time.monotonic() + self.node_patience
        for it in made:
            while why := device_nodes.lacking(self.settings, it.id, self._numbers(it)):
                if time.monotonic() >= until:
                    raise RequestRefused(why)
                # udev makes the node after the call, and the standard library has no inotify to tell of it.
                time.sleep(GLANCE)


def _refusal(error: RequestRefused | MxsmlError) -> RequestRefused:
    if isinstance(error, RequestRefused):
        return error
    return RequestRefused(
        f"no slice is made: sysfs is read-only: the container needs a writable /sys ({error})"
    )

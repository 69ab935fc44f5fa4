"""MetaX's backend: cards, slices, links and health, all through MXSML."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
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
from agent.vendors.metax.shared import constants, sysfs

from . import card_usage, cdi_spec, device_nodes, faults, library, survey, survey_by_sysfs
from . import driver_version as driver
from . import links as topology
from .cards import MetaxCard, MetaxReading, counters, health
from .driver_events import MxsmlEventWatch
from .earlier_layouts import EarlierLayouts
from .layouts import SgpuSlice
from .library import Mxsml, MxsmlError
from .slice_journal import SgpuJournal
from .slices import SgpuSlices

#: Seconds that udev gets to make the device nodes of a new slice, and seconds between two looks for them.
NODE_PATIENCE = 2.0
NODE_POLL_INTERVAL = 0.01


class MxsmlSession:
    """The parts that exist between `open` and `close` if there is a library."""

    def __init__(self, mxsml: Mxsml, slices: SgpuSlices, driver: Mapping[str, str]) -> None:
        """`driver` are attributes that are the same for all cards: the versions of driver and MACA."""
        self.mxsml, self.slices, self.driver = mxsml, slices, driver
        #: The group of cards joined by MetaXLink, by uuid, and the cards that the groups were read for.
        self.zones: Mapping[str, int] = {}
        self.grouped: frozenset[str] = frozenset()


class MetaxBackend(LibraryBackend[MxsmlSession, MetaxCard]):
    """One session with MXSML. The lock `calls` is held for each call: MXSML may not be thread-safe."""

    library_name = "MXSML"
    one_caller = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._mode = settings.get("mode") or constants.NATIVE
        self._watch: MxsmlEventWatch | None = None
        self.node_patience = NODE_PATIENCE
        #: The cards of the last request that was prepared, until `cdi` has named its slices.
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
            session.slices.refresh(self._may_be_sliced())
            self._watch_cards(session.mxsml)
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
        return watch.next_events(timeout)

    def prepare(self, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        with self.calls:
            session = self._library_session()
            self._prepared = frozenset(uuids)
            chosen = [self._card(uuid) for uuid in uuids]
            others = [it for it in self._may_be_sliced() if it.uuid not in uuids]
            try:
                made = session.slices.make(request, chosen, others)
                self._await_nodes(made)
            except (RequestRefused, MxsmlError) as error:
                if isinstance(error, MxsmlError) and not error.read_only:
                    raise
                session.slices.remove(request.allocation, self._may_be_sliced())
                raise _refusal(error) from error
            return [it.partition() for it in made]

    def release(self, allocation: str) -> None:
        with self.calls:
            if (session := self._session_if_any()) is not None:
                self._prepared = frozenset()
                session.slices.remove(allocation, self._may_be_sliced())

    def partitions(self) -> Sequence[Partition]:
        with self.calls:
            return [it.partition() for it in self._slices()]

    def cdi(self) -> Mapping[str, str]:
        with self.calls:
            own = [it for it in self._readable() if it.allocation]
            slices = [(it.allocation or "", it.sgpu.uuid, self._nodes(it)) for it in own]
            return cdi_spec.spec(slices, self.settings.get("visibleDevices") or "")

    def usage(self) -> Sequence[Usage]:
        with self.calls:
            if self.session is None:
                return ()
            return card_usage.usages(self.session.mxsml, self._cards.values())

    def processes(self) -> Sequence[ProcessUsage]:
        with self.calls:
            return card_usage.processes(self._library_session().mxsml, self._cards.values())

    # The library

    def _start(self) -> MxsmlSession:
        mxsml = library.start(self.settings)
        journal, earlier = SgpuJournal(self.directory), EarlierLayouts(self.directory)
        slices = SgpuSlices(mxsml, journal, earlier, self.settings.get("unclaimed") or "share")
        return MxsmlSession(mxsml, slices, driver.attributes(mxsml, self._sysfs))

    def _end(self, session: MxsmlSession | None) -> None:
        if self._watch is not None:
            self._watch.watch_cards({})
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

    def _grown(self, counter: str, before: int, now: int) -> Fault:
        return faults.grown(counter, before, now)

    def _node(self, session: MxsmlSession) -> dict[str, str]:
        """Attributes of all cards: the versions, the control nodes, and whether sysfs is read-only."""
        attributes = dict(session.driver)
        if control := device_nodes.control(self.settings):
            attributes[constants.CONTROL_NODES] = ",".join(control)
        if self._mode == constants.SGPU and (session.slices.read_only or sysfs.read_only(self._sysfs)):
            attributes[constants.SYSFS] = constants.READ_ONLY
        return attributes

    def _group(self, session: MxsmlSession, found: Sequence[MetaxCard]) -> None:
        """Read the MetaXLink groups when the set of reachable cards has changed."""
        reachable = frozenset(card.uuid for card in found if card.reachable and not card.device.parent)
        if reachable != session.grouped:
            whole = [card for card in found if card.uuid in reachable]
            session.zones, session.grouped = topology.zones(session.mxsml, whole), reachable

    # Health

    def _watch_cards(self, mxsml: Mxsml) -> None:
        """Give the cards to the watch, and report errors that their counters show now."""
        if self._watch is None:
            self._watch = MxsmlEventWatch(mxsml, self._read_health, self.calls)
        self._watch.watch_cards(
            {card.index: uuid for uuid, card in self._cards.items() if card.reachable and not card.limited}
        )
        self._watch.add_events(self._counter_events())

    def _read_health(self, index: int) -> Sequence[HealthEvent]:
        """Read the health of a card now. The watch calls this."""
        with self.calls:
            card = next((it for it in self._cards.values() if it.index == index), None)
            if card is None or self.session is None:
                return ()
            reading = MetaxReading(self.session.mxsml, index, card.dies)
            wrong = health(reading) or reading.fault
            counted = {} if card.device.parent else counters(reading)
            new = self._baseline.new_faults(card.uuid, counted)
            if wrong is not None and wrong.state is not State.UNKNOWN:
                new = [wrong, *new]
            return [HealthEvent(card.uuid, fault) for fault in new]

    # Slices

    def _card(self, uuid: str) -> MetaxCard:
        card = self._cards.get(uuid)
        if card is None:
            raise RequestRefused(f"{uuid} is not among the cards here")
        return card

    def _may_be_sliced(self) -> list[MetaxCard]:
        """The cards that may have slices. Slices are made on fewer of them."""
        return [it for it in self._cards.values() if it.may_be_sliced]

    def _slices(self) -> tuple[SgpuSlice, ...]:
        session = self._session_if_any()
        return session.slices.all(self._may_be_sliced()) if session else ()

    def _readable(self) -> tuple[SgpuSlice, ...]:
        """The slices that can be read. Those of the request that was just prepared must be readable."""
        needed, self._prepared = self._prepared, frozenset()
        session = self._session_if_any()
        return session.slices.readable(self._may_be_sliced(), needed) if session else ()

    def _nodes(self, part: SgpuSlice) -> list[str]:
        return device_nodes.of_slice(self.settings, self._numbers(part))

    def _numbers(self, part: SgpuSlice) -> device_nodes.SliceNumbers:
        names = tuple(path.rpartition("/")[2] for path in self._card(part.card).device.paths)
        card, render = sysfs.number(sysfs.CARD, names), sysfs.number(sysfs.RENDER, names)
        return device_nodes.SliceNumbers(part.sgpu.minor, part.sgpu.id, card, render)

    def _await_nodes(self, made: Sequence[SgpuSlice]) -> None:
        """Wait until the slices have their device nodes. Raises RequestRefused: a node is still missing."""
        until = time.monotonic() + self.node_patience
        for part in made:
            while why := device_nodes.lacking(self.settings, part.id, self._numbers(part)):
                if time.monotonic() >= until:
                    raise RequestRefused(why)
                # udev makes the node after the call, and the standard library has no inotify.
                time.sleep(NODE_POLL_INTERVAL)


def _refusal(error: RequestRefused | MxsmlError) -> RequestRefused:
    if isinstance(error, RequestRefused):
        return error
    return RequestRefused(
        f"no slice is made: sysfs is read-only: give the agent's container a writable /sys ({error})"
    )

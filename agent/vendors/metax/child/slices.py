"""Reads, makes and removes the slices (sGPU) on cards. Own slices have a mark in their alias.

To make a slice takes four steps: write the journal entry, make the slice, set its alias, remove the entry.
After a crash between two steps, the next call that reads the card finds the entry and ends what was begun.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from agent.vendor_api.backend import NoRoom, Request, RequestRefused
from agent.vendors.metax.shared import constants, qos_policy, slice_request
from agent.vendors.metax.shared.slice_request import Slice, Unclaimed, names_amounts

from . import layouts
from .abi import MAX_SLICES
from .cards import MetaxCard
from .earlier_layouts import EarlierLayouts
from .layouts import MARKED, Layout, SgpuSlice
from .library import Mxsml, MxsmlError
from .slice_journal import JournalEntry, SgpuJournal
from .values import Sgpu

T = TypeVar("T")

#: The settings by which a slice may have been made if its request names no amounts.
_UNCLAIMED: tuple[Unclaimed, ...] = ("share", "whole")


class UnknownCard(Exception):
    """Raised when the uuid of a card is needed and unknown."""


class SgpuSlices:
    """Reads, makes and removes slices. Each method gets the cards, with their current indices."""

    def __init__(
        self, mxsml: Mxsml, journal: SgpuJournal, earlier: EarlierLayouts, unclaimed: Unclaimed
    ) -> None:
        self._mxsml = mxsml
        self._journal = journal
        self._earlier = earlier
        self._unclaimed: Unclaimed = unclaimed
        #: Whether sysfs was read-only for the last change.
        self.read_only = False

    def refresh(self, cards: Iterable[MetaxCard]) -> None:
        """Read the cards that were not read since the last change, and end what a crash left there."""
        for card in cards:
            if not self._earlier.is_read(card.uuid):
                with suppress(MxsmlError):  # a call that needs this card tries again
                    self._settle(card)
                    self._read(card)

    def all(self, cards: Sequence[MetaxCard]) -> tuple[SgpuSlice, ...]:
        """Every slice on these cards.

        A card that cannot be read now has the slices of its last reading. Without an earlier reading it has
        none: this backend never changed it.

        Raises:
            MxsmlError: A card was changed and not read since, or no card can be read.
            UnknownCard: A card tells no uuid, so its slices cannot be assigned.
        """
        for card in cards:
            if card.device.nameless:
                raise UnknownCard(f"card {card.index} tells no uuid: it is not known which slices it has")
        found: list[SgpuSlice] = []
        unread: list[MxsmlError] = []
        for card in cards:
            try:
                found += self._settled(card)
            except MxsmlError as error:
                if not error.gone and self._earlier.is_changed(card.uuid):
                    raise
                unread.append(error)
        _not_all(unread, cards)
        return tuple(found)

    def readable(self, cards: Sequence[MetaxCard], needed: Collection[str]) -> tuple[SgpuSlice, ...]:
        """The slices of the cards that can be read, or were read before. `needed` are uuids.

        Raises:
            MxsmlError: A needed card cannot be read, or the library reports every card as gone.
        """
        found: list[SgpuSlice] = []
        absent: list[MxsmlError] = []
        for card in cards:
            try:
                found += self._of(card)
            except MxsmlError as error:
                if card.uuid in needed:
                    raise
                if error.gone:
                    absent.append(error)
        _not_all(absent, cards)
        return tuple(found)

    def _settled(self, card: MetaxCard) -> tuple[SgpuSlice, ...]:
        try:
            self._settle(card)
        except MxsmlError:
            if self._earlier.is_changed(card.uuid):
                raise  # an own slice there may have no mark yet
        return self._of(card)

    def _of(self, card: MetaxCard) -> tuple[SgpuSlice, ...]:
        try:
            layout = self._read(card)
        except MxsmlError as error:
            before = self._earlier.of(card.uuid)
            if error.gone or before is None:
                raise
            return before
        return layout.slices if layout else ()

    def _read(self, card: MetaxCard) -> Layout | None:
        """Read the layout of a card, and keep it for the time when the card cannot be read."""
        layout = layouts.read(self._mxsml, card)
        self._earlier.read(card.uuid, layout.slices if layout else ())
        return layout

    def _change(self, card: MetaxCard, change: Callable[..., T], *arguments: Any) -> T:
        """Change the slices of a card. Its last reading is no longer valid."""
        self._earlier.changed(card.uuid)
        return self._write(change, card.index, *arguments)

    # Making

    def make(
        self, request: Request, cards: Sequence[MetaxCard], others: Sequence[MetaxCard]
    ) -> tuple[SgpuSlice, ...]:
        """Make the slices of a request on these cards. Fitting ones are kept, other ones of it are replaced.

        `others` are cards that may have slices of an earlier attempt for the same request.

        Raises:
            RequestRefused: The request cannot be served.
            NoRoom: The card's other slices leave too little room.
            MxsmlError: The library refuses.
        """
        _markable(request.allocation)
        for card in cards:
            self._settle(card)
        if not names_amounts(request.parameters) and (kept := self._existing_slices(request, cards)):
            return kept
        self._wanted(request, cards)  # refuse before slices are switched on
        for card in cards:
            self._switch_on(card)
        wanted = self._wanted(request, cards)
        for card in others:
            with suppress(MxsmlError):  # `remove` of the allocation tries again
                self._clear(request.allocation, card)
        pairs = zip(cards, wanted, strict=True)
        return tuple(self._ensured(request, card, wanted_slice) for card, wanted_slice in pairs)

    def _existing_slices(self, request: Request, cards: Sequence[MetaxCard]) -> tuple[SgpuSlice, ...]:
        """The existing slices of a request that names no amounts; none if not all of them exist.

        The setting `unclaimed` may have changed since they were made, so each of its values is tried.
        """
        for unclaimed in _UNCLAIMED:
            with suppress(RequestRefused):
                pairs = zip(cards, self._wanted(request, cards, unclaimed), strict=True)
                existing = [self._existing(request, card, wanted) for card, wanted in pairs]
                kept = tuple(found for found in existing if found is not None)
                if len(kept) == len(existing):
                    return kept
        return ()

    def _existing(self, request: Request, card: MetaxCard, wanted: Slice) -> SgpuSlice | None:
        """The slice of the request on this card if slice and policy are as wanted; None otherwise."""
        layout = self._layout(card)
        if wanted.qos is not None and layout.policy not in (None, wanted.qos):
            return None
        own = (it for it in layout.slices if it.allocation == request.allocation)
        return next((it for it in own if it.fits(wanted)), None)

    def _wanted(
        self, request: Request, cards: Sequence[MetaxCard], unclaimed: Unclaimed | None = None
    ) -> tuple[Slice, ...]:
        """The slices that the request asks for, in the order of the cards."""
        sizes: dict[str, int] = {}
        for card in cards:
            sizes[card.uuid] = self._layout(card).room(card)
        return slice_request.slices(request, sizes, unclaimed or self._unclaimed)

    def _layout(self, card: MetaxCard) -> Layout:
        """Read the layout of a card. Raises RequestRefused: the card does not support slices."""
        layout = self._read(card)
        if layout is None:
            raise RequestRefused(f"{card.uuid} can have no slices: its driver or its firmware knows no sGPU")
        return layout

    def _switch_on(self, card: MetaxCard) -> None:
        if not self._mxsml.sgpu_enabled(card.index):
            self._write(self._mxsml.set_sgpu_enabled, card.index, True)

    def _ensured(self, request: Request, card: MetaxCard, wanted: Slice) -> SgpuSlice:
        own = [it for it in self._layout(card).slices if it.allocation == request.allocation]
        kept = self._existing(request, card, wanted)
        for unwanted in own:
            if unwanted != kept:
                self._remove(card, unwanted)
        return kept or self._made(request, card, wanted)

    def _made(self, request: Request, card: MetaxCard, wanted: Slice) -> SgpuSlice:
        if not card.sliceable:
            why = card.device.fault.message if card.device.fault else "it is a part of a card"
            raise RequestRefused(f"no slice is made on {card.uuid}: {why}")
        layout = self._layout(card)
        policy = qos_policy.fitting(wanted.qos, layout.policy, card.uuid)
        _room_for(wanted, layout)
        if policy is not None and not layout.slices:
            self._write(self._mxsml.set_sched_class, card.index, qos_policy.SCHED_CLASSES[policy])
        before = tuple((it.sgpu.id, it.sgpu.uuid) for it in layout.slices)
        entry = JournalEntry(card.uuid, request.allocation, wanted.memory, wanted.compute, before)
        return self._create(card, entry)

    def _create(self, card: MetaxCard, entry: JournalEntry) -> SgpuSlice:
        mxsml = self._mxsml
        self._journal.write(entry)
        try:
            number = self._change(card, mxsml.create_sgpu, entry.memory, entry.compute)
        except MxsmlError:
            self._end(card, entry)  # the slice may exist nevertheless
            raise
        try:
            self._change(card, mxsml.set_sgpu_alias, number, constants.MARK + entry.allocation)
        except MxsmlError:
            self._change(card, mxsml.remove_sgpu, number)  # without a mark it would count as foreign
            self._journal.remove(card.uuid)
            raise
        self._journal.remove(card.uuid)
        return SgpuSlice(card.uuid, mxsml.sgpu(card.index, number), entry.allocation)

    def _write(self, change: Callable[..., T], *arguments: Any) -> T:
        """Make a change, and remember whether sysfs was read-only."""
        try:
            result = change(*arguments)
        except MxsmlError as error:
            self.read_only = self.read_only or error.read_only
            raise
        self.read_only = False
        return result

    def probe(self, cards: Iterable[MetaxCard]) -> None:
        """Check by a write without effect whether sysfs is still read-only, if it was for the last change."""
        for card in cards if self.read_only else ():
            try:
                enabled = self._mxsml.sgpu_enabled(card.index)
            except MxsmlError:
                continue
            self.read_only = False
            with suppress(MxsmlError):
                self._write(self._mxsml.set_sgpu_enabled, card.index, enabled)
            return

    # After a crash

    def _settle(self, card: MetaxCard, allocation: str | None = None) -> None:
        """End what was begun on a reachable card according to the journal, for one allocation or for all.

        Raises:
            MxsmlError: The card cannot be read; its journal entry stays.
        """
        for entry in self._entries(card):
            if card.reachable and allocation in (None, entry.allocation):
                self._end(card, entry)

    def _entries(self, card: MetaxCard) -> list[JournalEntry]:
        return [entry for entry in self._journal.entries() if entry.card == card.uuid]

    def _end(self, card: MetaxCard, entry: JournalEntry) -> None:
        """Mark the one slice that the entry can mean, and remove the entry."""
        layout = self._read(card)
        new = [it for it in layout.slices if self._may_be(entry, card, it)] if layout else []
        if len(new) == 1:
            alias = constants.MARK + entry.allocation
            self._change(card, self._mxsml.set_sgpu_alias, new[0].sgpu.id, alias)
        elif new:
            names = ", ".join(it.id for it in new)
            _log(
                f"{names}: one of these was made for {entry.allocation} before a crash, and it is not known "
                "which: all are kept"
            )
        self._journal.remove(card.uuid)

    def _may_be(self, entry: JournalEntry, card: MetaxCard, part: SgpuSlice) -> bool:
        """Whether a slice may be the one of the entry: new, with the same amounts, and without a mark."""
        sgpu = part.sgpu
        new = (sgpu.id, sgpu.uuid) not in entry.before and part.allocation is None
        as_wanted = (sgpu.vram, sgpu.compute) == (entry.memory, entry.compute)
        return new and as_wanted and not self._is_named(card, sgpu)

    def _is_named(self, card: MetaxCard, sgpu: Sgpu) -> bool:
        """Whether a program has set the alias or the annotations id of a slice."""
        if self._mxsml.sgpu_alias(card.index, sgpu.id):
            return True
        try:
            return bool(self._mxsml.sgpu_annotations_id(card.index, sgpu.id))
        except MxsmlError as error:
            if error.unsupported:
                return False
            raise

    # Removing

    def remove(self, allocation: str, cards: Sequence[MetaxCard]) -> None:
        """Remove the slices of an allocation, if there are any. After a failure the other cards follow.

        Raises:
            MxsmlError: A slice is in use, or a card that may have one cannot be read.
        """
        failed: MxsmlError | None = None
        for card in cards:
            try:
                self._clear(allocation, card)
            except MxsmlError as error:
                if not error.gone and self._may_have(allocation, card):
                    failed = error
        if failed is not None:
            raise failed

    def _may_have(self, allocation: str, card: MetaxCard) -> bool:
        """Whether a card that cannot be read now may have a slice of the allocation."""
        begun = any(entry.allocation == allocation for entry in self._entries(card))
        return begun or self._earlier.may_have(card.uuid, allocation)

    def _clear(self, allocation: str, card: MetaxCard) -> None:
        self._settle(card, allocation)
        layout = self._read(card)
        for part in layout.slices if layout else ():
            if part.allocation == allocation:
                self._remove(card, part)

    def _remove(self, card: MetaxCard, part: SgpuSlice) -> None:
        self._change(card, self._mxsml.remove_sgpu, part.sgpu.id)


def _not_all(failed: Sequence[MxsmlError], cards: Sequence[MetaxCard]) -> None:
    """Raises the first error if every card has one: then the driver fails, and not a single card."""
    if failed and len(failed) == len(cards):
        raise failed[0]


def _room_for(wanted: Slice, layout: Layout) -> None:
    """Raises NoRoom: the card has too many slices, or too little free memory or compute."""
    if len(layout.slices) >= MAX_SLICES:
        raise NoRoom(f"{wanted.card} has {MAX_SLICES} slices already, which is all that a card can have")
    quota = layout.quota
    if quota and quota.free_vram < wanted.memory:
        raise _short(f"{wanted.memory} MiB", f"{quota.free_vram} MiB", wanted, layout)
    if quota and quota.free_compute < wanted.compute:
        raise _short(f"{wanted.compute} percent", f"{quota.free_compute} percent", wanted, layout)


def _short(asked: str, free: str, wanted: Slice, layout: Layout) -> NoRoom:
    others = f", {len(layout.foreign)} slices on it are not the agent's" if layout.foreign else ""
    return NoRoom(f"{asked} of {wanted.card} are asked for, {free} of it are free{others}")


def _markable(allocation: str) -> None:
    """Raises ValueError: the id of the allocation does not fit into an alias."""
    if not MARKED.fullmatch(constants.MARK + allocation):
        raise ValueError(f"an allocation called {allocation!r} cannot be marked on a slice")


def _log(text: str) -> None:
    sys.stderr.write(f"metax: {text}\n")

"""The slices (sGPU) on the cards: reads, makes and removes them. Ours bear the mark in their alias.

A slice is made in four steps: written down in the journal, made, marked, crossed out. Whoever comes after a
crash between two of them finds the journal and ends what was begun.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from agent.vendor_api.backend import NoRoom, Request, RequestRefused
from agent.vendors.metax import constants, qos_policy
from agent.vendors.metax.slice_request import Slice, Unclaimed, names_amounts
from agent.vendors.metax.slice_request import slices as shared

from .abi import MAX_SLICES
from .cards import MetaxCard
from .earlier_layouts import EarlierLayouts
from .faults import UNASKED
from .layouts import MARKED, Layout, SgpuSlice, look
from .library import Mxsml, MxsmlError
from .slice_journal import JournalEntry, SgpuJournal

T = TypeVar("T")

#: The settings by which a slice was made that nobody says the amounts of.
_UNCLAIMED: tuple[Unclaimed, ...] = ("share", "whole")


class UnknownCard(Exception):
    """Raised where a card must be known by its uuid and is not."""


class SgpuSlices:
    """Makes and removes slices of the cards that it is given, each time as they lie now."""

    def __init__(
        self, mxsml: Mxsml, journal: SgpuJournal, seen: EarlierLayouts, unclaimed: Unclaimed
    ) -> None:
        self._mxsml = mxsml
        self._journal = journal
        self._seen = seen
        self._unclaimed: Unclaimed = unclaimed
        #: Whether sysfs refused the last change.
        self.read_only = False

    def learn(self, cards: Iterable[MetaxCard]) -> None:
        """End what a crash left, and see what lies on the cards of which that is not known yet."""
        for card in cards:
            if not self._seen.is_read(card.uuid):
                with suppress(MxsmlError):  # whoever needs this card tries again
                    self._settle(card)
                    self._look(card)

    def all(self, cards: Sequence[MetaxCard]) -> tuple[SgpuSlice, ...]:
        """Every slice on these cards. A card that cannot be read now has what it had; it has none of ours
        where we never changed it.

        Raises:
            MxsmlError: One was changed, and not read since; or none of them can be read.
            UnknownCard: One tells no uuid, so that nobody knows whose slices it may hide.
        """
        for card in cards:
            if card.device.nameless:
                raise UnknownCard(f"card {card.index} tells no uuid: which slices are its is not known")
        found: list[SgpuSlice] = []
        unread: list[MxsmlError] = []
        for card in cards:
            try:
                found += self._settled(card)
            except MxsmlError as error:
                if not error.gone and self._seen.is_changed(card.uuid):
                    raise
                unread.append(error)
        _not_all(unread, cards)
        return tuple(found)

    def readable(self, cards: Sequence[MetaxCard], needed: Collection[str]) -> tuple[SgpuSlice, ...]:
        """As `all`, without the cards that cannot be read, save those of the uuids that are needed.

        Raises:
            MxsmlError: A needed card cannot be read; or the library knows none of them any more.
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
            if self._seen.is_changed(card.uuid):
                raise  # what lies there may be ours, and does not say so
        return self._of(card)

    def _of(self, card: MetaxCard) -> tuple[SgpuSlice, ...]:
        try:
            layout = self._look(card)
        except MxsmlError as error:
            had = self._seen.of(card.uuid)
            if error.gone or had is None:
                raise
            return had
        return layout.found if layout else ()

    def _look(self, card: MetaxCard) -> Layout | None:
        """What lies on a card now, which is kept for when it cannot be read."""
        layout = look(self._mxsml, card)
        self._seen.read(card.uuid, layout.found if layout else ())
        return layout

    def _change(self, card: MetaxCard, change: Callable[..., T], *arguments: Any) -> T:
        """Change the slices of a card: what was seen there before holds no longer."""
        self._seen.changed(card.uuid)
        return self._write(change, card.index, *arguments)

    # Making

    def make(
        self, request: Request, cards: Sequence[MetaxCard], others: Sequence[MetaxCard]
    ) -> tuple[SgpuSlice, ...]:
        """The slices of a request on these cards; those that are there are kept, and others of it replaced.

        `others` are cards on which it may have slices that nobody wants any more.

        Raises:
            RequestRefused: It cannot be served as it is.
            NoRoom: Not beside what lies on the card.
            MxsmlError: The library refuses.
        """
        _markable(request.allocation)
        for card in cards:
            self._settle(card)
        if not names_amounts(request.parameters) and (kept := self._kept(request, cards)):
            return kept
        self._wanted(request, cards)  # what is refused switches nothing on
        for card in cards:
            self._switch_on(card)
        wanted = self._wanted(request, cards)
        for card in others:
            with suppress(MxsmlError):  # its release removes what stays there
                self._clear(request.allocation, card)
        return tuple(self._ensured(request, card, it) for card, it in zip(cards, wanted, strict=True))

    def _kept(self, request: Request, cards: Sequence[MetaxCard]) -> tuple[SgpuSlice, ...]:
        """The slices of a request that names no amounts, as `unclaimed` made them, which may be another one
        by now; none where what lies there was made for another pod.
        """
        for how in _UNCLAIMED:
            with suppress(RequestRefused):
                wanted = self._wanted(request, cards, how)
                its = [self._lies(request, card, it) for card, it in zip(cards, wanted, strict=True)]
                found = tuple(it for it in its if it is not None)
                if len(found) == len(its):
                    return found
        return ()

    def _lies(self, request: Request, card: MetaxCard, wanted: Slice) -> SgpuSlice | None:
        """The slice of the request on this card, if it is as it is wanted, and its card's policy."""
        layout = self._layout(card)
        if wanted.qos is not None and layout.policy not in (None, wanted.qos):
            return None
        its = (it for it in layout.found if it.allocation == request.allocation)
        return next((it for it in its if it.fits(wanted)), None)

    def _wanted(
        self, request: Request, cards: Sequence[MetaxCard], unclaimed: Unclaimed | None = None
    ) -> tuple[Slice, ...]:
        sizes: dict[str, int] = {}
        for card in cards:
            sizes[card.uuid] = self._layout(card).room(card)
        return shared(request, sizes, unclaimed or self._unclaimed)

    def _layout(self, card: MetaxCard) -> Layout:
        layout = self._look(card)
        if layout is None:
            raise RequestRefused(f"{card.uuid} can have no slices: its driver or its firmware knows no sGPU")
        return layout

    def _switch_on(self, card: MetaxCard) -> None:
        if not self._mxsml.sgpu_enabled(card.index):
            self._write(self._mxsml.set_sgpu_enabled, card.index, True)

    def _ensured(self, request: Request, card: MetaxCard, wanted: Slice) -> SgpuSlice:
        its = [it for it in self._layout(card).found if it.allocation == request.allocation]
        kept = self._lies(request, card, wanted)
        for it in its:
            if it != kept:
                self.remove_one(card, it)
        return kept or self._made(request, card, wanted)

    def _made(self, request: Request, card: MetaxCard, wanted: Slice) -> SgpuSlice:
        if not card.sliceable:
            why = card.device.fault.message if card.device.fault else "it is a part of a card"
            raise RequestRefused(f"no slice is made on {card.uuid}: {why}")
        layout = self._layout(card)
        policy = qos_policy.fitting(wanted.qos, layout.policy, card.uuid)
        _room_for(wanted, layout)
        if policy is not None and not layout.found:
            self._write(self._mxsml.set_sched_class, card.index, qos_policy.SCHED_CLASSES[policy])
        before = tuple((it.sgpu.id, it.sgpu.uuid) for it in layout.found)
        entry = JournalEntry(card.uuid, request.allocation, wanted.memory, wanted.compute, before)
        return self._create(card, entry)

    def _create(self, card: MetaxCard, entry: JournalEntry) -> SgpuSlice:
        mxsml = self._mxsml
        self._journal.write(entry)
        try:
            number = self._change(card, mxsml.create_sgpu, entry.memory, entry.compute)
        except MxsmlError:
            self._end(card, entry)  # it may have been made all the same
            raise
        try:
            self._change(card, mxsml.set_sgpu_alias, number, constants.MARK + entry.allocation)
        except MxsmlError:
            self._change(card, mxsml.remove_sgpu, number)  # or nobody would know whose it is
            self._journal.remove(card.uuid)
            raise
        self._journal.remove(card.uuid)
        return SgpuSlice(card.uuid, mxsml.sgpu(card.index, number), entry.allocation)

    def _write(self, change: Callable[..., T], *arguments: Any) -> T:
        """Make a change, and remember whether sysfs let it."""
        try:
            done = change(*arguments)
        except MxsmlError as error:
            self.read_only = self.read_only or error.read_only
            raise
        self.read_only = False
        return done

    def probe(self, cards: Iterable[MetaxCard]) -> None:
        """Where sysfs refused the last change, find out whether it still does: write what stands there."""
        for card in cards if self.read_only else ():
            try:
                enabled = self._mxsml.sgpu_enabled(card.index)
            except MxsmlError:
                continue
            self.read_only = False
            with suppress(MxsmlError):
                self._write(self._mxsml.set_sgpu_enabled, card.index, enabled)
            return

    # What a crash left

    def _settle(self, card: MetaxCard, allocation: str | None = None) -> None:
        """End what the journal says was begun on a card that is here, for one allocation or for whichever.

        Raises:
            MxsmlError: The card cannot be read; its entry stays.
        """
        for entry in self._entries(card):
            if card.reachable and allocation in (None, entry.allocation):
                self._end(card, entry)

    def _entries(self, card: MetaxCard) -> list[JournalEntry]:
        return [entry for entry in self._journal.entries() if entry.card == card.uuid]

    def _end(self, card: MetaxCard, entry: JournalEntry) -> None:
        layout = self._look(card)
        new = [it for it in layout.found if self._began(card, it, entry)] if layout else []
        if len(new) == 1:
            alias = constants.MARK + entry.allocation
            self._change(card, self._mxsml.set_sgpu_alias, new[0].sgpu.id, alias)
        elif new:
            names = ", ".join(it.id for it in new)
            _log(
                f"{names}: one of these was made for {entry.allocation} before a crash, which cannot be told"
            )
        self._journal.remove(card.uuid)

    def _began(self, card: MetaxCard, it: SgpuSlice, entry: JournalEntry) -> bool:
        """Whether a slice may be the one that was begun: new, that nobody named, and as it was to be."""
        new = (it.sgpu.id, it.sgpu.uuid) not in entry.before and it.allocation is None
        as_wanted = (it.sgpu.vram, it.sgpu.compute) == (entry.memory, entry.compute)
        return new and as_wanted and not self._named(card, it)

    def _named(self, card: MetaxCard, it: SgpuSlice) -> bool:
        """Whether somebody wrote on a slice whose it is."""
        if self._mxsml.sgpu_alias(card.index, it.sgpu.id):
            return True
        try:
            return bool(self._mxsml.sgpu_annotations_id(card.index, it.sgpu.id))
        except MxsmlError as error:
            if error.code in UNASKED:
                return False
            raise

    # Removing

    def remove(self, allocation: str, cards: Sequence[MetaxCard]) -> None:
        """Remove the slices of an allocation; none is fine. One that is stuck keeps no other.

        Raises:
            MxsmlError: One is in use, or a card cannot be read on which there may be one.
        """
        stuck: MxsmlError | None = None
        for card in cards:
            try:
                self._clear(allocation, card)
            except MxsmlError as error:
                if not error.gone and self._may_have(allocation, card):
                    stuck = error
        if stuck is not None:
            raise stuck

    def _may_have(self, allocation: str, card: MetaxCard) -> bool:
        """Whether a slice of the allocation may lie on a card that cannot be read now."""
        begun = any(entry.allocation == allocation for entry in self._entries(card))
        return begun or self._seen.may_have(card.uuid, allocation)

    def _clear(self, allocation: str, card: MetaxCard) -> None:
        self._settle(card, allocation)
        layout = self._look(card)
        for it in layout.found if layout else ():
            if it.allocation == allocation:
                self.remove_one(card, it)

    def remove_one(self, card: MetaxCard, it: SgpuSlice) -> None:
        self._change(card, self._mxsml.remove_sgpu, it.sgpu.id)


def _not_all(failed: Sequence[MxsmlError], cards: Sequence[MetaxCard]) -> None:
    """Raises MxsmlError where every card did: it is the driver that fails, and not each with its slices."""
    if failed and len(failed) == len(cards):
        raise failed[0]


def _room_for(wanted: Slice, layout: Layout) -> None:
    """Raises NoRoom where the card has not so much left."""
    if len(layout.found) >= MAX_SLICES:
        raise NoRoom(f"{wanted.card} has {MAX_SLICES} slices already, which is all that a card can have")
    quota = layout.quota
    if quota and quota.free_vram < wanted.memory:
        raise _short(f"{wanted.memory} MiB", f"{quota.free_vram} MiB", wanted, layout)
    if quota and quota.free_compute < wanted.compute:
        raise _short(f"{wanted.compute} percent", f"{quota.free_compute} percent", wanted, layout)


def _short(asked: str, free: str, wanted: Slice, layout: Layout) -> NoRoom:
    others = f", {len(layout.foreign)} slices on it are not ours" if layout.foreign else ""
    return NoRoom(f"{asked} of {wanted.card} are asked for, {free} of it are free{others}")


def _markable(allocation: str) -> None:
    if not MARKED.fullmatch(constants.MARK + allocation):
        raise ValueError(f"an allocation called {allocation!r} cannot be marked on a slice")


def _log(text: str) -> None:
    sys.stderr.write(f"metax: {text}\n")

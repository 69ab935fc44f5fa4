"""DRS: slices that a card's hardware makes.

efsmi makes, lists and removes them. A journal tells own slices from foreign ones, which others made: foreign
slices are counted and never changed. To make a slice takes four steps: turn DRS on for the card, write the
card's slices to the journal, make the slice, write the new slice to the journal. After a crash between two
steps, the next call that lists the card's slices ends what was begun. DRS is never turned on only to list
profiles.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from agent.vendor_api.backend import NoRoom, Partition, Request, RequestRefused
from agent.vendors.common import own_files
from agent.vendors.enflame.shared import constants

from . import efsmi, slice_lock, slice_profiles
from .cards import EnflameCard
from .efsmi import DrsInstance, Efsmi, EfsmiError, TableRow
from .slice_journal import BegunSlice, DrsJournal, JournalPage, OwnSlice

#: Seconds that each command gets, even after the deadline of the call.
LEAST = 0.2


@dataclass(frozen=True, slots=True)
class DrsSlice:
    """A slice on a card; `card` is the card's uuid. A foreign slice has no `allocation`."""

    card: str
    instance: DrsInstance
    allocation: str | None = None

    @property
    def slices(self) -> int:
        """How many of the card's slices, the units of its profile, this one takes."""
        return constants.slices(self.instance.profile)

    def partition(self) -> Partition:
        return Partition(f"{self.instance.id}:{self.instance.uuid}", self.card, self.allocation)


class DrsSlices:
    """Makes, lists and removes slices. Each method gets the cards, with their current indices."""

    def __init__(
        self, tool: Efsmi | None, journal: DrsJournal, profiles: slice_profiles.KnownProfiles
    ) -> None:
        self._efsmi = tool
        self._journal = journal
        self._profiles = profiles
        self._deadline = 0.0
        #: Each card's row in efsmi's table, by uuid.
        self._rows: dict[str, TableRow] = {}
        #: The cards, uuid and index, that `_rows` was made for.
        self._matched: frozenset[tuple[str, int]] = frozenset()
        #: The slices of the last list; None before the first one.
        self._listed: tuple[DrsSlice, ...] | None = None
        self._logged: set[str] = set()

    def set_deadline(self, seconds: float) -> None:
        """All commands from now on must end within this time together."""
        self._deadline = time.monotonic() + seconds

    @property
    def _tool(self) -> Efsmi:
        """efsmi, with the time that is left. Raises EfsmiError: efsmi is not installed."""
        if self._efsmi is None:
            raise EfsmiError((efsmi.NAME,), "is not here")
        self._efsmi.timeout = max(LEAST, self._deadline - time.monotonic())
        return self._efsmi

    def _change(self, change: Callable[..., None], row: TableRow, *arguments: int | bool) -> None:
        """Run a command that changes a card. Raises EfsmiError: it fails, or an earlier one still runs."""
        try:
            with slice_lock.taken(self._journal.directory) as self._tool.inherited:
                change(row.index, *arguments)
        except slice_lock.ChangeInProgress:
            raise _still_runs() from None
        finally:
            self._tool.inherited = ()

    @property
    def has_tool(self) -> bool:
        return self._efsmi is not None

    @property
    def has_journal_pages(self) -> bool:
        """Whether a card has, or may have, something that this backend made."""
        return any(True for _ in self._journal.pages())

    # Listing

    def refresh(self, cards: Sequence[EnflameCard]) -> None:
        """Read table, slices and profiles from efsmi, and end what a crash left on the cards.

        Raises:
            EfsmiError: efsmi fails.
        """
        self._match(cards)
        self._turn_unused_off(cards, self._list(cards))
        for card in cards:
            row = self._rows.get(card.uuid)
            product = _product(card)
            if row and row.virt == efsmi.DRS and card.reachable and not self._profiles.has(product):
                with suppress(EfsmiError):  # the slices are listed without profiles, too
                    self._offered(card)

    def _match(self, cards: Sequence[EnflameCard]) -> None:
        """Find each card's row in efsmi's table by the PCI address. An ambiguous card or row has no match."""
        self._matched = frozenset()
        listing = self._tool.table()
        self._log_remarks(listing.remarks)
        rows = {card.uuid: [row for row in listing.rows if _is_at(row, card)] for card in cards}
        self._rows = {uuid: found[0] for uuid, found in rows.items() if len(found) == 1}
        indices = [row.index for row in self._rows.values()]
        self._rows = {uuid: row for uuid, row in self._rows.items() if indices.count(row.index) == 1}
        self._matched = _numbered(cards)

    def all(self, cards: Sequence[EnflameCard]) -> tuple[DrsSlice, ...]:
        """Every slice on these cards, own and foreign. None without efsmi, if the journal is empty.

        Raises:
            EfsmiError: The slices cannot be listed.
        """
        if self._efsmi is None and not self.has_journal_pages:
            return ()
        if self._matched != _numbered(cards):
            self._match(cards)
        return self._list(cards)

    def _list(self, cards: Sequence[EnflameCard]) -> tuple[DrsSlice, ...]:
        listing = self._tool.instances()
        self._log_remarks(listing.remarks)
        slices = [found for card in cards for found in self._of(card, listing.rows)]
        self._listed = tuple(slices)
        return self._listed

    def _of(self, card: EnflameCard, instances: Iterable[DrsInstance]) -> list[DrsSlice]:
        """The slices of one card among these instances, after what was begun there is ended."""
        row = self._rows.get(card.uuid)
        on_card = [it for it in instances if row is not None and it.card == row.index]
        if row is not None:
            self._settle(card, on_card)
        page = self._journal.page(card.uuid)
        return [DrsSlice(card.uuid, it, page.allocation(it.uuid)) for it in on_card]

    def _on(self, card: EnflameCard) -> list[DrsSlice]:
        listing = self._tool.instances(self._row(card).index)
        self._log_remarks(listing.remarks)
        return self._of(card, listing.rows)

    def _row(self, card: EnflameCard) -> TableRow:
        """The card's row in efsmi's table. Raises EfsmiError: the card has none."""
        row = self._rows.get(card.uuid)
        if row is None:
            raise EfsmiError(
                (efsmi.NAME,), f"its table has no row of its own for {card.uuid} at {card.device.pci}"
            )
        return row

    def attributes(self, card: EnflameCard) -> dict[str, str]:
        """The attributes of a card that the last output of efsmi gives, for the agent half."""
        row = self._rows.get(card.uuid)
        if row is None:
            return {}
        foreign = [it for it in self._listed or () if it.card == card.uuid and it.allocation is None]
        can_be_sliced = row.virt in (efsmi.DISABLED, efsmi.DRS)
        offered = self._profiles.of(_product(card)) if can_be_sliced else {}
        attributes = {constants.VIRTUAL: row.virt, constants.PROFILES: slice_profiles.attribute(offered)}
        if foreign:
            attributes[constants.FOREIGN_SLICES] = str(len(foreign))
            attributes[constants.FOREIGN_SIXTHS] = str(sum(it.slices for it in foreign))
        return {name: text for name, text in attributes.items() if text}

    def own_instances(self) -> list[tuple[str, str, str]]:
        """Card, allocation and uuid of each own slice, without those that the last list lacks."""
        listed = None if self._listed is None else {it.instance.uuid for it in self._listed}
        return [
            (page.card, own.allocation, own.uuid)
            for page in self._journal.pages()
            for own in page.own
            if listed is None or own.uuid in listed
        ]

    def log_once(self, *texts: str) -> None:
        """Log each text that was not logged before."""
        for text in texts:
            if text not in self._logged and len(self._logged) < efsmi.MAX_REMARKS:
                self._logged.add(text)
                _log(text)

    def _log_remarks(self, remarks: Iterable[str]) -> None:
        self.log_once(*(f"efsmi: {text}" for text in remarks))

    # Making

    def make(self, request: Request, card: EnflameCard, others: Sequence[EnflameCard]) -> DrsSlice:
        """Make the slice of a request on this card. A fitting one is kept, other ones of it are removed.

        `others` are cards that may have slices of an earlier attempt for the same request.

        Raises:
            RequestRefused: The request cannot be served.
            NoRoom: The card's other slices leave too little room.
            EfsmiError: efsmi fails.
            OSError: The journal cannot be written.
        """
        want = slice_profiles.wanted(request)
        if self._efsmi is None:
            raise RequestRefused(
                f"{want.asked}: no slice can be made, because efsmi is not here: install Enflame's tools, or "
                "let 'efsmi' name it"
            )
        self._match([card, *others])
        on_card = self._on(card)
        for other in others:
            if self._journal.page(other.uuid).names(request.allocation):
                with suppress(EfsmiError, RequestRefused):  # `remove` of the allocation tries again
                    self._clear(request.allocation, other)
        own = [it for it in on_card if it.allocation == request.allocation]
        kept = next((it for it in own if _fits(it, want)), None)
        for unwanted in own:
            if unwanted is not kept:
                self._destroy(card, unwanted)
        return kept or self._made(request.allocation, want, card, [it for it in on_card if it not in own])

    def _made(
        self,
        allocation: str,
        want: slice_profiles.WantedProfile,
        card: EnflameCard,
        existing: list[DrsSlice],
    ) -> DrsSlice:
        """Turn DRS on if needed, and make the slice beside the existing ones."""
        if self._profiles.has(_product(card)):  # refuse before DRS is turned on
            slice_profiles.chosen(want, self._profiles.of(_product(card)), card.uuid)
        if self._journal.page(card.uuid).begun is not None:
            raise _still_runs()
        self._switch_on(card, want)
        try:
            offered = self._offered(card)
            name, number = slice_profiles.chosen(want, offered, card.uuid)
            _room_for(want, name, offered, card, existing)
            return self._create(allocation, name, number, card, existing)
        except (RequestRefused, EfsmiError):
            with suppress(EfsmiError):  # `refresh` tries again
                self._turn_unused_off([card], existing)
            raise

    def _offered(self, card: EnflameCard) -> slice_profiles.Profiles:
        """The profiles of the card's product, read from efsmi at the first time."""
        product = _product(card)
        if not self._profiles.has(product):
            return self._profiles.keep(product, self._tool.profiles(self._row(card).index).rows)
        return self._profiles.of(product)

    def _switch_on(self, card: EnflameCard, want: slice_profiles.WantedProfile) -> None:
        """Turn DRS on for the card. Raises RequestRefused: the card does not allow it now."""
        row = self._row(card)
        if row.virt == efsmi.DRS:
            return
        if row.virt != efsmi.DISABLED:
            raise RequestRefused(
                f"{want.asked}: {card.uuid} cannot be sliced in mode {row.virt or 'unknown'}: only in mode "
                f"{efsmi.DISABLED} or {efsmi.DRS}"
            )
        self._journal.write(replace(self._journal.page(card.uuid), switched=True))
        try:
            self._change(self._tool.set_drs, row, True)
        except EfsmiError as error:
            if error.status is None or error.status < 0:
                raise
            self._journal.write(replace(self._journal.page(card.uuid), switched=False))
            raise RequestRefused(
                f"{want.asked}: DRS cannot be turned on for {card.uuid} now, it may be in use: {error}"
            ) from error
        self._rows[card.uuid] = replace(row, virt=efsmi.DRS)

    def _create(
        self, allocation: str, name: str, number: int, card: EnflameCard, existing: list[DrsSlice]
    ) -> DrsSlice:
        """Make a slice of the profile with this name and number, and find it in a new list."""
        before = tuple(it.instance.uuid for it in existing)
        page = self._journal.page(card.uuid)
        self._journal.write(replace(page, begun=BegunSlice(allocation, name, before)))
        failed: EfsmiError | None = None
        try:
            self._change(self._tool.create, self._row(card), number)
        except EfsmiError as error:
            failed = error  # the slice may exist nevertheless
        now = self._on(card)
        self._listed = (*(it for it in self._listed or () if it.card != card.uuid), *now)
        made = next((it for it in now if it.allocation == allocation), None)
        if made is not None:
            return made
        if failed is None:
            raise EfsmiError((efsmi.NAME,), f"made a slice {name} on {card.uuid}, and does not list it")
        if failed.status is not None and failed.status > 0:
            # `_room_for` counts slices and not their places: the free ones may be too far apart.
            refusal = NoRoom if existing else RequestRefused
            raise refusal(f"no slice {name} is made on {card.uuid}: {failed}") from failed
        raise failed

    # After a crash

    def _settle(self, card: EnflameCard, now: Sequence[DrsInstance]) -> None:
        """End what was begun on a card, once no command runs: the one new slice belongs to this backend."""
        page = self._journal.page(card.uuid)
        begun = page.begun
        if begun is None:
            return
        new = [] if begun.boot != own_files.boot_id() else _new(begun, page, now)
        own = page.own
        if not new and begun.boot == own_files.boot_id() and not slice_lock.free(self._journal.directory):
            return
        if len(new) == 1:
            own = (*own, OwnSlice(begun.allocation, new[0].uuid))
        elif new:
            names = ", ".join(f"{it.id}:{it.uuid}" for it in new)
            _log(
                f"{card.uuid}: one of {names} was made for {begun.allocation}, and it is not known which: "
                "all are kept"
            )
        self._journal.write(replace(page, begun=None, own=own))

    def _turn_unused_off(self, cards: Iterable[EnflameCard], slices: Collection[DrsSlice]) -> None:
        """Turn DRS off for cards without slices, if this backend has turned DRS on there."""
        for card in cards:
            page = self._journal.page(card.uuid)
            row = self._rows.get(card.uuid)
            is_used = any(it.card == card.uuid for it in slices)
            if not page.switched or row is None or page.begun or is_used:
                continue
            if row.virt == efsmi.DRS:
                try:
                    self._change(self._tool.set_drs, row, False)
                except EfsmiError as error:
                    self.log_once(f"{card.uuid} stays sliced: {error}")
                    continue
                self._rows[card.uuid] = row = replace(row, virt=efsmi.DISABLED)
            if row.virt == efsmi.DISABLED:
                # A reboot turns DRS off as well; then the page still names slices that are gone.
                self._journal.write(replace(page, switched=False, own=()))

    # Removing

    def remove(self, allocation: str, cards: Sequence[EnflameCard]) -> None:
        """Remove the slices of an allocation, if there are any. After a failure the other cards follow.

        A card that is not reachable is skipped: its slices are gone with it. If it comes back with them, its
        journal page still names them.

        Raises:
            EfsmiError: A slice is in use, or a card that may have one cannot be read.
        """
        affected = [
            card for card in cards if card.reachable and self._journal.page(card.uuid).names(allocation)
        ]
        if not affected:
            return
        self._match(cards)
        failed: EfsmiError | None = None
        for card in affected:
            try:
                self._clear(allocation, card)
            except EfsmiError as error:
                failed = error
        if failed is not None:
            raise failed

    def _clear(self, allocation: str, card: EnflameCard) -> None:
        on_card = self._on(card)
        for unwanted in on_card:
            if unwanted.allocation == allocation:
                self._destroy(card, unwanted)
        page = self._journal.page(card.uuid)
        self._journal.write(replace(page, own=tuple(it for it in page.own if it.allocation != allocation)))
        self._turn_unused_off([card], [it for it in on_card if it.allocation != allocation])

    def _destroy(self, card: EnflameCard, unwanted: DrsSlice) -> None:
        """Remove a slice. Raises EfsmiError: the slice still exists."""
        uuid = unwanted.instance.uuid
        try:
            self._change(self._tool.destroy, self._row(card), unwanted.instance.id)
        except EfsmiError:
            if any(left.instance.uuid == uuid for left in self._on(card)):
                raise
        page = self._journal.page(card.uuid)
        self._journal.write(replace(page, own=tuple(it for it in page.own if it.uuid != uuid)))
        self._listed = tuple(it for it in self._listed or () if it.instance.uuid != uuid)


def _still_runs() -> EfsmiError:
    return EfsmiError((efsmi.NAME,), "an earlier change of slices has not ended yet; try again later")


def _new(begun: BegunSlice, page: JournalPage, now: Sequence[DrsInstance]) -> list[DrsInstance]:
    """The instances that may be the slice that was begun."""
    known = {*begun.before, *(it.uuid for it in page.own)}
    return [it for it in now if it.profile == begun.profile and it.uuid not in known]


def _fits(existing: DrsSlice, want: slice_profiles.WantedProfile) -> bool:
    if want.name:
        return existing.instance.profile == want.name
    return existing.slices == want.slices


def _room_for(
    want: slice_profiles.WantedProfile,
    name: str,
    offered: Mapping[str, int],
    card: EnflameCard,
    existing: Sequence[DrsSlice],
) -> None:
    """Raises NoRoom: the card has too few free slices; the message says which profiles would fit."""
    total = max(map(constants.slices, offered))
    free = total - sum(it.slices for it in existing)
    if constants.slices(name) <= free:
        return
    foreign = sum(1 for it in existing if it.allocation is None)
    others = f", {foreign} slices on it are not the agent's" if foreign else ""
    fits = slice_profiles.listed(it for it in offered if constants.slices(it) <= free)
    raise NoRoom(
        f"{want.asked}: {name} takes {constants.slices(name)} of {total} slices, {card.uuid} has "
        f"{max(0, free)} left{others}; what fits: {fits}"
    )


def _numbered(cards: Iterable[EnflameCard]) -> frozenset[tuple[str, int]]:
    return frozenset((card.uuid, card.index) for card in cards)


def _product(card: EnflameCard) -> str:
    """The name under which profiles are kept: the SKU, or else the card's model."""
    return card.device.attributes.get(constants.PRODUCT) or card.device.model


def _is_at(row: TableRow, card: EnflameCard) -> bool:
    return card.device.pci is not None and row.is_at(card.device.pci)


def _log(text: str) -> None:
    sys.stderr.write(f"enflame: {text}\n")

"""DRS: the slices that a card's hardware makes. efsmi makes, lists and removes them; the journal knows ours.

A slice is made in four steps: the card is let be sliced, the journal has what lies on it, the slice is made,
and the journal has which one it is. Whoever comes after a crash between two of them ends what was begun.
No card is let be sliced only to look at it, and what others made is counted and never touched.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from agent.vendor_api.backend import NoRoom, Partition, Request, RequestRefused
from agent.vendors.common import own_files
from agent.vendors.enflame import constants

from . import efsmi, slice_lock, slice_profiles
from .cards import EnflameCard
from .efsmi import DrsInstance, Efsmi, EfsmiError, TableRow
from .slice_journal import BegunSlice, DrsJournal, JournalPage, OwnSlice

#: Seconds that a command has at least, however late it is.
LEAST = 0.2


@dataclass(frozen=True, slots=True)
class DrsSlice:
    """A slice that lies on a card; `allocation` None is foreign."""

    card: str
    instance: DrsInstance
    allocation: str | None = None

    @property
    def slices(self) -> int:
        return constants.slices(self.instance.profile)

    def partition(self) -> Partition:
        return Partition(f"{self.instance.id}:{self.instance.uuid}", self.card, self.allocation)


class DrsSlices:
    """Makes and removes slices of the cards that it is given, each time as they lie now."""

    def __init__(self, tool: Efsmi | None, journal: DrsJournal, known: slice_profiles.KnownProfiles) -> None:
        self._its = tool
        self._journal = journal
        self._known = known
        self._until = 0.0
        self._rows: dict[str, TableRow] = {}
        #: The cards that were looked for in efsmi's table, as the library counted them then.
        self._matched: frozenset[tuple[str, int]] = frozenset()
        #: What was last seen; None while nobody looked.
        self._seen: tuple[DrsSlice, ...] | None = None
        self._said: set[str] = set()

    def hurry(self, seconds: float) -> None:
        """What comes next has so long, all its commands together."""
        self._until = time.monotonic() + seconds

    @property
    def _tool(self) -> Efsmi:
        if self._its is None:
            raise EfsmiError((efsmi.NAME,), "is not here")
        self._its.timeout = max(LEAST, self._until - time.monotonic())
        return self._its

    def _change(self, change: Callable[..., None], row: TableRow, *arguments: int | bool) -> None:
        """Let efsmi change a card, once no change of before is being made any more."""
        try:
            with slice_lock.taken(self._journal.directory) as self._tool.inherited:
                change(row.index, *arguments)
        except slice_lock.ChangeInProgress:
            raise _still_runs() from None
        finally:
            self._tool.inherited = ()

    @property
    def seeing(self) -> bool:
        """Whether there is a tool that shows slices."""
        return self._its is not None

    @property
    def written(self) -> bool:
        """Whether something of ours is on a card, or may be."""
        return any(True for _ in self._journal.pages())

    # Seeing

    def look(self, cards: Sequence[EnflameCard]) -> None:
        """Learn what efsmi says of the cards, and end what a crash left on them.

        Raises:
            EfsmiError: It cannot be asked.
        """
        self._match(cards)
        self._rest(cards, self._all(cards))
        for card in cards:
            row = self._rows.get(card.uuid)
            product = _product(card)
            if row and row.virt == efsmi.DRS and card.reachable and not self._known.has(product):
                with suppress(EfsmiError):  # it says nothing of the slices
                    self._offered(card)

    def _match(self, cards: Sequence[EnflameCard]) -> None:
        """Find each card in efsmi's table, by its address: one that two rows may mean is none."""
        self._matched = frozenset()
        listing = self._tool.table()
        self._remark(listing.remarks)
        rows = {card.uuid: [row for row in listing.rows if _is_at(row, card)] for card in cards}
        self._rows = {uuid: found[0] for uuid, found in rows.items() if len(found) == 1}
        indices = [row.index for row in self._rows.values()]
        self._rows = {uuid: row for uuid, row in self._rows.items() if indices.count(row.index) == 1}
        self._matched = _numbered(cards)

    def all(self, cards: Sequence[EnflameCard]) -> tuple[DrsSlice, ...]:
        """Every slice on these cards, ours and foreign. Without efsmi there are none, unless we made some.

        Raises:
            EfsmiError: They cannot be listed.
        """
        if self._its is None and not self.written:
            return ()
        if self._matched != _numbered(cards):
            self._match(cards)
        return self._all(cards)

    def _all(self, cards: Sequence[EnflameCard]) -> tuple[DrsSlice, ...]:
        listing = self._tool.instances()
        self._remark(listing.remarks)
        found = [it for card in cards for it in self._of(card, listing.rows)]
        self._seen = tuple(found)
        return self._seen

    def _of(self, card: EnflameCard, rows: Iterable[DrsInstance]) -> list[DrsSlice]:
        """Those of a card, once what was begun there is ended."""
        row = self._rows.get(card.uuid)
        its = [it for it in rows if row is not None and it.card == row.index]
        if row is not None:
            self._settle(card, its)
        page = self._journal.page(card.uuid)
        return [DrsSlice(card.uuid, it, page.allocation(it.uuid)) for it in its]

    def _on(self, card: EnflameCard) -> list[DrsSlice]:
        listing = self._tool.instances(self._row(card).index)
        self._remark(listing.remarks)
        return self._of(card, listing.rows)

    def _row(self, card: EnflameCard) -> TableRow:
        """Raises EfsmiError: efsmi does not know the card."""
        row = self._rows.get(card.uuid)
        if row is None:
            raise EfsmiError(
                (efsmi.NAME,), f"its table has no row for {card.uuid} at {card.device.pci} alone"
            )
        return row

    def attributes(self, card: EnflameCard) -> dict[str, str]:
        """What efsmi last said of a card, as the agent's half reads it."""
        row = self._rows.get(card.uuid)
        if row is None:
            return {}
        foreign = [it for it in self._seen or () if it.card == card.uuid and it.allocation is None]
        there = self._known.of(_product(card)) if row.virt in (efsmi.DISABLED, efsmi.DRS) else {}
        said = {constants.VIRTUAL: row.virt, constants.PROFILES: slice_profiles.attribute(there)}
        if foreign:
            said[constants.FOREIGN_SLICES] = str(len(foreign))
            said[constants.FOREIGN_SIXTHS] = str(sum(it.slices for it in foreign))
        return {name: text for name, text in said.items() if text}

    def ours(self) -> list[tuple[str, str, str]]:
        """Card, allocation and uuid of each slice of ours; of those not seen any more none."""
        seen = None if self._seen is None else {it.instance.uuid for it in self._seen}
        its = [(page.card, it.allocation, it.uuid) for page in self._journal.pages() for it in page.ours]
        return [it for it in its if seen is None or it[2] in seen]

    def complain(self, *complaints: str) -> None:
        """Say what is odd, each once."""
        for text in complaints:
            if text not in self._said and len(self._said) < efsmi.MAX_REMARKS:
                self._said.add(text)
                _log(text)

    def _remark(self, remarks: Iterable[str]) -> None:
        """What was not understood."""
        self.complain(*(f"efsmi: {text}" for text in remarks))

    # Making

    def make(self, request: Request, card: EnflameCard, others: Sequence[EnflameCard]) -> DrsSlice:
        """The slice of a request on this card; one that is there is kept, and others of it replaced.

        `others` are cards on which it may have slices that nobody wants any more.

        Raises:
            RequestRefused: It cannot be served as it is.
            NoRoom: Not beside what lies on the card.
            EfsmiError: efsmi fails.
            OSError: The journal cannot be written.
        """
        want = slice_profiles.wanted(request)
        if self._its is None:
            raise RequestRefused(
                f"{want.asked}: no slice can be made, because efsmi is not here: install Enflame's tools, or "
                "let 'efsmi' name it"
            )
        self._match([card, *others])
        its = self._on(card)
        for other in others:
            if self._journal.page(other.uuid).names(request.allocation):
                with suppress(EfsmiError, RequestRefused):  # its release removes what stays there
                    self._clear(request.allocation, other)
        mine = [it for it in its if it.allocation == request.allocation]
        kept = next((it for it in mine if _fits(it, want)), None)
        for it in mine:
            if it is not kept:
                self._destroy(card, it)
        return kept or self._made(request.allocation, want, card, [it for it in its if it not in mine])

    def _made(
        self, allocation: str, want: slice_profiles.WantedProfile, card: EnflameCard, there: list[DrsSlice]
    ) -> DrsSlice:
        if self._known.has(_product(card)):  # what is refused switches nothing on
            slice_profiles.chosen(want, self._known.of(_product(card)), card.uuid)
        if self._journal.page(card.uuid).begun is not None:
            raise _still_runs()
        self._switch_on(card, want)
        try:
            offered = self._offered(card)
            name, number = slice_profiles.chosen(want, offered, card.uuid)
            _room_for(want, name, offered, card, there)
            return self._create(allocation, name, number, card, there)
        except (RequestRefused, EfsmiError):
            with suppress(EfsmiError):  # it is tried again with the next look
                self._rest([card], there)
            raise

    def _offered(self, card: EnflameCard) -> slice_profiles.Profiles:
        product = _product(card)
        if not self._known.has(product):
            return self._known.learn(product, self._tool.profiles(self._row(card).index).rows)
        return self._known.of(product)

    def _switch_on(self, card: EnflameCard, want: slice_profiles.WantedProfile) -> None:
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
                f"{want.asked}: {card.uuid} does not let itself be sliced now, it may be in use: {error}"
            ) from error
        self._rows[card.uuid] = replace(row, virt=efsmi.DRS)

    def _create(
        self, allocation: str, name: str, number: int, card: EnflameCard, there: list[DrsSlice]
    ) -> DrsSlice:
        before = tuple(it.instance.uuid for it in there)
        page = self._journal.page(card.uuid)
        self._journal.write(replace(page, begun=BegunSlice(allocation, name, before)))
        failed: EfsmiError | None = None
        try:
            self._change(self._tool.create, self._row(card), number)
        except EfsmiError as error:
            failed = error  # it may have been made all the same
        now = self._on(card)
        self._seen = (*(it for it in self._seen or () if it.card != card.uuid), *now)
        made = next((it for it in now if it.allocation == allocation), None)
        if made is not None:
            return made
        if failed is None:
            raise EfsmiError((efsmi.NAME,), f"made a slice {name} on {card.uuid} that is not to be found")
        if failed.status is not None and failed.status > 0:
            # Where slices lie is not counted: what is free may be in pieces.
            refusal = NoRoom if there else RequestRefused
            raise refusal(f"no slice {name} is made on {card.uuid}: {failed}") from failed
        raise failed

    # Ending

    def _settle(self, card: EnflameCard, now: Sequence[DrsInstance]) -> None:
        """End what was begun on a card, if it is over: the one slice that came since is ours."""
        page = self._journal.page(card.uuid)
        begun = page.begun
        if begun is None:
            return
        new = [] if begun.boot != own_files.boot_id() else _new(begun, page, now)
        ours = page.ours
        if not new and begun.boot == own_files.boot_id() and not slice_lock.free(self._journal.directory):
            return
        if len(new) == 1:
            ours = (*ours, OwnSlice(begun.allocation, new[0].uuid))
        elif new:
            names = ", ".join(f"{it.id}:{it.uuid}" for it in new)
            _log(
                f"{card.uuid}: one of {names} was made for {begun.allocation}, which cannot be told: "
                "all are left alone"
            )
        self._journal.write(replace(page, begun=None, ours=ours))

    def _rest(self, cards: Iterable[EnflameCard], found: Collection[DrsSlice]) -> None:
        """Let cards be whole again that we let be sliced, and on which nothing lies any more."""
        for card in cards:
            page = self._journal.page(card.uuid)
            row = self._rows.get(card.uuid)
            if not page.switched or row is None or page.begun or any(it.card == card.uuid for it in found):
                continue
            if row.virt == efsmi.DRS:
                try:
                    self._change(self._tool.set_drs, row, False)
                except EfsmiError as error:
                    self.complain(f"{card.uuid} stays sliced: {error}")
                    continue
                self._rows[card.uuid] = row = replace(row, virt=efsmi.DISABLED)
            if row.virt == efsmi.DISABLED:
                # One that a reboot made whole is forgotten, too, with what lay on it.
                self._journal.write(replace(page, switched=False, ours=()))

    # Removing

    def remove(self, allocation: str, cards: Sequence[EnflameCard]) -> None:
        """Remove the slice of an allocation; none is fine. One that is stuck keeps no other.

        A card that is lost took its slices with it; one that comes back with them is swept by its page.

        Raises:
            EfsmiError: One is in use, or a card cannot be asked on which there may be one.
        """
        its = [card for card in cards if card.reachable and self._journal.page(card.uuid).names(allocation)]
        if not its:
            return
        self._match(cards)
        stuck: EfsmiError | None = None
        for card in its:
            try:
                self._clear(allocation, card)
            except EfsmiError as error:
                stuck = error
        if stuck is not None:
            raise stuck

    def _clear(self, allocation: str, card: EnflameCard) -> None:
        its = self._on(card)
        for it in its:
            if it.allocation == allocation:
                self._destroy(card, it)
        page = self._journal.page(card.uuid)
        self._journal.write(replace(page, ours=tuple(it for it in page.ours if it.allocation != allocation)))
        self._rest([card], [it for it in its if it.allocation != allocation])

    def _destroy(self, card: EnflameCard, it: DrsSlice) -> None:
        """Raises EfsmiError: it is still there."""
        try:
            self._change(self._tool.destroy, self._row(card), it.instance.id)
        except EfsmiError:
            if any(one.instance.uuid == it.instance.uuid for one in self._on(card)):
                raise
        page = self._journal.page(card.uuid)
        self._journal.write(replace(page, ours=tuple(o for o in page.ours if o.uuid != it.instance.uuid)))
        self._seen = tuple(o for o in self._seen or () if o.instance.uuid != it.instance.uuid)


def _still_runs() -> EfsmiError:
    return EfsmiError((efsmi.NAME,), "a change that was begun before is still being made: it is waited for")


def _new(begun: BegunSlice, page: JournalPage, now: Sequence[DrsInstance]) -> list[DrsInstance]:
    """The slices that may be the one that was begun."""
    there = {*begun.before, *(it.uuid for it in page.ours)}
    return [it for it in now if it.profile == begun.profile and it.uuid not in there]


def _fits(it: DrsSlice, want: slice_profiles.WantedProfile) -> bool:
    return it.instance.profile == want.name if want.name else it.slices == want.slices


def _room_for(
    want: slice_profiles.WantedProfile,
    name: str,
    offered: Mapping[str, int],
    card: EnflameCard,
    there: Sequence[DrsSlice],
) -> None:
    """Raises NoRoom where the card has not so much left; says what would fit."""
    total = max(map(constants.slices, offered))
    free = total - sum(it.slices for it in there)
    if constants.slices(name) <= free:
        return
    foreign = sum(1 for it in there if it.allocation is None)
    others = f", {foreign} slices on it are not ours" if foreign else ""
    fits = slice_profiles.listed(it for it in offered if constants.slices(it) <= free)
    raise NoRoom(
        f"{want.asked}: {name} takes {constants.slices(name)} of {total} slices, {card.uuid} has "
        f"{max(0, free)} left{others}; what fits: {fits}"
    )


def _numbered(cards: Iterable[EnflameCard]) -> frozenset[tuple[str, int]]:
    return frozenset((card.uuid, card.index) for card in cards)


def _product(card: EnflameCard) -> str:
    """What profiles are remembered by: the SKU, or else the card's name."""
    return card.device.attributes.get(constants.PRODUCT) or card.device.model


def _is_at(row: TableRow, card: EnflameCard) -> bool:
    return card.device.pci is not None and row.is_at(card.device.pci)


def _log(text: str) -> None:
    sys.stderr.write(f"enflame: {text}\n")

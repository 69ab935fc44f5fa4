"""Checks a sample of use: what cannot be true is left out and counted, and costs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

import msgspec

from agent.core.usage.usage_report import VendorSample
from agent.isolation.vendor_answers import (
    COUNTER_LIMIT,
    DEVICES,
    MESSAGE_LIMIT,
    SLICES,
    WrongAnswer,
    clean,
    decoded,
    uuid_trouble,
)
from agent.vendor_api.agent import ProcessUsage, Usage
from agent.vendor_api.text import shorten

T = TypeVar("T")

#: More than a node has; of a longer list the beginning is kept.
USAGES, PROCESSES = DEVICES, SLICES
#: Kinds of errors of one card, and wrong entries of a method that are looked through for right figures.
KINDS, MENDED = 64, 256
#: The kernel's largest pid (PID_MAX_LIMIT, linux/threads.h).
LAST_PID = 1 << 22
#: Bytes of an answer that `quick_sample` reads, and of one that a thread decodes in one step: other threads
#: then wait for less than a millisecond.
QUICK, WHOLE = 64 << 10, 192 << 10
#: Entries that are decoded in one step. Other threads may have to wait for a step.
STEP = 256
#: An answer with more objects, as a multiple of the entries that are kept, is refused before it is decoded.
OBJECTS = 4
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
BELOW_2_63 = (1 << 63) - 1


class _MethodAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """What one method of a sample answered, or why there is no answer."""

    answer: msgspec.Raw = msgspec.Raw()
    error: str = "no answer"


class _SampleAnswer(msgspec.Struct, forbid_unknown_fields=True):
    usage: _MethodAnswer | None = None
    processes: _MethodAnswer | None = None


class _Good(msgspec.Struct, Generic[T], forbid_unknown_fields=True):
    answer: tuple[T, ...]


class _GoodSample(msgspec.Struct, forbid_unknown_fields=True):
    usage: _Good[Usage] | None = None
    processes: _Good[ProcessUsage] | None = None


class _Object(msgspec.Struct):
    """Any object; its fields are not read."""


def quick_sample(raw: bytes) -> VendorSample | None:
    """The answer to `sample`, if it is short and without fault: a millisecond of work."""
    return None if len(raw) > QUICK else _sample_without_fault(raw)


def _sample_without_fault(raw: bytes) -> VendorSample | None:
    """The sample; None where something is wrong with it."""
    try:
        good = _decode_good(raw)
    except UNREADABLE:
        return None
    usages = None if good.usage is None else good.usage.answer
    processes = None if good.processes is None else good.processes.answer
    if not (_USAGES.takes(usages or ()) and _PROCESSES.takes(processes or ())):
        return None
    return VendorSample(usages, processes)


def sample(raw: bytes) -> VendorSample:
    """Decode the answer to `sample`, which may take 100 ms. Raises WrongAnswer: this is no sample."""
    if len(raw) <= WHOLE and (good := _sample_without_fault(raw)) is not None:
        return good
    answer = decoded(raw, _SampleAnswer)
    complaints: dict[str, str] = {}
    return VendorSample(
        usages=_entries("usage", _USAGES, answer.usage, complaints),
        processes=_entries("processes", _PROCESSES, answer.processes, complaints),
        complaints=complaints,
    )


def _entries(
    method: str, form: _Form[T], answer: _MethodAnswer | None, complaints: dict[str, str]
) -> tuple[T, ...] | None:
    """The entries that a method answered, None without an answer; adds the method's complaint, if any."""
    if answer is None:
        return None
    try:
        if not bytes(answer.answer):
            raise WrongAnswer(clean(answer.error, MESSAGE_LIMIT))
        found = _Entries(form, bytes(answer.answer))
    except WrongAnswer as exc:
        complaints[method] = str(exc)
        return None
    if found.complaint:
        complaints[method] = found.complaint
    return found.kept


@dataclass(frozen=True, slots=True)
class _Figure:
    """A field of an entry: its type, and the least and the greatest value that can be true."""

    type: Any = float | None
    least: float = 0
    most: float = BELOW_2_63

    def can_be_true(self, values: Sequence[Any]) -> bool:
        known = [value for value in values if value is not None]
        return not known or (self.least <= min(known) and max(known) <= self.most)

    def trouble(self, value: Any) -> str:
        """Why the value cannot be true; empty where it can."""
        if value is None or self.least <= value <= self.most:
            return ""
        most = "2^63" if self.most == BELOW_2_63 else str(self.most)
        return f"{shorten(str(value))} is not between {self.least:g} and {most}"


@dataclass(frozen=True, slots=True)
class _Uuid:
    type: Any = str

    def can_be_true(self, values: Sequence[str | None]) -> bool:
        return not any(map(self.trouble, set(values)))

    def trouble(self, value: str | None) -> str:
        return "" if value is None else uuid_trouble(value)


@dataclass(frozen=True, slots=True)
class _Counts:
    type: Any = field(default_factory=lambda: dict[str, int])

    def can_be_true(self, values: Sequence[Mapping[str, int]]) -> bool:
        return not any(map(self.trouble, values))

    def trouble(self, value: Mapping[str, int]) -> str:
        if len(value) > KINDS:
            return f"{len(value)} kinds, at most {KINDS} work"
        if wrong := next(
            (name for name in value if len(name) > COUNTER_LIMIT or not name.isprintable()), None
        ):
            return f"{shorten(wrong)} is no kind: at most {COUNTER_LIMIT} printable characters work"
        return next(filter(None, map(_Figure().trouble, value.values())), "")


_BYTES, _PART, _CELSIUS = _Figure(int | None), _Figure(most=1), _Figure(least=-273.15)


class _Form(Generic[T]):
    """The form of one method's entries. An entry without one of the `needed` fields is of no use."""

    def __init__(
        self, kind: type[T], one: str, many: str, limit: int, needed: Mapping[str, Any], **figures: Any
    ) -> None:
        self.kind = kind
        self.one = one
        self.many = many
        self.limit = limit
        self.needed = tuple(needed)
        self.figures = {**needed, **figures}
        self.has_memory = "memory_total" in self.figures
        self.decode = msgspec.json.Decoder(kind).decode
        self.decode_all = msgspec.json.Decoder(tuple[kind, ...]).decode  # type: ignore[valid-type]

    def takes(self, entries: Sequence[T]) -> bool:
        """Whether all of the entries can be used."""
        return len(entries) <= self.limit and self.can_be_true(entries)

    def can_be_true(self, entries: Sequence[T]) -> bool:
        """Whether all figures can be true. A figure of all entries at once, since there are thousands."""
        return all(
            figure.can_be_true([getattr(entry, name) for entry in entries])
            for name, figure in self.figures.items()
        ) and not (self.has_memory and any(map(self.excess, entries)))

    def excess(self, entry: Any) -> str:
        """Why there cannot be so much memory in use; empty where there can, or where that is not known."""
        if not self.has_memory or entry.memory_used is None or entry.memory_total is None:
            return ""
        is_more = entry.memory_used > entry.memory_total
        return f"{entry.memory_used} is more than memory_total, {entry.memory_total}" if is_more else ""


_USAGES = _Form(
    Usage,
    "usage",
    "usages",
    USAGES,
    {"uuid": _Uuid()},
    memory_used=_BYTES,
    memory_total=_BYTES,
    memory_reserved=_BYTES,
    utilization=_PART,
    memory_utilization=_PART,
    tensor_utilization=_PART,
    encoder_utilization=_PART,
    decoder_utilization=_PART,
    power=_Figure(),
    energy=_Figure(),
    temperature=_CELSIUS,
    memory_temperature=_CELSIUS,
    clock=_Figure(),
    memory_clock=_Figure(),
    ecc_errors=_Counts(),
    driver_errors=_Counts(),
    last_driver_error=_Figure(int | None),
    parent=_Uuid(str | None),
)
_PROCESSES = _Form(
    ProcessUsage,
    "process",
    "processes",
    PROCESSES,
    {"uuid": _Uuid(), "pid": _Figure(int, least=1, most=LAST_PID)},
    memory=_BYTES,
    utilization=_PART,
)
_decode_good = msgspec.json.Decoder(_GoodSample).decode


class _Entries(Generic[T]):
    """The entries of a method's answer that can be used, and what was left out.

    Raises:
        WrongAnswer: The answer is no list of objects.
    """

    def __init__(self, form: _Form[T], raw: bytes) -> None:
        self._form = form
        self._wrong = 0
        self._first = ""
        try:
            pieces = self._pieces(raw)
            self._beyond = len(pieces) - form.limit
            steps = range(0, min(len(pieces), form.limit), STEP)
            ends = (min(first + STEP, form.limit) for first in steps)
            parts = (self._part(first, pieces[first:end]) for first, end in zip(steps, ends, strict=True))
            self.kept = tuple(chain.from_iterable(parts))
        except WrongAnswer as exc:
            raise WrongAnswer(f"answered wrongly: {exc}") from exc

    @property
    def complaint(self) -> str:
        """What was left out; empty where nothing was."""
        form = self._form
        beyond = f"{self._beyond} {form.many} beyond the first {form.limit} are left out"
        figures = "1 figure or entry" if self._wrong == 1 else f"{self._wrong} figures or entries"
        wrong = f"{figures} cannot be used, the first: {self._first}"
        return "; ".join([beyond] * (self._beyond > 0) + [wrong] * (self._wrong > 0))

    def _pieces(self, raw: bytes) -> list[msgspec.Raw]:
        """The entries one by one. What is far too long is refused first, in little time."""
        most = OBJECTS * self._form.limit
        if raw.count(b"{") > most:
            raise WrongAnswer(f"there are more than {most} objects")
        decoded(raw, list[_Object])  # ends at the first entry that is no object
        return decoded(raw, list[msgspec.Raw])

    def _part(self, first: int, pieces: Sequence[msgspec.Raw]) -> Iterable[T]:
        """The entries of pieces, all at once if nothing is to be left out. `first`: the number of one."""
        with suppress(*UNREADABLE):
            entries: tuple[T, ...] = self._form.decode_all(b"[%b]" % b",".join(pieces))
            if self._form.can_be_true(entries):
                return entries
        return self._used(first, pieces)

    def _used(self, first: int, pieces: Sequence[msgspec.Raw]) -> Iterable[T]:
        for number, piece in enumerate(pieces, first):
            entry = self._right(piece) or self._mended(number, piece)
            if entry is not None:
                yield entry

    def _right(self, piece: msgspec.Raw) -> T | None:
        """The entry, if all of it can be true."""
        with suppress(*UNREADABLE):
            entry: T = self._form.decode(piece)
            return entry if self._form.can_be_true((entry,)) else None
        return None

    def _mended(self, number: int, piece: msgspec.Raw) -> T | None:
        """The entry without its wrong figures; None where it is of no use without them."""
        if self._wrong >= MENDED:
            self._wrong += 1
            return None
        known: dict[str, Any] = {}
        troubles: dict[str, str] = {}
        for name, raw in decoded(piece, dict[str, msgspec.Raw]).items():
            if figure := self._form.figures.get(name):
                try:
                    known[name] = decoded(raw, figure.type)
                    troubles[name] = figure.trouble(known[name])
                except WrongAnswer as exc:
                    troubles[name] = str(exc)
        for name in self._form.needed:
            troubles.setdefault(name, "there is none")
        wrong = {name: trouble for name, trouble in troubles.items() if trouble}
        entry = self._without(wrong, known)
        if entry is not None and (excess := self._form.excess(entry)):
            wrong["memory_used"] = excess
            entry = self._without(wrong, known)
        if not wrong:  # a field is there twice, say, and only its last value is right
            wrong, entry = {"as a whole": self._trouble_as_a_whole(piece)}, None
        self._wrong += len(wrong)
        name, why = next(iter(wrong.items()))
        self._first = self._first or f"{self._form.one} {number}: {name}: {why}"
        return entry

    def _without(self, wrong: Mapping[str, str], known: Mapping[str, Any]) -> T | None:
        """The entry of these figures without the wrong ones; None where one of those is needed."""
        if wrong.keys() & set(self._form.needed):
            return None
        return self._form.kind(**{name: value for name, value in known.items() if name not in wrong})

    def _trouble_as_a_whole(self, piece: msgspec.Raw) -> str:
        try:
            decoded(piece, self._form.kind)
        except WrongAnswer as exc:
            return str(exc)
        return "its fields cannot be used together"
